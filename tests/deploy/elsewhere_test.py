"""A run whose workers and MPI ranks others start, as Kubernetes and systemd do: real programs, real mpirun, encrypted connections. The
launch is killed once, a second one goes on, and the adapter has the bytes of a run that did everything itself."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

BIN = Path(os.environ["HEDGEROW_BIN"])
MODEL = os.environ.get("HEDGEROW_TEST_MODEL")
STEPS = 8
SMALL = {"max_steps": "2", "seq_len": "128", "window_size": "16", "recall_cache": "16", "validate_every": "2",
         "max_sequences": "24", "layers_per_block": "2", "checkpoint_every": "2", "threads": "1", "local": "1", "lease_s": "12"}
MPIRUN = ["mpirun", "--oversubscribe", "--bind-to", "none", "--mca", "btl_vader_single_copy_mechanism", "none", "-n", "2"]


def adapter_hash(run: Path) -> str:
    file, = run.glob("adapter/t*/adapter_model.safetensors")
    return hashlib.sha256(file.read_bytes()).hexdigest()


@unittest.skipUnless(MODEL, "HEDGEROW_TEST_MODEL is not set")
@unittest.skipUnless(shutil.which("mpirun"), "no mpirun on this machine")
class Elsewhere(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)
        words = "The coordinator grants a lease, and a worker renews it by its heartbeat until the block is committed. "
        (self.folder / "text.txt").write_text("".join(f"{i}. {words}\n" for i in range(4000)))
        self.variables = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        self.call("hedgerow", "init", MODEL, "--data", "text.txt", "--out", "recipe.toml")
        self.processes: list[subprocess.Popen] = []
        self.addCleanup(self.end_all)

    def call(self, program: str, *words: str) -> str:
        said = subprocess.run([str(BIN / program), *words], cwd=self.folder, env=self.variables, capture_output=True, text=True, check=False)
        self.assertEqual(said.returncode, 0, f"{words}\n{said.stdout}{said.stderr}")
        return said.stdout

    def recipe(self, name: str, changes: dict[str, str]) -> str:
        text = (self.folder / "recipe.toml").read_text()
        for key, value in (SMALL | changes).items():
            text, count = re.subn(rf"(?m)^{key} = [^#\n]*", f"{key} = {value} ", text)
            self.assertGreater(count, 0, key)
        head, finetune = text.split("[finetune]")
        (self.folder / name).write_text(head + "[finetune]" + finetune.replace("max_steps = 2", f"max_steps = {STEPS}", 1))
        return name

    def start(self, *words: str) -> subprocess.Popen:
        log = open(self.folder / f"process-{len(self.processes)}.log", "w")
        self.addCleanup(log.close)
        process = subprocess.Popen([str(word) for word in words], cwd=self.folder, env=self.variables, stdout=log, stderr=log,
                                   start_new_session=True)
        self.processes.append(process)
        return process

    def logs(self) -> str:
        return "\n".join(f"== {path.name}\n{path.read_text()[-1500:]}" for path in sorted(self.folder.glob("process-*.log")))

    def end_all(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        for pid in self.living():
            os.kill(pid, signal.SIGKILL)

    def living(self) -> list[int]:
        """What runs in this test's folder, ranks of a killed mpirun too, which are of no group that is known here."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if Path(os.readlink(entry / "cwd")) == self.folder and (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:  # gone, or another user's
                continue
        return found

    def status(self) -> dict:
        return json.loads(self.call("hedgerow", "status", "--run", "run", "--json"))

    def until(self, condition, what: str, seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            self.assertLess(time.monotonic(), deadline, f"no {what} within {seconds} s\n{self.logs()}")
            time.sleep(0.1)

    def finetune(self) -> dict:
        return next((task for task in self.status().get("tasks", []) if task["stage"] == "finetune"), {})

    def launch(self) -> subprocess.Popen:
        return self.start(*MPIRUN, BIN / "hedgerow-worker", "finetune", "--run", "run", "--wait", "60")

    def test_a_killed_launch_is_followed_by_another_and_the_bytes_are_those_of_one_machine(self):
        self.call("hedgerow", "run", "--run", "here", "--recipe", self.recipe("here.toml", {}), "--quiet")
        recipe = self.recipe("elsewhere.toml", {"local": "0", "bind": '"*"', "advertise": '"127.0.0.1"', "launch": '"elsewhere"'})
        self.call("hedgerow", "keygen", "--run", "run")
        worker = self.start(BIN / "hedgerow", "worker", "--run", "run", "--wait", "60")  # before there is a run
        coordinator = self.start(BIN / "hedgerow", "run", "--run", "run", "--recipe", recipe)
        self.assertEqual(worker.wait(240), 4, "sent away for the finetune stage, and to come again\n" + self.logs())
        self.until(lambda: "waits for its ranks" in self.finetune().get("reason", ""), "word that the stage waits")
        first = self.launch()
        self.until(lambda: self.finetune().get("checkpoint_step", 0) >= 2, "checkpoint")
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
        second = self.launch()
        self.assertEqual(second.wait(240), 0, self.logs())
        last = self.start(BIN / "hedgerow", "worker", "--run", "run", "--wait", "60")  # as a unit or a Job starts it again
        self.assertEqual(coordinator.wait(120), 0, self.logs())
        self.assertEqual(last.wait(60), 0, "told that the run is over\n" + self.logs())
        self.assertEqual(self.status()["state"], "done")
        self.assertGreaterEqual(self.finetune()["attempts"], 2)
        self.assertEqual(adapter_hash(self.folder / "run"), adapter_hash(self.folder / "here"))
        late = self.start(BIN / "hedgerow", "worker", "--run", "run", "--wait", "60")
        self.assertEqual(late.wait(30), 0, "nothing is left to do there\n" + self.logs())
        self.until(lambda: not self.living(), "end of every process, those of the killed launch too", 30)


if __name__ == "__main__":
    unittest.main()
