"""deploy/setup --offline: wheels and text come from a folder, and nothing is asked of a network. With a wheel made here in place of the
pinned ones, which are half a gigabyte. deploy/setup --archives and CMake refuse what is not the pinned archive of a library. And a
preset configures where Ninja, ccache and mold are not."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import unittest
import zipfile
from pathlib import Path

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
TEXTS = ("jargon.txt.gz", "devils-dictionary.txt.gz")
NAME = "hedgerow_of_these_tests"


class Offline(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)
        (self.folder / "deploy").mkdir()
        for name in ["setup", "progress.sh", "requirements-tests.txt", "requirements-cuda.txt"]:
            shutil.copy(DEPLOY / name, self.folder / "deploy" / name)
        (self.folder / "deploy/requirements.txt").write_text(f"{NAME}==1.0\n")
        (self.folder / "gathered/wheels").mkdir(parents=True)
        (self.folder / "gathered/data").mkdir()
        for name in TEXTS:
            (self.folder / "gathered/data" / name).write_text(name)

    def make_wheel(self) -> None:
        info = f"{NAME}-1.0.dist-info"
        with zipfile.ZipFile(self.folder / f"gathered/wheels/{NAME}-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{NAME}.py", "found = True\n")
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.0\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")

    def setup(self, *words: str, **more: str) -> subprocess.CompletedProcess:
        # An index that cannot be reached: whoever asks it fails.
        variables = {**os.environ, "HEDGEROW_CACHE": str(self.folder / "cache"), "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
                     "PIP_FIND_LINKS": "", **more}
        return subprocess.run([str(self.folder / "deploy/setup"), *words], env=variables, capture_output=True, text=True, check=False)

    def test_wheels_and_text_come_from_the_folder(self):
        self.make_wheel()
        said = self.setup("--offline", str(self.folder / "gathered"), "--no-packages")
        log = self.folder / "cache/setup.log"
        self.assertEqual(said.returncode, 0, said.stdout + said.stderr + (log.read_text() if log.exists() else ""))
        subprocess.run([str(self.folder / "cache/venv/bin/python"), "-c", f"import {NAME}"], check=True)
        for name in TEXTS:
            self.assertEqual((self.folder / "cache/data" / name).read_text(), name)
        self.assertIn("going on without the text of deploy/quickstart", log.read_text(), "deploy/text is not in this folder")

    def test_where_modules_bring_the_packages_no_text_is_asked_of_apt(self):
        self.make_wheel()
        asked, apt = self.folder / "asked", self.folder / "bin/apt-get"
        apt.parent.mkdir()
        apt.write_text(f"#!/bin/sh\ntouch {asked}\nexit 127\n")
        apt.chmod(0o755)
        variables = {"PATH": f"{apt.parent}:{os.environ['PATH']}", "PIP_NO_INDEX": "1",
                     "PIP_FIND_LINKS": str(self.folder / "gathered/wheels")}
        for _ in range(2):  # the second finds the set-up complete
            said = self.setup("--no-packages", **variables)
            log = self.folder / "cache/setup.log"
            self.assertEqual(said.returncode, 0, said.stdout + said.stderr + (log.read_text() if log.exists() else ""))
        self.assertFalse(asked.exists())

    def test_a_wheel_that_was_not_gathered_is_named_and_not_looked_for_elsewhere(self):
        said = self.setup("--offline", str(self.folder / "gathered"), "--no-packages")
        self.assertNotEqual(said.returncode, 0)
        self.assertIn(NAME, (self.folder / "cache/setup.log").read_text() + said.stderr)
        self.assertNotIn("127.0.0.1:9", (self.folder / "cache/setup.log").read_text())

    def test_a_folder_that_was_not_gathered_is_refused(self):
        said = self.setup("--offline", str(self.folder))
        self.assertEqual(said.returncode, 2)
        self.assertIn("deploy/container/gather", said.stderr)


class Archives(unittest.TestCase):
    """With a table of one archive, which a curl made here copies from a folder; apt-get knows no mirror."""

    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)
        for name in ["deploy/cmake", "bin", "public", "kept"]:
            (self.folder / name).mkdir(parents=True)
        for name in ["setup", "progress.sh"]:
            shutil.copy(DEPLOY / name, self.folder / "deploy" / name)
        head, rest = (DEPLOY / "cmake/archives.cmake").read_text().split("set(HEDGEROW_ARCHIVE_TABLE\n", 1)
        content = b"an archive\n"
        self.hash = hashlib.sha256(content).hexdigest()
        (self.folder / "deploy/cmake/archives.cmake").write_text(
            f"{head}set(HEDGEROW_ARCHIVE_TABLE\n  fmt 1.2 one.tar\n    {self.hash} https://archives.invalid/pool\n)\n" + rest.split("\n)\n", 1)[1])
        (self.folder / "public/one.tar").write_bytes(content)
        (self.folder / "bin/apt-get").write_text("#!/bin/sh\nexit 0\n")
        (self.folder / "bin/curl").write_text(
            f'#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\ncp {self.folder}/public/"${{3##*/}}" "$2"\n')
        for name in ["apt-get", "curl"]:
            (self.folder / "bin" / name).chmod(0o755)

    def setup(self, *words: str, code: int = 0) -> str:
        variables = {**os.environ, "PATH": f"{self.folder}/bin:{os.environ['PATH']}", "HEDGEROW_CACHE": str(self.folder / "cache")}
        said = subprocess.run([str(self.folder / "deploy/setup"), *words], env=variables, capture_output=True, text=True, check=False)
        self.assertEqual(said.returncode, code, said.stdout + said.stderr)
        return said.stdout + said.stderr

    def take(self) -> str:
        """What CMake says, in one line, to a library that is taken from the folder `kept`."""
        script = self.folder / "take.cmake"
        script.write_text(f"include({self.folder}/deploy/cmake/archives.cmake)\nhedgerow_take(fmt libfmt-dev)\n")
        said = subprocess.run(["cmake", "-DHEDGEROW_FETCH=ON", f"-DHEDGEROW_ARCHIVES={self.folder}/kept", "-P", str(script)],
                              cwd=self.folder, capture_output=True, text=True, check=False)
        self.assertNotEqual(said.returncode, 0)
        return " ".join(said.stderr.split())

    def test_the_table_of_cmake_is_printed(self):
        self.assertEqual(self.setup("--archives"), f"fmt 1.2 one.tar {self.hash} https://archives.invalid/pool/one.tar\n")
        said = subprocess.run([str(DEPLOY / "setup"), "--archives"], capture_output=True, text=True, check=True).stdout
        self.assertEqual(len(said.splitlines()), 8)
        for line in said.splitlines():
            self.assertRegex(line, r"^\S+ [0-9.]+ (\S+) [0-9a-f]{64} https://deb\.debian\.org/debian/pool/main/\S+/\1$")

    def test_what_a_folder_lacks_is_downloaded_once(self):
        self.assertIn("one.tar: downloaded", self.setup("--archives", str(self.folder / "kept")))
        (self.folder / "public/one.tar").unlink()
        self.assertIn("complete", self.setup("--archives", str(self.folder / "kept")))

    def test_other_bytes_are_refused(self):
        (self.folder / "public/one.tar").write_text("other bytes\n")
        self.assertIn(self.hash, self.setup("--archives", str(self.folder / "kept"), code=5))
        self.assertEqual(list((self.folder / "kept").iterdir()), [])
        (self.folder / "kept/one.tar").write_text("other bytes\n")
        self.assertIn("Delete it", self.setup("--archives", str(self.folder / "kept"), code=5))
        self.assertIn(f"its SHA-256 is {hashlib.sha256(b'other bytes' + bytes([10])).hexdigest()}, not {self.hash}", self.take())

    def test_an_archive_that_the_folder_lacks_is_named_by_setup_and_cmake(self):
        (self.folder / "public/one.tar").unlink()
        self.assertIn("one.tar could not be downloaded", self.setup("--archives", str(self.folder / "kept"), code=5))
        said = self.take()
        for part in ["one.tar", self.hash, "deploy/setup --archives DIR"]:
            self.assertIn(part, said)
        self.assertEqual(said.count("CMake Error"), 1)


class WithoutFastTools(unittest.TestCase):
    def test_a_preset_configures_by_make_and_says_what_it_did_not_find(self):
        with tempfile.TemporaryDirectory() as holder:
            programs, build = Path(holder) / "bin", Path(holder) / "build"
            programs.mkdir()
            absent = ("ccache", "ninja", "mold", "ld.mold")
            for folder in os.environ["PATH"].split(os.pathsep):
                for program in Path(folder).iterdir() if Path(folder).is_dir() else ():
                    if program.name not in absent and not (programs / program.name).exists():
                        (programs / program.name).symlink_to(program)
            # An empty name, since CMake looks into /usr/bin whatever PATH says.
            said = subprocess.run(["cmake", "--preset", "cpu", "-G", "Unix Makefiles", "-B", build, "-DHEDGEROW_CCACHE="],
                                  cwd=DEPLOY.parent, env={**os.environ, "PATH": str(programs)}, capture_output=True, text=True,
                                  check=False)
            self.assertEqual(said.returncode, 0, said.stdout + said.stderr)
            self.assertIn("ccache not found", said.stdout)
            self.assertIn("mold not found", said.stdout)
            flags = "".join(file.read_text() for file in build.rglob("link.txt"))
            self.assertIn("hedgerow-worker", flags)
            self.assertNotIn("mold", flags)


if __name__ == "__main__":
    unittest.main()
