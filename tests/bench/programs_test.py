"""tests/bench/kernels and generate at sizes that take a moment.

Catches: a formula that is not the README's, a combination that the operators refuse or autograd cannot take, a backend of
softmax by name that is another one, a misfit that ends the sweep, rows that plot_kernels cannot draw, an interrupt that loses
the rows before it, a run whose older attempt is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE.parent / "huggingface")]
import support  # noqa: E402

support.require("torch")
LIBRARY = support.operators_library()

import kernel_costs  # noqa: E402
import torch  # noqa: E402

TINY = ("--heads", "4:2", "--head-dim", "16", "--features", "16", "--window", "16", "--batch-tokens", "80", "--repeats", "1",
        "--device", "cpu", "--threads", "1")
PEAKS = {"copy_gb_per_s": 10.0, "bf16_tflop_per_s": 0.1, "fp32_tflop_per_s": 0.2}


def load(name: str) -> ModuleType:
    loader = importlib.machinery.SourceFileLoader(f"bench_{name}", str(HERE / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    sys.modules[loader.name] = module  # dataclasses look there
    loader.exec_module(module)
    return module


kernels = load("kernels")


torch.ops.load_library(str(LIBRARY))


def swept(*words: str) -> list[dict]:
    """In this process, with peaks that are not measured, which takes longer than the sweep."""
    torch.set_num_threads(1)
    return list(kernels.sweep(kernels.parsed(["--library", str(LIBRARY), *words]), torch.device("cpu"), PEAKS))


def variant(layout: str, **values: object) -> object:
    return kernel_costs.Variant(**{"layout": layout, "map": "hedgehog_softmax", "F": 6, "f": 3, "W": 4, "S": 0,
                                   "key_maps": "query_head", "dtype": "bf16", **values})


class Costs(unittest.TestCase):
    """The README's formulas with numbers put in by hand."""

    SIZE = kernel_costs.Size(1, 2, 1, 8, 4)

    def test_window_pairs_are_those_of_the_layouts(self) -> None:
        for layout, tokens, sinks, pairs in (("none", 10, 0, 0), ("sliding", 6, 0, 18), ("sliding", 7, 2, 1 + 2 + 3 + 4 + 5 + 6 + 6),
                                             ("terraced", 10, 0, 36 + 5 + 6), ("terraced", 10, 2, 36 + 7 + 8)):
            self.assertEqual(kernel_costs.window_pairs(variant(layout, S=sinks), tokens), pairs, (layout, tokens, sinks))

    def test_flops_and_bytes_of_each_direction(self) -> None:
        own, pairs = variant("sliding"), 1 + 2 + 3 + 4 * 5
        forward = 2 * 4 * (4 * pairs + 8 * (4 * 6 + 4 * 3)), 2 * (2 * 8 * 4 * (2 + 2 * 0.5) + 8 * 4 * 3)
        backward = 2 * 4 * (10 * pairs + 8 * (10 * 6 + 14 * 3)), 2 * (2 * 8 * 4 * (4 + 4 * 0.5) + 16 * 4 * 3)
        self.assertEqual(kernel_costs.hybrid_cost(self.SIZE, own, "forward"), forward)
        self.assertEqual(kernel_costs.hybrid_cost(self.SIZE, own, "backward"), backward)
        self.assertEqual(kernel_costs.hybrid_cost(self.SIZE, own, "training"), tuple(map(sum, zip(forward, backward))))
        self.assertEqual(kernel_costs.hybrid_cost(self.SIZE, own, "decode"),
                         (2 * 4 * 4 * (4 + 6 + 3), 2 * (4 * 6 * 5 * 2 + 2 * 2 * 4 * 4 * 0.5 + 8 * 4 * 3)))
        self.assertEqual(kernel_costs.softmax_cost(self.SIZE, "bf16", "backward")[0], 2 * 5 * 8 * 9 * 4)
        self.assertEqual(kernel_costs.softmax_cost(self.SIZE, "bf16", "decode")[1], 2 * 2 * 2 * 8 * 4 * 0.5)

    def test_a_kv_heads_map_and_state_count_once_for_its_query_heads(self) -> None:
        own, pairs = variant("sliding", S=2, key_maps="kv_head"), 1 + 2 + 3 + 4 + 5 + 6 * 3
        self.assertEqual(kernel_costs.hybrid_cost(self.SIZE, own, "forward"),
                         (2 * 4 * (4 * pairs + 8 * 1.5 * (2 * 6 + 2 * 3)), 2 * (2 * 8 * 4 * (2 + 2 * 0.5) + 1.5 * 4 * 4 * 3)))
        self.assertEqual(kernel_costs.hybrid_cost(self.SIZE, own, "backward")[0], 2 * 4 * (10 * pairs + 8 * (7 * 6 + 1.5 * 7 * 3)))
        self.assertEqual(kernel_costs.hybrid_cost(self.SIZE, own, "decode"),
                         (2 * 4 * (4 * 6 + 1.5 * 2 * (6 + 3)), 2 * (0.5 * 4 * 6 * 5 * 2 + 2 * 2 * 6 * 4 * 0.5 + 1.5 * 4 * 4 * 3)))

    def test_a_misfit_shows_its_arithmetic(self) -> None:
        need = {"q, k, v": 4.3e9, "T x T weights": 8.6e9}
        self.assertEqual(kernel_costs.misfit(need, 16 * 10 ** 9), "")
        self.assertEqual(kernel_costs.misfit(need, 8 * 10 ** 9), "needs 12.90 GB (q, k, v 4.30 GB + T x T weights 8.60 GB) of 8.00 GB")


class Softmax(unittest.TestCase):
    def test_a_backend_by_name_is_no_other_and_one_that_does_not_fit_says_why(self) -> None:
        size = kernel_costs.Size(1, 4, 2, 64, 16)
        opponents = kernels.Opponents(torch.device("cpu"), 500_000)  # enough for what is linear in T
        best, left_out = opponents.fastest(size, "training", kernels.Inputs(size, "training", torch.device("cpu")))
        self.assertIn("flash", best.name)
        self.assertEqual(list(left_out), ["math, bf16", "math, fp32"])
        self.assertIn("its T x T weights", left_out["math, bf16"])
        q, narrow = torch.randn(1, 2, 20, 16), torch.randn(1, 2, 20, 8)
        with kernels.sdpa_kernel(opponents.backends["flash"]), self.assertWarns(UserWarning), self.assertRaises(RuntimeError):
            kernels.scaled_dot_product_attention(q, q, narrow)


class Kernels(unittest.TestCase):
    def test_a_tiny_sweep_measures_every_combination_and_draws_it(self) -> None:
        lines = swept(*TINY, "--lengths", "40,80", "--map", ",".join(kernels.ROWS), "--layout", "terraced,sliding,none", "--direction",
                      ",".join(kernel_costs.DIRECTIONS))
        self.assertEqual([line for line in lines if line["event"] == "refused"], [])
        rows = [line for line in lines if line["event"] == "measured"]
        self.assertEqual(len(rows), 4 * 3 * len(kernels.ROWS) * 2)
        for row in rows:
            self.assertAlmostEqual(row["ratio"], row["ms"] / row["softmax"]["ms"], places=6)
            self.assertAlmostEqual(row["share_of_flops"], row["tflop_per_s"] / 0.2, places=6)
            self.assertIn(row["softmax"]["name"].split(",")[0], ("flash", "math"))
        if importlib.util.find_spec("matplotlib") is None:
            self.skipTest("no matplotlib to draw the rows with; deploy/setup --tests installs it")
        with tempfile.TemporaryDirectory() as directory:
            plot = Path(directory) / "plot.svg"
            drawn = subprocess.run([sys.executable, str(HERE / "plot_kernels"), str(plot)], input="\n".join(map(json.dumps, lines)),
                                   capture_output=True, text=True, timeout=100)
            self.assertEqual(drawn.returncode, 0, drawn)
            self.assertEqual(drawn.stdout.count(": "), len(rows) // 2)
            ElementTree.parse(plot)

    def test_what_does_not_fit_is_refused_and_the_sweep_goes_on(self) -> None:
        lines = swept("--lengths", "8192,2048,32", "--batch-tokens", "32", "--repeats", "1", "--direction", "forward", "--layout",
                      "terraced", "--memory-mib", "45")
        rows = [line for line in lines if line["event"] in ("measured", "refused")]
        self.assertEqual([(row["length"], row["event"]) for row in rows], [(32, "measured"), (2048, "refused"), (8192, "refused")])
        self.assertIn(" GB + flash, ", rows[1]["reason"])
        self.assertIn("of 0.05 GB", rows[2]["reason"])

    def test_wrong_options_are_answered_before_anything_runs(self) -> None:
        for words, text in ((("--lengths", "256,0"), "at least 1"), (("--layout", "teraced"), "teraced not in {terraced,"),
                            (("--map", "identity"), "identity not in {hedgehog_softmax,"), (("--heads", "9:4"), "a multiple of KV"),
                            (("--features", "63"), "must be even"), (("--sinks", "9", "--window", "8"), "--sinks: expected 0 to"),
                            (("--key-maps", "kv_head", "--map", "positive_random"), "use query_head")):
            said = io.StringIO()
            with self.subTest(words=words), self.assertRaises(SystemExit) as ended, contextlib.redirect_stderr(said):
                kernels.parsed(["--library", str(LIBRARY), *words])
            self.assertEqual(ended.exception.code, 2)
            self.assertIn(text, said.getvalue())

    def test_interrupted_it_shows_what_was_measured_and_says_so_by_its_exit_code(self) -> None:
        endless = (*TINY, "--lengths", ",".join(str(16 * n) for n in range(1, 200)))
        running = subprocess.Popen([sys.executable, str(HERE / "kernels"), "--library", str(LIBRARY), "--json", *endless],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            first = json.loads(running.stdout.readline())
            for rate in PEAKS:
                self.assertGreater(first[rate], 0)
            while json.loads(running.stdout.readline())["event"] != "measured":
                pass
            running.send_signal(signal.SIGINT)
            out, err = running.communicate(timeout=60)
        finally:
            running.kill()
        self.assertEqual(running.returncode, 4, err)
        self.assertEqual(json.loads(out.splitlines()[-1]), {"event": "end", "is_complete": False})


class Generate(unittest.TestCase):
    def test_of_a_run_the_newest_attempt_of_the_last_stage_is_measured(self) -> None:
        generate = load("generate")
        with tempfile.TemporaryDirectory() as directory:
            run = Path(directory)
            for folder in ("model", "student/t9", "student/t10", "adapter/t3"):
                (run / folder).mkdir(parents=True)
            (run / "run.toml").write_text(f'[model]\npath = "{run}/model"\n[plan]\ncompute_dtype = "fp32"\n')
            for subject, more in ((None, ["--student", f"{run}/student/t10", "--adapter", f"{run}/adapter/t3"]),
                                  ("transfer", ["--student", f"{run}/student/t10"])):
                options = argparse.Namespace(run=run, subject=subject, model=None, student=None, lora=None, device="cpu", alone=False)
                teacher = ["--model", f"{run}/model", "--compute-dtype", "fp32", "--device", "cpu"]
                self.assertEqual(generate.subjects_of(options), (f"{run}/model", [{"name": "student", "arguments": teacher + more},
                                                                                  {"name": "teacher", "arguments": teacher}]))

    def test_teacher_and_transformers_are_measured_in_one_call(self) -> None:
        support.require("transformers")
        from transformers import LlamaConfig, LlamaForCausalLM
        with tempfile.TemporaryDirectory() as directory:
            LlamaForCausalLM(LlamaConfig(**{**support.TINY, "vocab_size": 1500})).save_pretrained(directory)
            worker = Path(os.environ.get("HEDGEROW_BIN", support.REPOSITORY / "build" / "cpu" / "bin")) / "hedgerow-worker"
            ended = subprocess.run([sys.executable, str(HERE / "generate"), "--model", directory, "--worker", str(worker), "--batch",
                                    "2", "--prompt", "8", "--new", "6", "--device", "cpu", "--threads", "1", "--json"],
                                   capture_output=True, text=True, timeout=100)
            self.assertEqual(ended.returncode, 0, ended.stderr)
            rows = {row["name"]: row for row in map(json.loads, ended.stdout.splitlines())}
            self.assertEqual(set(rows), {"teacher", "transformers"}, ended.stderr)
            for row in rows.values():
                self.assertGreater(row["tokens_per_second"], 0)
                self.assertGreater(row["peak_bytes"], 1 << 20)
            self.assertGreater(rows["teacher"]["cache_bytes"], 0)


if __name__ == "__main__":
    unittest.main()
