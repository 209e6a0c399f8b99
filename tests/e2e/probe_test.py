"""`hedgerow probe` against plain PyTorch on the same q, k and v.

Catches: a figure of the wrong head or rows, later keys that count, a mean over the wrong axis, a student on another path than the
teacher's.
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
        cls.qkv = cls.teachers_qkv()

    @classmethod
    def teachers_qkv(cls) -> list:
        """q [H, T, D], k and v [G, T, D] of each layer for the first evaluated sequence, by transformers."""
        import h5py
        import torch
        from transformers import AutoModelForCausalLM
        from transformers.models.llama import modeling_llama
        with h5py.File(cls.job.run_directory / "tokens" / "evaluate.h5") as file:
            ids = torch.from_numpy(file["input_ids"][int(file.attrs["num_train"])].astype("int64"))[None]
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

    def softmax(self, layer: int, head: int):
        import torch
        q, k, _ = self.qkv[layer]
        rows = self.rows(q.shape[1])
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

    def test_the_student_has_the_figures_that_pytorch_gives_on_the_teachers_path(self) -> None:
        import safetensors.torch
        import torch
        student = max(self.job.run_directory.glob("student/*/feature_maps.safetensors"))
        maps = {name: tensor.double() for name, tensor in safetensors.torch.load_file(student).items()}
        for layer, head in ((0, 1), (3, 6)):
            with self.subTest(layer=layer, head=head):
                q, k, v = self.qkv[layer]
                group = q.shape[0] // k.shape[0]
                rows, s, later, a = self.softmax(layer, head)
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
