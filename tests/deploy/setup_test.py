"""deploy/setup --offline: wheels and text come from a folder, and nothing is asked of a network. With a wheel made here in place of the
pinned ones, which are half a gigabyte. And a preset configures where Ninja, ccache and mold are not."""

from __future__ import annotations

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
