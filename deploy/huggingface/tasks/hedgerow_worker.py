"""A `hedgerow-worker answer`: a model in memory, asked by JSON lines."""

from __future__ import annotations

import json
import subprocess


class WorkerFailed(RuntimeError):
    """hedgerow-worker ended; what it said."""


class Worker:
    """A `hedgerow-worker answer`: one question at a time."""

    def __init__(self, words: list[str]) -> None:
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.description = self._answer()

    def ask(self, question: dict) -> dict:
        try:
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # its last words say why
        return self._answer()

    def _answer(self) -> dict:
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        said = self.process.stderr.read().strip()
        code = self.process.wait()
        raise WorkerFailed(said.splitlines()[-1] if said else f"hedgerow-worker ended with {code} and said nothing")

    def close(self) -> None:
        self.process.stdin.close()
        self.process.stdout.read()
        self.process.stderr.read()
        self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()
