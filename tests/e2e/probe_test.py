"""`hedgerow probe` against plain PyTorch on the same q, k and v.

Catches: a figure of the wrong head or rows, later keys that count, a mean over the wrong axis, a student on another path than the
teacher's; a selection in another order, of other tokens, or of fewer sequences than were looked at; a picture of another head.
"""

from __future__ import annotations

import json
import math
import sys
import unittest
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
import job  # noqa: E402

CHANGES = {"plan.compute_dtype": "fp32", "finetune.enabled": False, "transfer.softmax_layers": [2], "attention.recall_cache": 0,
           "attention.linear_cap": 20}
WINDOW, SINKS, CAP = 16, 4, 20


class Probe(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        try:
            import h5py
            import safetensors.torch  # noqa: F401
            import scipy.stats  # noqa: F401
            import transformers  # noqa: F401
        except ImportError as error:
            raise unittest.SkipTest(f"{error.name} is not installed") from error
        cls.job = job.Job(CHANGES)
        cls.addClassCleanup(cls.job.close)
        ended = cls.job.run()
        if ended.code != 0:
            raise AssertionError(f"hedgerow run: {ended}")
        ended = cls.job.command("probe", "--run", cls.job.run_directory, "--json", "--max-sequences", "1")
        if ended.code != 0:
            raise AssertionError(f"hedgerow probe: {ended}")
        cls.found = json.loads(ended.out)
        with h5py.File(cls.job.run_directory / "tokens" / "evaluate.h5") as file:
            cls.first = int(file.attrs["num_train"])
            cls.qkv = cls.teachers_qkv(file["input_ids"][cls.first])

    @classmethod
    def teachers_qkv(cls, input_ids) -> list:
        """q [H, T, D], k and v [G, T, D] of each layer for a sequence, by transformers."""
        import torch
        from transformers import AutoModelForCausalLM
        from transformers.models.llama import modeling_llama
        ids = torch.from_numpy(input_ids.astype("int64"))[None]
        model = AutoModelForCausalLM.from_pretrained(cls.job.model, dtype=torch.float32, attn_implementation="eager").eval()
        kept = []
        eager = modeling_llama.eager_attention_forward

        def keep(module, q, k, v, *rest, **more):
            kept.append((q[0], k[0], v[0]))
            return eager(module, q, k, v, *rest, **more)

        modeling_llama.eager_attention_forward = keep
        try:
            with torch.no_grad():
                model(ids, use_cache=False)
        finally:
            modeling_llama.eager_attention_forward = eager
        return [tuple(x.detach().double() for x in layer) for layer in kept]

    def rows(self, length: int) -> list[int]:
        count = min(64, length)
        return [i * length // count - 1 for i in range(1, count + 1)]

    def head(self, layer: int, head: int) -> dict:
        of_layer = next(one for one in self.found["layers"] if one["layer"] == layer)
        return of_layer["heads"][head]

    def softmax(self, layer: int, head: int, rows: list[int] | None = None, qkv: list | None = None):
        """The queries, their scores [R, T], which keys are later, and their weights."""
        import torch
        q, k, _ = (qkv or self.qkv)[layer]
        rows = rows or self.rows(q.shape[1])
        group = q.shape[0] // k.shape[0]
        s = q[head, rows] @ k[head // group].T / math.sqrt(q.shape[-1])
        later = torch.arange(k.shape[1])[None] > torch.tensor(rows)[:, None]
        return rows, s, later, s.masked_fill(later, -math.inf).softmax(-1)

    def test_softmax_and_simple_maps_have_the_figures_that_pytorch_gives(self) -> None:
        import torch
        from scipy.stats import spearmanr
        for layer, head in ((0, 0), (1, 4), (3, 8)):
            with self.subTest(layer=layer, head=head):
                rows, s, later, a = self.softmax(layer, head)
                found = self.head(layer, head)
                entropy = -(a * a.clamp(min=1e-12).log()).sum(-1).mean()
                distance = torch.tensor(rows)[:, None] - torch.arange(s.shape[1])[None]
                self.assertAlmostEqual(found["softmax"]["entropy"], float(entropy), delta=1e-4 * float(entropy) + 1e-4)
                self.assertAlmostEqual(found["softmax"]["look_back"], float((a * distance).sum(-1).mean()), delta=1e-2)
                q, k, _ = self.qkv[layer]
                phi = lambda x: (torch.nn.functional.elu(x) + 1).clamp(min=1e-12)
                w = (phi(q[head, rows]) @ phi(k[head // (q.shape[0] // k.shape[0])]).T).masked_fill(later, 0)
                w = w / w.sum(-1, keepdim=True)
                kl = (a * (a.clamp(min=1e-12).log() - w.clamp(min=1e-12).log())).sum(-1).mean()
                of_map = found["maps"]["elu_plus_one"]
                self.assertAlmostEqual(of_map["kl"], float(kl), delta=1e-3 * float(kl) + 1e-4)
                ranks = [spearmanr(w[i, :row + 1], s[i, :row + 1]).statistic for i, row in enumerate(rows) if row >= 2]
                self.assertAlmostEqual(of_map["monotonicity"], sum(ranks) / len(ranks), delta=2e-3)

    def student(self, layer: int, head: int, rows: list[int] | None = None):
        """The weights before the division of window and linear branch, the keys of the latter, and the features of all keys."""
        import safetensors.torch
        import torch
        file = max(self.job.run_directory.glob("student/*/feature_maps.safetensors"))
        maps = {name: tensor.double() for name, tensor in safetensors.torch.load_file(file).items()}
        q, k, _ = self.qkv[layer]
        group = q.shape[0] // k.shape[0]
        rows, s, later, _ = self.softmax(layer, head, rows)
        prefix = f"model.layers.{layer}.self_attn."

        def phi(x, side, index):
            z = x @ maps[prefix + f"feature_map_{side}.mlp.layer"][index]
            return torch.cat((z.softmax(-1), (-z).softmax(-1)), -1).clamp(min=1e-12)

        phi_k = phi(k[head // group], "k", head // group)
        i, j = torch.tensor(rows)[:, None], torch.arange(s.shape[1])[None]
        begin = ((i // WINDOW - 1) * WINDOW).clamp(min=0)
        linear_keys = (j < begin) & (j >= SINKS)
        inside = ~linear_keys & ~later
        gate = torch.sigmoid(maps[prefix + "window_factors"].flatten()[head])
        gate = gate * ((begin - SINKS) / CAP).double().clamp(min=1)
        masked = s.masked_fill(~inside, -math.inf)
        window = gate * (masked - masked.amax(-1, keepdim=True)).exp()
        linear = (phi(q[head, rows], "q", head) @ phi_k.T).masked_fill(~linear_keys, 0)
        return window, linear, linear_keys, phi_k

    def test_the_student_has_the_figures_that_pytorch_gives_on_the_teachers_path(self) -> None:
        import torch
        for layer, head in ((0, 1), (3, 6)):
            with self.subTest(layer=layer, head=head):
                q, k, v = self.qkv[layer]
                group = q.shape[0] // k.shape[0]
                a = self.softmax(layer, head)[3]
                window, linear, linear_keys, phi_k = self.student(layer, head)
                total = (window + linear).sum(-1, keepdim=True)
                w = (window + linear) / total
                found = self.head(layer, head)["student"]
                near = lambda name, value: self.assertAlmostEqual(found[name], float(value), delta=2e-3 * abs(float(value)) + 1e-4,
                                                                  msg=name)
                near("kl", (a * (a.clamp(min=1e-12).log() - w.clamp(min=1e-12).log())).sum(-1).mean())
                near("linear", (linear / total).sum(-1).mean())
                near("sinks", (window / total)[:, :SINKS].sum(-1).mean())
                near("window", (window / total)[:, SINKS:].sum(-1).mean())
                truth, ours = a @ v[head // group], w @ v[head // group]
                near("relative_error", (ours - truth).square().sum() / truth.square().sum())
                singular = torch.linalg.svdvals(phi_k).square()
                share = singular / singular.sum()
                near("effective_rank", (-(share * share.clamp(min=1e-12).log()).sum()).exp())
                mean = phi_k.mean(0)
                near("dead_features", (mean < 1e-3 * mean.mean()).double().mean())
                near("least_mass", linear.sum(-1)[linear_keys.any(-1)].min())

    def test_random_features_have_the_norms_and_the_number_that_the_variance_law_gives(self) -> None:
        import torch
        for layer, head in ((0, 0), (1, 4), (3, 8)):
            with self.subTest(layer=layer, head=head):
                q, k, _ = self.qkv[layer]
                rows, _, later, _ = self.softmax(layer, head)
                x, y = (side * q.shape[-1] ** -0.25 for side in (q[head, rows], k[head // (q.shape[0] // k.shape[0])]))
                apart = (x.square().sum(-1)[:, None] + y.square().sum(-1)[None])[~later]
                total = (x[:, None] + y[None]).square().sum(-1)[~later]
                favor = self.head(layer, head)["favor"]
                near = lambda name, value: self.assertAlmostEqual(favor["norms"][name], float(value), delta=1e-3 * float(value), msg=name)
                near("apart_mean", apart.mean())
                near("apart_max", apart.max())
                near("sum_mean", total.mean())
                near("sum_max", total.max())
                # relative variance = (exp(|q + k|^2) - 1) / m = 0.1^2
                self.assertAlmostEqual(favor["log10_features"], math.log10(math.expm1(float(total.median())) / 0.01), delta=1e-2)

    def test_the_series_has_the_errors_that_its_polynomials_have(self) -> None:
        import torch
        for layer, head in ((0, 0), (1, 4), (3, 8)):
            _, s, later, a = self.softmax(layer, head)
            series = self.head(layer, head)["series"]
            self.assertEqual(len(series["error_of_order"]), 21)
            for order in range(21):
                with self.subTest(layer=layer, head=head, order=order):
                    polynomial = sum(s ** n / math.factorial(n) for n in range(order + 1)).masked_fill(later, 0)
                    denominator = polynomial.sum(-1)
                    counts = denominator > 0
                    self.assertAlmostEqual(series["rows_of_order"][order], float(counts.double().mean()), delta=1e-9)
                    if not counts.any():
                        self.assertIsNone(series["error_of_order"][order])
                        continue
                    error = float((polynomial[counts] / denominator[counts, None] - a[counts]).abs().sum(-1).mean())
                    # A denominator of an odd order may be nearly 0, so that the last bits of q and k show.
                    self.assertAlmostEqual(series["error_of_order"][order], error, delta=1e-9 + (1e-3 if order % 2 == 0 else 5e-2) * error)

    def tokens_file(self, name: str, rows: list[int], num_train: int) -> Path:
        """These sequences of the transfer's tokens."""
        import h5py
        import xxhash
        path = self.job.root / name
        with h5py.File(self.job.run_directory / "tokens" / "transfer.h5") as source, h5py.File(path, "w") as file:
            digest = xxhash.xxh3_128()
            for name in ("input_ids", "loss_mask", "document_starts"):
                values = source[name][:][rows]
                file[name] = values
                digest.update(values.tobytes())
            file.attrs.update(source.attrs)
            file.attrs["num_train"] = num_train
            file.attrs["content_hash"] = digest.hexdigest()
        return path

    def effective_length(self, input_ids) -> float:
        """How far the softmax looks back, mean over layers, heads and sampled queries."""
        import torch
        qkv = self.teachers_qkv(input_ids)
        found = []
        for layer, (q, _, _) in enumerate(qkv):
            for head in range(q.shape[0]):
                rows, s, _, a = self.softmax(layer, head, qkv=qkv)
                distance = torch.tensor(rows)[:, None] - torch.arange(s.shape[1])[None]
                found.append(float((a * distance).sum(-1).mean()))
        return sum(found) / len(found)

    def test_select_writes_the_sequences_of_the_longest_effective_length_longest_first(self) -> None:
        import h5py
        path, out = self.tokens_file("twice.h5", [0, 1, 2, 0, 3], 4), self.job.root / "new" / "selected.h5"
        ended = self.job.command("probe", "--run", self.job.run_directory, "--tokens", path, "--max-sequences", "5", "--select", "4",
                                 "--out", out, "--json")
        self.assertEqual(ended.code, 0, ended)
        found = json.loads(ended.out)
        self.assertEqual(found["sequences"], 2)  # the figures by head are those of the first two alone
        of_two = self.job.command("probe", "--run", self.job.run_directory, "--tokens", self.tokens_file("two.h5", [0, 1], 0), "--json")
        self.assertEqual(found["layers"], json.loads(of_two.out)["layers"])
        with h5py.File(path) as file, h5py.File(out) as written:
            lengths = [self.effective_length(ids) for ids in file["input_ids"]]
            for one, length in zip(found["by_sequence"], lengths, strict=True):
                self.assertAlmostEqual(one["look_back"], length, delta=1e-3 * length)
            best = sorted(range(5), key=lambda index: -lengths[index])[:4]  # stable: of 0 and 3 the first stays first
            self.assertEqual([one["sequence"] for one in found["selected"]], best)
            self.assertEqual([one["look_back"] for one in found["selected"]],
                             [found["by_sequence"][index]["look_back"] for index in best])
            for name in ("input_ids", "loss_mask", "document_starts"):
                self.assertEqual(written[name][:].tolist(), [file[name][index].tolist() for index in best], name)
            for name in ("hedgerow_format", "tokenizer_hash", "vocab_size", "sources"):
                self.assertEqual(written.attrs[name], file.attrs[name], name)
            self.assertEqual(int(written.attrs["num_train"]), 4)
        again = self.job.command("probe", "--model", self.job.model, "--tokens", out, "--layers", "0", "--max-sequences", "4")
        self.assertEqual(again.code, 0, again)
        said = self.job.command("probe", "--model", self.job.model, "--tokens", path, "--select", "1", "--out",
                                self.job.root / "one.h5", "--layers", "0")
        self.assertRegex(said.err, r"wrote 1 sequence to .*one\.h5, of effective length [0-9.]+ tokens")

    def test_a_selection_that_cannot_be_made_is_one_error(self) -> None:
        import h5py
        tokens, out = self.job.run_directory / "tokens" / "transfer.h5", self.job.root / "never.h5"
        with h5py.File(tokens) as file:
            count = len(file["input_ids"])
        all_of_them = ("--max-sequences", "9999")
        for words, what in ((all_of_them, "--select needs --out FILE"), (("--out", out), "--max-sequences 2 are looked at; raise it"),
                            (("--out", out, *all_of_them), f"--select 9000: there are {count} sequences to select from"),
                            (("--out", tokens, *all_of_them), "exists and is not overwritten")):
            with self.subTest(words=words):
                ended = self.job.command("probe", "--model", self.job.model, "--tokens", tokens, "--select", "9000", *words)
                self.assertEqual(ended.code, 2, ended)
                self.assertIn(what, ended.err)
                self.assertEqual(len(ended.err.splitlines()), 1, ended)
                self.assertFalse(out.exists())

    def test_pictures_of_heads_have_the_weights_of_the_last_queries_on_the_first_and_last_keys(self) -> None:
        import torch
        try:
            import matplotlib  # noqa: F401
        except ImportError as error:
            raise unittest.SkipTest("matplotlib is not installed") from error
        pictures = self.job.root / "pictures"
        ended = self.job.command("probe", "--run", self.job.run_directory, "--maps", "3/6,0/1,2/0", "--layers", "0",
                                 "--max-sequences", "2", "--pictures", pictures, "--json")
        self.assertEqual(ended.code, 0, ended)
        corners = json.loads(ended.out)["corners"]
        self.assertEqual([(one["layer"], one["head"]) for one in corners], [(0, 1), (2, 0), (3, 6)])
        for one in corners:
            layer, head, length = one["layer"], one["head"], self.qkv[0][0].shape[1]
            last = list(range(length - 32, length))
            self.assertEqual((one["sequence"], one["queries"], one["first_keys"], one["last_keys"]),
                             (self.first, last, list(range(32)), last))
            self.assertEqual("student" in one, layer != 2)  # which keeps its softmax
            expected = {"softmax": self.softmax(layer, head, last)[3]}
            if layer != 2:
                window, linear, _, _ = self.student(layer, head, last)
                expected["student"] = (window + linear) / (window + linear).sum(-1, keepdim=True)
            for kind, weights in expected.items():
                for corner, part in (("first", weights[:, :32]), ("last", weights[:, -32:])):
                    with self.subTest(layer=layer, head=head, kind=kind, corner=corner):
                        torch.testing.assert_close(torch.tensor(one[kind][corner], dtype=torch.float64), part, rtol=2e-3, atol=1e-5)
            picture = (pictures / f"layer-{layer}-head-{head}.png").read_bytes()
            self.assertTrue(picture.startswith(b"\x89PNG\r\n\x1a\n"))

    def test_a_head_that_is_not_there_is_one_error(self) -> None:
        pictures = self.job.root / "none"
        for head, what in (("4/0", "the model has layers 0 to 3"), ("0/9", "a layer has heads 0 to 8"),
                           ("0/-1", "a layer has heads 0 to 8"), ("3", "expected LAYER/HEAD"), ("0/1x", "expected LAYER/HEAD")):
            with self.subTest(head=head):
                ended = self.job.command("probe", "--run", self.job.run_directory, "--maps", head, "--pictures", pictures)
                self.assertEqual(ended.code, 2, ended)
                self.assertIn(f"--maps {head}: {what}", ended.err)
                self.assertEqual(len(ended.err.splitlines()), 1, ended)
        ended = self.job.command("probe", "--run", self.job.run_directory, "--maps", "0/0")
        self.assertEqual(ended.code, 2, ended)
        self.assertIn("each needs the other", ended.err)

    def test_a_text_is_tokenized_as_the_models_tokenizer_does(self) -> None:
        import h5py
        from transformers import AutoTokenizer
        text, out = self.job.root / "text.txt", self.job.root / "text.h5"
        words = " ".join(f"The {number} hedges stand in {number + 1} rows." for number in range(60))
        text.write_text(words)
        ended = self.job.command("probe", "--model", self.job.model, "--text", text, "--seq-len", "64", "--max-sequences", "3",
                                 "--select", "3", "--out", out, "--json", "--layers", "0")
        self.assertEqual(ended.code, 0, ended)
        found = json.loads(ended.out)
        self.assertEqual((found["seq_len"], len(found["by_sequence"])), (64, 3))
        ids = AutoTokenizer.from_pretrained(self.job.model)(words)["input_ids"]
        with h5py.File(out) as file:
            for one, written in zip(found["selected"], file["input_ids"], strict=True):
                begin = 64 * one["sequence"]
                self.assertEqual(written.tolist(), ids[begin:begin + 64])
        for words, what in ((("--text", text, "--tokens", out), "exclude each other"), (("--tokens", out, "--seq-len", "8"), "--text"),
                            (("--text", self.job.root / "absent.txt"), "absent.txt")):
            with self.subTest(words=words):
                ended = self.job.command("probe", "--model", self.job.model, *words)
                self.assertEqual(ended.code, 2, ended)
                self.assertIn(what, ended.err)

    def test_kept_layers_have_no_student_and_tables_name_layers_and_heads(self) -> None:
        self.assertNotIn("student", self.head(2, 0))
        table = self.job.command("probe", "--run", self.job.run_directory, "--max-sequences", "1", "--layers", "0,3")
        self.assertEqual(table.code, 0, table)
        self.assertEqual(len(table.out.splitlines()), 4, table)
        by_head = self.job.command("probe", "--model", self.job.model, "--tokens",
                                   self.job.run_directory / "tokens" / "evaluate.h5", "--heads", "--layers", "1")
        self.assertEqual(len(by_head.out.splitlines()), 10, by_head)
        wrong = self.job.command("probe", "--run", self.job.run_directory, "--layers", "4")
        self.assertEqual(wrong.code, 2, wrong)
        self.assertIn("the model has layers 0 to 3", wrong.err)


if __name__ == "__main__":
    unittest.main()
