"""A run as people live with it: watched in a terminal, joined by a worker, stopped, interrupted, gone on with, its
connections encrypted; and a student that comes from a published file.

Catches: a watch that leaves the terminal raw or does not end, an interrupt that loses work or counts as a failure, an
interrupted or encrypted run that ends with other bytes, a key that is let in before it is on the list or never, an
import that evaluate or generate cannot use.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
import unittest
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
sys.path.append(str(Path(__file__).resolve().parents[1] / "huggingface"))
import job  # noqa: E402
import support  # noqa: E402

undisturbed: job.Job
screen: Screen  # somebody watched the undisturbed run from its first second to its end
INTERRUPTED = 4


class Screen:
    """`hedgerow watch` on a pseudo-terminal of 100 columns."""

    def __init__(self, of: job.Job) -> None:
        self.written = b""
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        self._master, self._slave = master, slave  # the slave stays open, so that its settings can be read after
        self.settings = termios.tcgetattr(slave)
        self.process = subprocess.Popen([of.bin / "hedgerow", "watch", "--run", of.run_directory], stdin=slave, stdout=slave,
                                        stderr=slave, env={**os.environ, "TERM": "xterm", "NO_COLOR": "1"},
                                        start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))

    def read(self, timeout_s: float) -> None:
        if select.select([self._master], [], [], timeout_s)[0]:
            self.written += os.read(self._master, 1 << 16)

    def wait_for(self, words: bytes, timeout_s: float = 60) -> None:
        deadline = time.monotonic() + timeout_s
        while words not in self.written:
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise AssertionError(f"watch did not show {words!r}: {self.written[-2000:]!r}")
            self.read(0.2)

    def press(self, key: bytes) -> None:
        os.write(self._master, key)

    def end(self, timeout_s: float = 60) -> int:
        deadline = time.monotonic() + timeout_s
        while self.process.poll() is None and time.monotonic() < deadline:
            self.read(0.1)
        self.read(0)
        return self.process.wait(1)

    def is_clean(self) -> bool:
        """The cursor and the first screen are back, and keys behave as before."""
        last_hidden, last_shown = self.written.rfind(b"\x1b[?25l"), self.written.rfind(b"\x1b[?25h")
        entered, left = self.written.rfind(b"\x1b[?1049h"), self.written.rfind(b"\x1b[?1049l")
        return last_shown > last_hidden and left > entered and termios.tcgetattr(self._slave) == self.settings

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)
        os.close(self._slave)

# `status` is a second old at most: a stage must last longer to be seen and interrupted in it.
STEPS = {"transfer.max_steps": 100, "finetune.max_steps": 12}


def setUpModule() -> None:
    global undisturbed, screen
    undisturbed = job.Job(STEPS)
    unittest.addModuleCleanup(undisturbed.close)
    with undisturbed.started("run", "--run", undisturbed.run_directory, "--recipe", undisturbed.recipe) as run:
        undisturbed.wait_for_coordinator(undisturbed.run_directory, run)
        screen = Screen(undisturbed)
        unittest.addModuleCleanup(screen.close)
        screen.end(200)
        _, err = run.communicate(timeout=60)
    if run.returncode != 0:
        raise AssertionError(f"hedgerow run: exit {run.returncode}: {err}")


class Watched(unittest.TestCase):
    def test_watch_shows_the_error_of_each_block_and_ends_with_the_run(self) -> None:
        self.assertEqual(screen.process.returncode, 0)
        self.assertTrue(screen.is_clean(), screen.written[-500:])
        self.assertIn(b"\x1b[?1049h", screen.written, "it never drew")
        blocks = {task["block"]: task for task in undisturbed.status()["tasks"] if task["id"].startswith("transfer")}
        self.assertEqual(len(blocks), 2)
        after = screen.written[screen.written.rfind(b"\x1b[?1049l"):].decode()
        for block, task in blocks.items():
            row = next(line.split() for line in after.splitlines() if line.split()[:1] == [str(block)])
            shown = [float(word) for word in row if word.replace(".", "").replace("e-", "").isdigit()]
            layers = [layer["mse"] for layer in task["result"]["layers"]]
            mean = sum(layers) / len(layers)
            self.assertTrue(any(abs(value - mean) < 0.01 * mean for value in shown), f"{row}: not the mean {mean}")
        self.assertIn("MSE of each layer", after)


class Interrupted(unittest.TestCase):
    def setUp(self) -> None:
        self.job = job.Job({**STEPS, "workers.bind": "*"})  # all addresses of this host: that takes keys
        self.addCleanup(self.job.close)
        made = self.job.command("keygen", "--run", self.job.run_directory)
        self.assertEqual(made.code, 0, made)

    def run_until(self, holds, code: int, end) -> str:
        """`run` until holds(tasks by id), then end(process); its stderr."""
        with self.job.started("run", "--run", self.job.run_directory, "--recipe", self.job.recipe) as run:
            self.job.wait_for_coordinator(self.job.run_directory, run)
            job.wait_until(lambda: holds({task["id"]: task for task in self.job.status()["tasks"]}) or None, run)
            end(run)
            _, err = run.communicate(timeout=60)
        self.assertEqual(run.returncode, code, err)
        return err

    @staticmethod
    def interrupt(run: subprocess.Popen) -> None:
        run.send_signal(signal.SIGINT)

    def put_on_the_list(self, run: subprocess.Popen) -> None:
        """A worker with a key of its own is refused until the coordinator has read the list again."""
        directory = self.job.run_directory
        self.assertEqual((made := self.job.command("keygen", "--run", directory, "--worker", "late")).code, 0, made)
        refused = self.job.command("worker", "--run", directory, "--threads", "1", "--key", "late")
        self.assertEqual(refused.code, 2, refused)
        self.assertIn("does not let in the public key", refused.err)
        run.send_signal(signal.SIGHUP)
        job.wait_until(lambda: "keys/allowed was read again" in
                       self.job.command("explain", "--all", "--run", directory).out or None, run)

    def watch_join_and_stop(self, run: subprocess.Popen) -> None:
        """While it runs: somebody watches and leaves by Ctrl-C, a worker joins, somebody stops the run."""
        directory = self.job.run_directory
        screen = Screen(self.job)
        self.addCleanup(screen.close)
        self.put_on_the_list(run)
        with self.job.started("worker", "--run", directory, "--threads", "1", "--key", "late") as joined:
            job.wait_until(lambda: any(worker["pid"] == joined.pid for worker in self.job.status()["workers"]) or None,
                           joined)
            screen.wait_for(b"q leaves")
            screen.press(b"\x03")
            self.assertEqual(screen.end(), 0)
            self.assertTrue(screen.is_clean(), screen.written[-500:])
            stopped = self.job.command("stop", "--run", directory)
            self.assertEqual(stopped.code, 0, stopped)
            self.assertIn("goes on", stopped.out)
            joined.communicate(timeout=60)
        self.assertEqual(joined.returncode, INTERRUPTED)  # the run was stopped, and is not over

    def test_a_run_that_is_stopped_and_interrupted_in_each_stage_ends_with_the_same_bytes(self) -> None:
        with self.subTest("while tokenizing"):
            with self.job.started("run", "--run", self.job.run_directory, "--recipe", self.job.recipe) as run:
                job.wait_until(lambda: (self.job.run_directory / "run.toml").exists() or None, run)
                self.interrupt(run)
                _, err = run.communicate(timeout=60)
            self.assertEqual(run.returncode, INTERRUPTED, err)
        with self.subTest("watched, joined and stopped"):
            self.run_until(lambda tasks: len(tasks) > 0, INTERRUPTED, self.watch_join_and_stop)
        with self.subTest("in transfer"):
            err = self.run_until(lambda tasks: tasks["transfer/b0001"]["state"] == "running", INTERRUPTED, self.interrupt)
            self.assertIn("goes on", err)
        with self.subTest("in finetune"):
            self.run_until(lambda tasks: tasks["finetune"].get("progress"), INTERRUPTED, self.interrupt)
        self.assertEqual(self.job.processes(), [], "somebody was left behind")
        self.assertEqual(self.job.status()["state"], "stopped")
        explained = self.job.command("explain", "--run", self.job.run_directory)
        self.assertNotIn("failed", explained.out, "an interrupt is no failure")
        ended = self.job.run()
        self.assertEqual(ended.code, 0, ended)
        self.assertEqual(self.job.artifacts(), undisturbed.artifacts())
        for words in (("check",), ("clean", "--yes"), ("check",), ("logs",), ("logs", "finetune"), ("explain", "1")):
            done = self.job.command(*words, "--run", self.job.run_directory)
            self.assertEqual(done.code, 0, f"{words}: {done}")


class Imported(unittest.TestCase):
    """LoLCATs' own layout: flat names, bf16, LoRA in the same file."""

    def test_a_published_file_is_imported_evaluated_and_generated_with(self) -> None:
        support.require("torch")
        import torch
        config = json.loads((undisturbed.model / "config.json").read_text())
        heads, kv_heads, dim = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
        hidden, rank = config["hidden_size"], 8
        sides = {"q_proj": (heads * dim, hidden), "k_proj": (kv_heads * dim, hidden), "v_proj": (kv_heads * dim, hidden),
                 "o_proj": (hidden, heads * dim)}
        torch.manual_seed(support.SEED)
        state = {}
        for layer in range(config["num_hidden_layers"]):
            prefix = f"base_model.model.model.layers.{layer}.self_attn."
            for name in ("feature_map_q", "feature_map_k"):
                state[f"{prefix}{name}.mlp.layer"] = torch.eye(dim).repeat(heads, 1, 1).bfloat16()
            state[f"{prefix}window_factors"] = torch.zeros(1, heads, 1, 1).bfloat16()
            for module, (out, width) in sides.items():
                state[f"{prefix}{module}.lora_A.default.weight"] = (0.02 * torch.randn(rank, width)).bfloat16()
                state[f"{prefix}{module}.lora_B.default.weight"] = (0.02 * torch.randn(out, rank)).bfloat16()
        published, student = undisturbed.root / "published.pt", undisturbed.root / "student"
        torch.save(state, published)
        damaged = undisturbed.root / "damaged.pt"
        damaged.write_bytes(published.read_bytes()[:100_000])
        command = ("import", damaged, "--model", undisturbed.model, "--out", student)
        self.assertEqual((refused := undisturbed.command(*command)).code, 2, refused)
        self.assertEqual(list(undisturbed.root.glob("student*")), [], "a half import is in the way of the next")
        self.assertEqual((ended := undisturbed.command("import", published, *command[2:])).code, 0, ended)
        model = ("--model", undisturbed.model, "--student", student, "--lora", student / "adapter")
        evaluated = undisturbed.command("evaluate", *model, "--tokens", undisturbed.run_directory / "tokens" / "evaluate.h5",
                                        "--json")
        self.assertEqual(evaluated.code, 0, evaluated)
        result = json.loads(evaluated.out)
        self.assertEqual((result["subject"], result["targets"]), ("lora", 2 * 63))
        generated = undisturbed.command("generate", *model, "--max-new-tokens", "5", "A hacker is", "--json")
        self.assertEqual(generated.code, 0, generated)
        self.assertEqual(len(json.loads(generated.out)["ids"]), 5)
        description = json.loads((student / "hedgerow.json").read_text())
        description["attention"]["key_maps"] = "kv_head"
        (student / "hedgerow.json").write_text(json.dumps(description))
        refused = undisturbed.command("generate", *model, "A hacker is")
        self.assertEqual(refused.code, 2, refused)
        self.assertIn(f"[{kv_heads}, {dim}, {dim}] with attention.key_maps = kv_head, found [{heads}, ", refused.err)


if __name__ == "__main__":
    unittest.main()
