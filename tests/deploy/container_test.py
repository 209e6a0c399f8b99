"""The parts of deploy/container, and an installed tree run in a root folder of its own, as a container would. The whole image takes half an
hour of compiling: HEDGEROW_GATHERED=FOLDER (what deploy/container/gather filled) runs that too."""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
FOLDER = TOP / "deploy/container"
BIN = Path(os.environ["HEDGEROW_BIN"])
sys.path.insert(0, str(FOLDER))
import oci_image  # noqa: E402


def tar_of(files: dict[str, str]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return out.getvalue()


def deb_of(members: dict[str, bytes]) -> bytes:
    out = b"!<arch>\n"
    for name, data in members.items():
        out += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(data):<10}`\n".encode() + data + b"\n" * (len(data) % 2)
    return out


def can_make_namespaces() -> bool:
    return subprocess.run(["unshare", "--map-root-user", "--mount", "--pid", "--fork", "true"], capture_output=True, check=False).returncode == 0


class Scratch(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)


class Packages(Scratch):
    def read(self, deb: bytes, *words: str, path: str = os.environ["PATH"]) -> subprocess.CompletedProcess:
        (self.folder / "a.deb").write_bytes(deb)
        return subprocess.run([sys.executable, str(FOLDER / "deb_files.py"), *words, str(self.folder / "a.deb")], capture_output=True, check=False,
                              env=dict(os.environ, PATH=path))

    def test_files_and_scripts_of_a_package_come_out_of_every_known_compression(self):
        data = tar_of({"./usr/bin/x": "odd"})
        control = tar_of({"./control": "Package: x\n", "./postinst": "#!/bin/sh\n"})
        for suffix, pack in {".xz": lzma.compress, "": bytes}.items():
            deb = deb_of({"debian-binary": b"2.0\n", "control.tar" + suffix: pack(control), "data.tar" + suffix: pack(data)})
            self.assertEqual(self.read(deb).stdout, data)
            self.assertEqual(self.read(deb, "--script", "postinst").stdout, b"#!/bin/sh\n")
            self.assertEqual(self.read(deb, "--script", "prerm").stdout, b"")

    def test_a_damaged_package_is_refused_by_name(self):
        good = deb_of({"debian-binary": b"2.0\n", "data.tar.xz": lzma.compress(tar_of({"x": "y"}))})
        for bad in [b"", good[:-20], good.replace(b"!<arch>", b"!<bcdh>"), deb_of({"debian-binary": b"2.0\n"})]:
            said = self.read(bad)
            self.assertEqual(said.returncode, 1, said)
            self.assertIn(b"a.deb is no Debian package", said.stderr)

    def test_a_compression_that_is_unknown_here_is_told_from_damage(self):
        for suffix, said in {".bz2": b"unknown here", ".lzma": b"unknown here", ".zst": b"not installed here"}.items():
            deb = deb_of({"debian-binary": b"2.0\n", "data.tar" + suffix: b"whatever"})
            answer = self.read(deb, path="/nowhere")
            self.assertEqual((answer.returncode, answer.stdout), (5, b""), answer)
            self.assertIn(b"data.tar" + suffix.encode(), answer.stderr)
            self.assertIn(said, answer.stderr)

    def test_it_agrees_with_dpkg_on_a_package_that_dpkg_made(self):
        if not shutil.which("dpkg-deb"):
            self.skipTest("no dpkg-deb on this machine")
        (self.folder / "p/DEBIAN").mkdir(parents=True)
        (self.folder / "p/DEBIAN/control").write_text("Package: p\nVersion: 1\nArchitecture: all\nMaintainer: x <x@y>\nDescription: x\n")
        (self.folder / "p/file").write_text("content")
        subprocess.run(["dpkg-deb", "--build", "-Zxz", str(self.folder / "p"), str(self.folder / "p.deb")], check=True, capture_output=True)
        theirs = subprocess.run(["dpkg-deb", "--fsys-tarfile", str(self.folder / "p.deb")], check=True, capture_output=True).stdout
        self.assertEqual(self.read((self.folder / "p.deb").read_bytes()).stdout, theirs)


class Image(Scratch):
    def setUp(self):
        super().setUp()
        root = self.folder / "rootfs"
        for name in ["usr/bin", "home/hedgerow/.ssh", "tmp"]:
            (root / name).mkdir(parents=True)
        (root / "usr/bin/program").write_text("#!/bin/sh\n")
        (root / "usr/bin/program").chmod(0o755)
        os.link(root / "usr/bin/program", root / "usr/bin/twin")
        (root / "bin").symlink_to("usr/bin")
        (root / "home/hedgerow/file").write_text("x")
        (root / "tmp").chmod(0o1777)

    def make(self, name: str) -> Path:
        out = self.folder / name
        subprocess.run([sys.executable, str(FOLDER / "oci_image.py"), str(self.folder / "rootfs"), str(out), "--commit", "abc"],
                       check=True, capture_output=True)
        return out

    def test_one_folder_gives_one_archive_whoever_made_it_and_when(self):
        first = self.make("a.tar").read_bytes()
        for path in (self.folder / "rootfs").rglob("*"):
            os.utime(path, (1, 1), follow_symlinks=False)
        self.assertEqual(self.make("b.tar").read_bytes(), first)

    def test_digests_sizes_and_owners_are_what_the_layout_says(self):
        with tarfile.open(self.make("a.tar")) as image:
            get = lambda name: image.extractfile(name).read()
            blob = lambda entry: get("blobs/" + entry["digest"].replace(":", "/"))
            self.assertEqual(json.loads(get("oci-layout")), {"imageLayoutVersion": "1.0.0"})
            manifest = json.loads(blob(json.loads(get("index.json"))["manifests"][0]))
            config = json.loads(blob(manifest["config"]))
            layer = blob(manifest["layers"][0])
            self.assertEqual(manifest["layers"][0]["size"], len(layer))
            self.assertEqual(manifest["layers"][0]["digest"], "sha256:" + hashlib.sha256(layer).hexdigest())
        with tarfile.open(fileobj=io.BytesIO(layer), mode="r:gz") as files:
            entries = {entry.name: entry for entry in files}
        import gzip
        self.assertEqual(config["rootfs"]["diff_ids"], ["sha256:" + hashlib.sha256(gzip.decompress(layer)).hexdigest()])
        self.assertEqual(entries["usr/bin/program"].uid, 0)
        self.assertEqual(entries["home/hedgerow/file"].uid, 1000)
        self.assertEqual(entries["tmp"].mode & 0o7777, 0o1777)
        self.assertTrue(entries["bin"].issym())
        self.assertTrue(entries["usr/bin/twin"].islnk(), "the same file twice would double the image")
        if shutil.which("skopeo"):
            subprocess.run(["skopeo", "inspect", f"oci-archive:{self.folder}/a.tar"], check=True, capture_output=True)

    def test_the_definitions_for_other_tools_say_the_same(self):
        settings = oci_image.SETTINGS
        lines = dict(line.split(" ", 1) for line in (FOLDER / "Containerfile").read_text().splitlines() if not line.startswith("#"))
        self.assertEqual(lines["USER"], settings["User"])
        self.assertEqual(lines["WORKDIR"], settings["WorkingDir"])
        self.assertEqual(lines["ENV"].split(), settings["Env"])
        self.assertEqual(json.loads(lines["CMD"]), settings["Cmd"])
        definition = (FOLDER / "hedgerow.def").read_text()
        self.assertIn("Bootstrap: oci-archive\nFrom: hedgerow.oci.tar\n", definition)
        home = settings["WorkingDir"]
        for name in ["sshd_config", "ssh_config"]:
            self.assertIn(f"{home}/.ssh/id_rsa", (FOLDER / name).read_text())
        job = (TOP / "deploy/kubernetes/finetune/mpijob.yaml").read_text()
        self.assertIn(f"sshAuthMountPath: {home}/.ssh\n", job)
        self.assertIn("/etc/hedgerow/sshd_config", job)
        self.assertIn("$out/rootfs/etc/hedgerow/sshd_config", (FOLDER / "build").read_text())
        self.assertIn("/opt/hedgerow/bin/hedgerow-worker", job)

    def test_the_packages_of_the_image_are_not_named_twice(self):
        names = [line for line in (FOLDER / "system-packages").read_text().splitlines() if not line.startswith("#")]
        self.assertEqual(names, sorted(set(names)))


class Refusals(Scratch):
    def build(self, *words: str) -> subprocess.CompletedProcess:
        return subprocess.run([str(FOLDER / "build"), *words], capture_output=True, text=True, check=False)

    def test_inputs_that_are_missing_or_damaged_are_refused_before_anything_is_made(self):
        self.assertEqual(self.build().returncode, 2)
        self.assertEqual(self.build("--gpu").returncode, 2)
        said = self.build(str(self.folder), str(self.folder / "out"))
        self.assertEqual(said.returncode, 5)
        self.assertIn("deploy/container/gather", said.stderr)
        if not can_make_namespaces():
            self.skipTest("no user namespaces here")
        (self.folder / "file").write_text("x")
        (self.folder / "SHA256SUMS").write_text(hashlib.sha256(b"y").hexdigest() + "  file\n")
        said = self.build(str(self.folder), str(self.folder / "out"))
        self.assertEqual(said.returncode, 5)
        self.assertIn("is damaged", said.stderr)


@unittest.skipUnless(can_make_namespaces(), "no user namespaces here")
class InARootOfItsOwn(Scratch):
    """The system's own folders, read from a root that has nothing else: no home, no cache, another prefix."""

    def test_doctor_runs_there_and_finds_what_it_needs(self):
        root = self.folder / "root"
        subprocess.run([shutil.which("cmake"), "--install", str(BIN.parent), "--prefix", str(root / "opt/hedgerow")],
                       check=True, capture_output=True)
        shown = [Path(name) for name in ["/usr", "/etc", "/dev", "/sys"]] + [Path(sys.prefix), Path(sys.base_prefix)]
        binds = ""
        for place in shown:
            where = root / "opt/hedgerow/venv" if place == Path(sys.prefix) else root / str(place).lstrip("/")
            where.mkdir(parents=True, exist_ok=True)
            binds += f"mount --rbind '{place}' '{where}'\n"
        for name in ["bin", "lib", "lib64", "sbin"]:
            (root / name).symlink_to(f"usr/{name}")
        for name in ["proc", "tmp", "work"]:
            (root / name).mkdir()
        said = subprocess.run(
            ["unshare", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child", "sh", "-euc",
             binds + "mount -t proc proc '" + str(root) + "/proc'\n"
             "exec chroot '" + str(root) + "' /usr/bin/env -i PATH=/usr/bin:/bin HOME=/nowhere "
             "/opt/hedgerow/bin/hedgerow doctor --json --dir /work"], capture_output=True, text=True, check=False)
        self.assertIn(said.returncode, (0, 5), said.stderr)
        checks = {check["check"]: check for check in json.loads(said.stdout)["checks"]}
        for name in ["hedgerow-worker", "MPI library", "mpirun, two ranks", "Python packages", "Python scripts", "directory", "rename"]:
            self.assertEqual(checks[name]["level"], "ok", checks[name])
        self.assertEqual(checks["Python scripts"]["found"], "/opt/hedgerow/share/hedgerow/huggingface")


class Whole(Scratch):
    def test_the_image_is_made_from_what_was_gathered(self):
        gathered = os.environ.get("HEDGEROW_GATHERED")
        if not gathered:
            self.skipTest("HEDGEROW_GATHERED names no folder that deploy/container/gather filled")
        out = self.folder / "image"
        made = subprocess.run([str(FOLDER / "build"), gathered, str(out)], capture_output=True, text=True, check=False)
        self.assertEqual(made.returncode, 0, made.stdout[-3000:] + made.stderr[-3000:])
        self.assertRegex(made.stdout, r"(?m)^ok +hedgerow-worker: ")
        self.assertNotRegex(made.stdout, r"(?m)^fail ")
        self.assertTrue((out / "hedgerow.oci.tar").exists())
        self.assertEqual(re.findall(r"(?m)^== (.*)", made.stdout)[-1], "hedgerow.oci.tar")


if __name__ == "__main__":
    unittest.main()
