"""`cmake --install BUILD --prefix DIR`, as a user without root does it, and the programs from there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

BIN = Path(os.environ["HEDGEROW_BIN"])
# Nothing of a developer's environment reaches the installed programs.
BARE = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "LANG": "C"}


class InstalledTree(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.prefix = Path(cls.folder.name) / "a prefix"
        made = subprocess.run([shutil.which("cmake"), "--install", str(BIN.parent), "--prefix", str(cls.prefix)],
                              capture_output=True, text=True, check=False)
        if made.returncode != 0:
            raise AssertionError(made.stdout + made.stderr)
        (cls.prefix / "venv").symlink_to(Path(sys.prefix))  # as HEDGEROW_CACHE=PREFIX deploy/setup makes it

    def run_installed(self, *words: str) -> subprocess.CompletedProcess:
        return subprocess.run([str(self.prefix / "bin" / words[0]), *words[1:]], env=BARE, cwd=self.folder.name,
                              capture_output=True, text=True, check=False)

    def test_it_holds_programs_operators_scripts_and_recipes_and_no_caches(self):
        found = {str(path.relative_to(self.prefix)) for path in self.prefix.rglob("*") if path.is_file() and "venv" not in path.parts}
        for name in ["bin/hedgerow", "bin/hedgerow-worker", "lib/libhedgerow_ops.so", "share/hedgerow/huggingface/make_tokens.py",
                     "share/hedgerow/huggingface/modeling/modeling_hedgerow.py", "share/hedgerow/recipes/smollm2_quickstart.toml",
                     "share/hedgerow/systemd/hedgerow-run@.service", "share/hedgerow/kubernetes/base/kustomization.yaml",
                     "share/hedgerow/LICENSE"]:
            self.assertIn(name, found)
        self.assertFalse([name for name in found if name.endswith(".pyc")])

    def test_doctor_finds_everything_it_needs_from_another_folder(self):
        said = self.run_installed("hedgerow", "doctor", "--json", "--dir", self.folder.name)
        checks = {check["check"]: check for check in json.loads(said.stdout)["checks"]}
        for name in ["hedgerow-worker", "MPI library", "Python packages", "Python scripts", "mpirun, two ranks"]:
            self.assertEqual(checks[name]["level"], "ok", checks[name])
        self.assertEqual(checks["Python scripts"]["found"], str(self.prefix / "share/hedgerow/huggingface"))

    def test_the_worker_starts_with_nothing_in_its_environment(self):
        said = self.run_installed("hedgerow-worker", "--help")
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertIn("finetune", said.stdout)

    def test_libtorch_is_looked_for_in_the_prefixs_own_environment_first(self):
        if not shutil.which("readelf"):
            self.skipTest("no readelf on this machine")
        said = subprocess.run(["readelf", "--dynamic", str(self.prefix / "bin/hedgerow-worker")], capture_output=True, text=True, check=True)
        path = re.search(r"\[(\$ORIGIN[^\]]*)\]", said.stdout)[1].split(":")
        self.assertRegex(path[0], r"^\$ORIGIN/\.\./venv/lib/python3[.0-9]*/site-packages/torch/lib$")


if __name__ == "__main__":
    unittest.main()
