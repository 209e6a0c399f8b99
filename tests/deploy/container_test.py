"""The parts of deploy/container, and an installed tree run in a root folder of its own, as a container would. The whole image takes half an
hour of compiling: HEDGEROW_GATHERED=FOLDER (what deploy/container/gather filled) runs that too."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
FOLDER = TOP / "deploy/container"
BIN = Path(os.environ["HEDGEROW_BIN"])


def can_make_namespaces() -> bool:
    return subprocess.run(["unshare", "--map-root-user", "--mount", "--pid", "--fork", "true"], capture_output=True, check=False).returncode == 0


class Scratch(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)


class Definitions(unittest.TestCase):
    def test_image_ssh_and_kubernetes_agree_on_the_user_and_its_home(self):
        lines = dict(line.split(" ", 1) for line in (FOLDER / "Containerfile").read_text().splitlines() if not line.startswith("#"))
        home = lines["WORKDIR"]
        self.assertIn(f"hedgerow:x:{lines['USER']}::{home}:", (FOLDER / "build").read_text())
        self.assertEqual(lines["COPY"], f"--chown={lines['USER']} rootfs{home} {home}")
        self.assertIn(f"export {lines['ENV']}\n", (FOLDER / "hedgerow.def").read_text())
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
        self.assertTrue((out / "rootfs/opt/hedgerow/bin/hedgerow").exists())


if __name__ == "__main__":
    unittest.main()
