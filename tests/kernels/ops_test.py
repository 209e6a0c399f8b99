"""The kernels as PyTorch operators: what the dispatcher, autograd and tracing are told, and what they compute.

Catches: a rule for shapes or strides that differs from the kernel's, an operator that writes to what its schema does not name,
a gradient lost, mixed up or silently wrong, a library that drags in more than LibTorch, an error that no longer says what.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "huggingface"))
import support  # noqa: E402

support.require("torch")
LIBRARY = support.operators_library()

import torch  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.testing import assert_close  # noqa: E402

support.add_huggingface_to_path()
from modeling.feature_maps_hedgerow import ACTIVATIONS  # noqa: E402
from modeling.gradients_hedgerow import PARAMETERS, hybrid_attention, register_gradients  # noqa: E402

torch.ops.load_library(str(LIBRARY))
ops = torch.ops.hedgerow
register_gradients()

KERNELS = support.REPOSITORY / "kernels"
LAYOUTS = ("sliding", "terraced", "none")
ROWS = support.feature_maps()
MAPS = ({"negation": False}, *({"feature_map": word, "projection": row.projection, "bias": word != "hedgehog_softmax" and
                                row.projection and not row.one_draw, **({"temperature": 1.5} if row.temperature else {})}
                               for word, row in ROWS.items() if row.positive))
DEFAULT = {"num_sinks": 4, "shared": True}  # a recipe's; shared: one key map a kv head
STUDENTS = ({"num_sinks": 3}, DEFAULT, {**DEFAULT, "linear_cap": 5}, {**DEFAULT, "num_sinks": 8, "feature_map": "t2r", "bias": True})
B, H, G, T, D, f, W = 2, 4, 2, 45, 16, 8, 8
FORWARD = ("hybrid_attention", "prefill_state", "decode_step")


class Case:
    """Arguments of one call: q, k, v and what the attention is told, all leaves that want a gradient (or none)."""

    def __init__(self, window="terraced", dtype=torch.float32, learns=True, tokens=T, **spec):
        torch.manual_seed(support.SEED)
        spec = dict(spec)
        projection, bias = spec.pop("projection", True), spec.pop("bias", False)
        key_heads = G if spec.pop("shared", False) else H
        parameters = torch.float64 if dtype is torch.float64 else torch.float32

        def leaf(*sizes, of=parameters, scale=1.0):
            return (torch.randn(*sizes, dtype=torch.float64) * scale).to(of).requires_grad_(learns)

        self.q, self.k, self.v = leaf(B, H, tokens, D, of=dtype), leaf(B, G, tokens, D, of=dtype), leaf(B, G, tokens, D, of=dtype)
        self.told = {"window": window, "window_size": W, **spec}
        self.learned = {}
        if projection:
            self.learned |= {"layer_q": leaf(H, D, f, scale=0.3), "layer_k": leaf(key_heads, D, f, scale=0.3)}
        if bias:
            self.learned |= {"bias_q": leaf(H, f), "bias_k": leaf(key_heads, f)}
        if window != "none":
            self.learned["window_factors"] = leaf(1, H, 1, 1)

    @property
    def inputs(self):
        return self.q, self.k, self.v

    @property
    def keywords(self):
        return {**self.told, **self.learned}

    def leaves(self):
        return {"q": self.q, "k": self.k, "v": self.v, **self.learned}

    def in_double(self) -> "Case":
        """The same values, already rounded, in fp64."""
        other = object.__new__(Case)
        other.told = self.told
        copies = {name: x.detach().double().requires_grad_(x.requires_grad) for name, x in self.leaves().items()}
        other.q, other.k, other.v = (copies.pop(name) for name in "qkv")
        other.learned = copies
        return other


def features(case: Case, x: torch.Tensor, side: str) -> torch.Tensor:
    """phi of the definition, x [B, heads of the map, T, D] in fp64."""
    layer, bias = case.learned.get(f"layer_{side}"), case.learned.get(f"bias_{side}")
    row = ROWS[case.told.get("feature_map", "hedgehog_softmax")]
    if row.series:  # order 2, all D^2 products: phi.phi = 1 + s + s^2 / 2
        x = x / D**0.25
        square = (x[..., :, None] * x[..., None, :]).flatten(-2) / math.sqrt(2)
        return torch.cat((torch.ones_like(x[..., :1]), x, square), -1)
    scaled = x / D**0.25 if row.one_draw else x
    z = scaled if layer is None else scaled @ layer
    z = z if bias is None else z + bias[:, None]
    if row.one_draw:
        shift = z.amax(-1, keepdim=True) if side == "q" else scaled.pow(2).sum(-1, keepdim=True) / 2
        return (z - shift).exp() / math.sqrt(f)
    signs = (z, -z) if row.negation and case.told.get("negation", True) else (z,)
    activation, t = ACTIVATIONS[row.activation], case.told.get("temperature", 1.0)
    return torch.cat([activation(each, t) for each in signs], -1).clamp(min=1e-12)


def weights(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """Softmax and linear weights of the definition with T x T tensors, not yet normalised."""
    q, k = case.q, case.k.repeat_interleave(H // G, 1)
    i, j = torch.arange(q.shape[2])[:, None], torch.arange(q.shape[2])[None]
    window = {"none": i < 0, "sliding": (j <= i) & (j > i - W), "terraced": (j <= i) & (j // W >= i // W - 1)}[case.told["window"]]
    window = window | ((j <= i) & (j < case.told.get("num_sinks", 0)))
    shares = H // case.learned["layer_k"].shape[0] if "layer_k" in case.learned else 1
    phi_k = features(case, k[:, ::shares], "k").repeat_interleave(shares, 1)
    linear = (features(case, q, "q") @ phi_k.transpose(2, 3)).masked_fill(window | (j > i), 0)
    if case.told.get("linear_cap"):
        linear = linear * (case.told["linear_cap"] / (~window & (j <= i)).sum(-1, keepdim=True).double()).clamp(max=1)
    if case.told["window"] == "none":
        return torch.zeros_like(linear), linear
    s = (q @ k.transpose(2, 3) / math.sqrt(D)).masked_fill(~window, -math.inf)
    return torch.sigmoid(case.learned["window_factors"]) * (s - s.amax(-1, keepdim=True)).exp(), linear


def definition(case: Case) -> torch.Tensor:
    p, linear = weights(case)
    total = (p + linear).sum(-1, keepdim=True) + (1e-12 if case.told["window"] == "none" else 0)
    return (p + linear) @ case.v.repeat_interleave(H // G, 1) / total


def gradients(y: torch.Tensor, leaves: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    torch.manual_seed(support.SEED + 1)
    dy = torch.randn(y.shape, dtype=torch.float64).to(y.dtype)
    found = torch.autograd.grad(y, list(leaves.values()), dy, allow_unused=True)
    return dict(zip(leaves, found))


def everything():
    cases = [(layout, spec) for layout in LAYOUTS for spec in MAPS] + [("none", {"shared": True})]
    return cases + [(layout, spec) for layout in ("sliding", "terraced") for spec in STUDENTS]


class Registration(unittest.TestCase):
    def names(self):
        return sorted(name.removeprefix("hedgerow::") for name in torch._C._dispatch_get_all_op_names()
                      if name.startswith("hedgerow::"))

    def test_every_schema_stands_in_the_readme(self):
        text = " ".join((KERNELS / "ops" / "README.md").read_text(encoding="utf-8").split())
        text = text.replace("<attention>", re.search("`<attention>` stands for `(.*?)`", text)[1])
        self.assertGreaterEqual(set(self.names()), set(FORWARD))
        for name in self.names():
            schema = str(getattr(ops, name).default._schema).removeprefix("hedgerow::")
            self.assertIn(schema, text)
            self.assertIn(torch.Tag.pt2_compliant_tag, getattr(ops, name).default.tags)

    def test_opcheck_of_the_hybrid_in_every_layout_map_and_dtype(self):
        for layout, spec in everything():
            for dtype in (torch.float32, torch.bfloat16):
                with self.subTest(layout=layout, dtype=dtype, **spec):
                    case = Case(layout, dtype, **spec)
                    parameters = [case.learned.get(name) for name in PARAMETERS]
                    torch.library.opcheck(ops.hybrid_attention_forward, (*case.inputs, False, False, *parameters), case.told)
                    still = Case(layout, dtype, learns=False, **spec)
                    torch.library.opcheck(ops.hybrid_attention, still.inputs, still.keywords)
        still = Case(dtype=torch.bfloat16, learns=False)
        torch.library.opcheck(ops.hybrid_attention, still.inputs, {**still.keywords, "fp32_output": True})

    def test_opcheck_of_the_states(self):
        for layout, spec in [(layout, {}) for layout in LAYOUTS] + [("terraced", DEFAULT), ("sliding", DEFAULT)]:
            still = Case(layout, learns=False, **spec)
            torch.library.opcheck(ops.prefill_state, (still.k, still.v, torch.tensor([20, T])), still.keywords)
            state = ops.prefill_state(still.k, still.v, torch.tensor([20, T]), **still.keywords)
            torch.library.opcheck(ops.decode_step, (*(x[:, :, 0] for x in still.inputs), *state), still.keywords)
        still = Case(learns=False, num_sinks=3, recall_cache=5)
        torch.library.opcheck(ops.hybrid_attention, still.inputs, still.keywords)
        torch.library.opcheck(ops.prefill_state, (still.k, still.v, torch.tensor([20, T])), still.keywords)
        state = ops.prefill_state(still.k, still.v, torch.tensor([20, T]), **still.keywords)
        torch.library.opcheck(ops.decode_step, (*(x[:, :, 0] for x in still.inputs), *state), still.keywords)

    def test_fake_tensors_have_the_kernels_shapes_and_cost_nothing(self):
        with FakeTensorMode():  # a million tokens: nothing may be computed
            q, k = torch.empty(1, H, 1 << 20, D), torch.empty(1, G, 1 << 20, D)
            layer, factors = torch.empty(H, D, f), torch.empty(1, H, 1, 1)
            told = {"layer_q": layer, "layer_k": layer, "window_factors": factors, "window_size": 64}
            y = ops.hybrid_attention(q.bfloat16(), k.bfloat16(), k.bfloat16(), fp32_output=True, **told)
            self.assertEqual((y.shape, y.dtype, y.transpose(1, 2).is_contiguous()), (q.shape, torch.float32, True))
            state = ops.prefill_state(k, k, torch.empty(1, dtype=torch.int64), **told)
            self.assertEqual([tuple(x.shape) for x in state],
                             [(1, H, 2 * f, D), (1, H, 2 * f), (1, G, 128, D), (1, G, 128, D), (1,)])
            student = {**told, "layer_k": layer[:G], "num_sinks": 4}
            for heads in (None, H):
                state = ops.prefill_state(k.bfloat16(), k.bfloat16(), torch.empty(1, dtype=torch.int64), num_heads=heads, **student)
                self.assertEqual([tuple(x.shape) for x in state], [(1, G, 2 * f, D), (1, G, 2 * f), (1, G, 128, D),
                                                                   (1, G, 128, D), (1,), (1, G, 4, D), (1, G, 4, D)])
                self.assertEqual([x.dtype for x in state[-2:]], [torch.bfloat16] * 2)
            y = ops.decode_step(*(x[:, :, 0].bfloat16() for x in (q, k, k)), *state, **student)
            self.assertEqual((y.shape, y.dtype), ((1, H, D), torch.bfloat16))
            with self.assertRaisesRegex(RuntimeError, "the query map's layer must be"):
                ops.hybrid_attention(q, k, k, **{**told, "layer_q": torch.empty(H, D + 1, f)})

    def test_tracing_names_what_does_not_fit(self):
        def refused(pattern, operator, *arguments, **keywords):
            with self.assertRaisesRegex(RuntimeError, pattern):
                operator(*arguments, **keywords)

        with FakeTensorMode():
            q, k, lengths = torch.empty(B, H, T, D), torch.empty(B, G, T, D), torch.empty(B, dtype=torch.int64)
            layer = torch.empty(H, D, f)
            told = {"layer_q": layer, "layer_k": layer, "window_factors": torch.empty(H), "window_size": W}
            refused(r"k must be \[B, G, T, D\], found \[2, 45, 16\]", ops.prefill_state, k[0], k[0], lengths, **told)
            refused("v must have k's 2 heads, found 1", ops.prefill_state, k, k[:, :1], lengths, **told)
            refused("lengths must hold 2 rows", ops.prefill_state, k, k, lengths[:1], **told)
            refused("the key map's layer must be", ops.prefill_state, k, k, lengths, **{**told, "layer_k": layer[:, 1:]})
            refused("num_heads must be the 4 heads", ops.prefill_state, k, k, lengths, num_heads=6, **told)
            state = ops.prefill_state(k, k, lengths, **told)
            one = q[:, :, 0], k[:, :, 0], k[:, :, 0]
            refused(r"q must be \[B, H, D\], found \[2, 4, 45, 16\]", ops.decode_step, q, k, k, *state, **told)
            refused("must have q's batch, tokens and head_dim", ops.decode_step, one[0], one[1][1:], one[2], *state, **told)
            refused("kv_state must have q's 4 heads, found 2", ops.decode_step, *one, state[0][:, :2], *state[1:], **told)
            student = {**told, "layer_k": layer[:G], "num_sinks": 4}
            refused("kv_state must have the key map's 2 heads, found 4", ops.decode_step, *one, *state, **student)
            refused("num_heads must be the 4 heads", ops.prefill_state, k, k, lengths, num_heads=G, **student)
            refused("num_sinks must be that of the state, which has sinks, found 0", ops.decode_step, *one, *state, k, k, **told)
            refused("attention.num_sinks = 9: more than attention.window_size = 8", ops.prefill_state, k, k, lengths, **{**told, "num_sinks": 9})
            refused("the query map's layer must be", ops.decode_step, *one, *state, **{**told, "layer_q": layer[:, 1:]})
            refused("k must be float32 or bfloat16, found Double", ops.prefill_state, k.double(), k.double(), lengths, **told)
            refused("q must be float32 or bfloat16, found Double", ops.decode_step, *(x.double() for x in one), *state, **told)

    def test_positions_lie_beside_the_keys_wherever_the_lengths_do(self):
        def positions(device, of_lengths):
            k, layer = torch.empty(B, G, T, D, device=device), torch.empty(H, D, f, device=device)
            told = {"layer_q": layer, "layer_k": layer, "window_factors": torch.empty(H, device=device)}
            return ops.prefill_state(k, k, torch.empty(B, dtype=torch.int64, device=of_lengths), **told)[4].device.type

        self.assertEqual(positions("meta", "cpu"), "meta")
        with FakeTensorMode():
            self.assertEqual(positions("cuda", "cuda"), "cuda")
            # Of two devices FakeTensor knows only by this what an operator gives.
            with torch._functorch.config.patch(fake_tensor_prefer_device_type="cuda"):
                self.assertEqual(positions("cuda", "cpu"), "cuda")

    def test_compiling_changes_no_value_and_no_gradient(self):
        def step(case, tokens):
            return hybrid_attention(*(x[:, :, :tokens] for x in case.inputs), fp32_output=True, **case.keywords).pow(2).mean()

        compiled = torch.compile(step, backend="aot_eager", fullgraph=True, dynamic=True)
        for tokens, spec in ((T, {}), (T - 8, {}), (T, DEFAULT), (T - 8, DEFAULT)):
            case = Case(**spec)
            expected, found = step(case, tokens), compiled(case, tokens)
            assert_close(found, expected, rtol=0, atol=0)
            for name, gradient in gradients(expected, case.leaves()).items():
                assert_close(gradients(compiled(case, tokens), case.leaves())[name], gradient, rtol=0, atol=0, msg=name)

    @torch.no_grad()
    def test_compiling_prefill_and_steps_changes_no_value_and_no_state(self):
        def start(case, lengths):
            return ops.prefill_state(case.k, case.v, lengths, **case.keywords)

        def step(case, token, state):
            return ops.decode_step(*token, *state, **case.keywords)

        compiled_start, compiled_step = (torch.compile(x, backend="aot_eager", fullgraph=True) for x in (start, step))
        for spec in ({}, DEFAULT):
            case, lengths = Case(learns=False, **spec), torch.tensor([2, 20])
            expected, found = start(case, lengths), compiled_start(case, lengths)
            for token in zip(*(x.unbind(2) for x in case.inputs)):
                assert_close(compiled_step(case, token, found), step(case, token, expected), rtol=0, atol=0)
            for x, y in zip(found, expected, strict=True):
                assert_close(x, y, rtol=0, atol=0)

    def test_the_library_needs_libtorch_alone(self):
        listed = subprocess.run(["readelf", "-d", LIBRARY], capture_output=True, text=True, check=True).stdout
        needed = re.findall(r"\(NEEDED\).*\[(.*?)\]", listed)
        self.assertIn("libtorch_cpu.so", needed)
        for name in needed:
            self.assertNotRegex(name, "mpi|hdf5|zmq|xxhash|fmt|spdlog|torch_python")
        self.assertNotRegex(listed, "RPATH|RUNPATH")

    def test_the_readmes_example_runs_in_a_fresh_process(self):
        text = (KERNELS / "README.md").read_text(encoding="utf-8")
        program = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]
        self.assertIn("build/cpu/bin/libhedgerow_ops.so", program)
        program = program.replace("build/cpu/bin/libhedgerow_ops.so", str(LIBRARY))
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120,
                              env={**os.environ, "PYTHONWARNINGS": "error"})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("torch.Size([1, 9, 1000, 64])", done.stdout)


class Values(unittest.TestCase):
    def assert_like(self, found, expected, tolerance, what, norm_limit=None):
        found, expected = found.detach().double(), expected.detach()
        if norm_limit is not None:
            error = float((found - expected).norm() / expected.norm().clamp_min(1e-3))
            self.assertLessEqual(error, norm_limit, f"{what}, seed {support.SEED}")
            return
        assert_close(found, expected, rtol=tolerance, atol=tolerance * max(1.0, float(expected.abs().max())),
                     msg=lambda text: f"{what}, seed {support.SEED}: {text}")

    def test_the_hybrid_and_all_its_gradients_are_the_definitions(self):
        for layout, spec in everything():
            for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-4), (torch.bfloat16, 3e-2)):
                with self.subTest(layout=layout, dtype=dtype, **spec):
                    case = Case(layout, dtype, **spec)
                    exact = case.in_double()
                    y, expected = hybrid_attention(*case.inputs, **case.keywords), definition(exact)
                    self.assertEqual(y.dtype, dtype)
                    # Products in bf16: single elements may be far off, so the norm counts. Terms cancel, and less is left,
                    # in window factors' gradients and in t2r without a window.
                    rounded = dtype == torch.bfloat16 and torch.cpu._is_amx_tile_supported()
                    cancels = layout == "none" and spec.get("feature_map") == "t2r"

                    def limit(name):
                        return (0.25 if cancels or name == "window_factors" else 0.05) if rounded else None

                    self.assert_like(y, expected, tolerance, "y", limit("y"))
                    truth = gradients(expected, exact.leaves())
                    for name, gradient in gradients(y, case.leaves()).items():
                        self.assertEqual(gradient.shape, case.leaves()[name].shape)
                        self.assertEqual(gradient.dtype, case.leaves()[name].dtype)
                        self.assert_like(gradient, truth[name], tolerance, f"d{name}", limit(name))

    def test_gradcheck_in_fp64(self):
        for layout, spec in [(layout, {}) for layout in LAYOUTS] + [("sliding", DEFAULT), ("terraced", DEFAULT)]:
            case = Case(layout, torch.float64, tokens=19, bias=True, **spec)
            leaves = case.leaves()

            def function(q, k, v, *rest):
                return hybrid_attention(q, k, v, **case.told, **dict(zip(list(leaves)[3:], rest)))

            self.assertTrue(torch.autograd.gradcheck(function, tuple(leaves.values()), fast_mode=True))

    def test_asking_for_fewer_gradients_changes_none_of_them(self):
        case = Case()
        all_of_them = gradients(hybrid_attention(*case.inputs, **case.keywords), case.leaves())
        for wanted in ({"q"}, {"v"}, {"layer_k"}, {"window_factors"}, {"layer_q", "k"}):
            for name, leaf in case.leaves().items():
                leaf.requires_grad_(name in wanted)
            y = hybrid_attention(*case.inputs, **case.keywords)
            found = gradients(y, {name: leaf for name, leaf in case.leaves().items() if name in wanted})
            for name, gradient in found.items():
                assert_close(gradient, all_of_them[name], rtol=1e-6, atol=1e-6, msg=name)
        for leaf in case.leaves().values():
            leaf.requires_grad_(False)
        self.assertFalse(hybrid_attention(*case.inputs, **case.keywords).requires_grad)

    def test_the_plain_operator_has_no_gradient_and_says_so(self):
        case = Case()
        with self.assertRaisesRegex(RuntimeError, "hybrid_attention is not implemented|not implemented for .*hybrid_attention"):
            ops.hybrid_attention(*case.inputs, **case.keywords).sum().backward()

    def test_a_second_derivative_is_refused(self):
        case = Case()
        y = hybrid_attention(*case.inputs, **case.keywords)
        first, = torch.autograd.grad(y.sum(), case.q, create_graph=True)
        with self.assertRaisesRegex(RuntimeError, "hybrid_attention_backward is not implemented"):
            first.sum().backward()


class Decode(unittest.TestCase):
    @torch.no_grad()
    def test_prefill_and_steps_in_place_equal_the_full_forward(self):
        for layout, spec in everything():
            with self.subTest(layout=layout, **spec):
                case = Case(layout, learns=False, **spec)
                self.assert_steps_equal_the_forward(case, torch.tensor([20, 13]))
                if "num_sinks" in spec:  # some of them come by steps
                    self.assert_steps_equal_the_forward(case, torch.tensor([2, 1]))
        for layout in ("terraced", "sliding"):  # what a chunk keeps is in the state that a step finds
            for recall in ({"num_sinks": 3, "recall_cache": 5}, {"num_sinks": 1, "recall_cache": 8, "shared": True}):
                case = Case(layout, learns=False, **recall)
                self.assert_steps_equal_the_forward(case, torch.tensor([20, 13]))
                self.assert_steps_equal_the_forward(case, torch.tensor([2, 1]))

    def assert_steps_equal_the_forward(self, case: Case, lengths: torch.Tensor) -> None:
        expected = ops.hybrid_attention(*case.inputs, **case.keywords)
        state = ops.prefill_state(case.k, case.v, lengths, num_heads=H, **case.keywords)
        self.assertEqual(len(state), 5 + 2 * bool(case.told.get("num_sinks")) + 3 * bool(case.told.get("recall_cache")))
        versions, places = [x._version for x in state], [x.data_ptr() for x in state]
        for step in range(25):
            now = lengths + step
            q, k, v = (torch.stack([x[row, :, now[row]] for row in range(B)]) for x in case.inputs)
            y = ops.decode_step(q, k, v, *state, **case.keywords)
            for row in range(B):
                assert_close(y[row], expected[row, :, now[row]], rtol=1e-4, atol=1e-4)
        self.assertEqual([x.data_ptr() for x in state], places)
        self.assertEqual(state[4].tolist(), (lengths + 25).tolist())
        self.assertTrue(all(x._version > before for x, before in zip(state, versions)), "autograd is not told")

    def test_a_state_without_the_queries_heads_is_refused(self):
        case = Case("none", learns=False, feature_map="taylor", projection=False)
        state = ops.prefill_state(case.k, case.v, torch.tensor([T, T]), **case.keywords)
        with self.assertRaisesRegex(RuntimeError, "must have q's 4 heads, found 2; give prefill_state num_heads"):
            ops.decode_step(*(x[:, :, 0] for x in case.inputs), *state, **case.keywords)


class WrongArguments(unittest.TestCase):
    """One sentence: the argument, what was expected, what was found."""

    def refused(self, pattern, operator, *arguments, **keywords):
        with self.assertRaisesRegex(RuntimeError, pattern) as caught:
            operator(*arguments, **keywords)
        self.assertEqual(len(str(caught.exception).splitlines()[0].split(". ")), 1)

    def test_the_hybrid_names_what_does_not_fit(self):
        for learns in (True, False):
            case = Case(learns=learns)
            q, k, v = case.inputs
            told = case.keywords
            hybrid = hybrid_attention
            self.refused(r"q must be \[B, H, T, D\], found \[4, 45, 16\]", hybrid, q[0], k, v, **told)
            self.refused(r"k must have q's batch, tokens and head_dim, expected \[2, G, 45, 16\]", hybrid, q, k[:, :, 1:], v, **told)
            self.refused("v must have q's dtype Float, found Double", hybrid, q, k, v.double(), **told)
            self.refused("q must be float32 or bfloat16, found Half", hybrid, q.half(), k.half(), v.half(), **told)
            self.refused(r"the key map's layer must be \[H or G, D, f\] = \[4, 16, f\], found \[4, 8, 8\]", hybrid, q, k, v,
                         **{**told, "layer_k": told["layer_k"][:, :8]})
            self.refused("window_factors must be defined with a window", hybrid, q, k, v, **{**told, "window_factors": None})
            self.refused("attention.window_size = 0: expected 1 to 65536", hybrid, q, k, v, **{**told, "window_size": 0})
            self.refused("attention.num_sinks = 9: more than attention.window_size = 8", hybrid, q, k, v, **{**told, "num_sinks": 9})
            self.refused("attention.num_sinks = 1: sinks belong to a window, and attention.window is none; use 0", hybrid, q, k, v,
                         **{**told, "window": "none", "num_sinks": 1})
            self.refused("attention.recall_cache = 9: more than attention.window_size = 8", hybrid, q, k, v, **{**told, "recall_cache": 9})
            if learns:
                self.refused("recall_cache must be 0 where a gradient is wanted, found 4", hybrid, q, k, v,
                             **{**told, "recall_cache": 4})
            self.refused("feature_map must be one of hedgehog_softmax, .*taylor.*, found 'performer'", hybrid, q, k, v,
                         **{**told, "feature_map": "performer"})
            self.refused("window must be one of none, sliding, terraced, found 'full'", hybrid, q, k, v,
                         **{**told, "window": "full"})
            self.refused("q's device cpu, found meta", hybrid, q, k, v, **{**told, "layer_q": told["layer_q"].to("meta")})

    def test_the_others_too(self):
        case = Case(learns=False)
        q, k, v = case.inputs
        told = case.keywords
        self.refused("fused must be false for this problem on cpu, found true", ops.hybrid_attention_forward, q, k, v,
                     fp32_output=False, fused=True, **told)
        self.refused(r"lengths must lie in 1..45, found 0..45", ops.prefill_state, k, v, torch.tensor([0, T]), **told)
        self.refused("num_heads must be the 4 heads of the parameters", ops.prefill_state, k, v, torch.tensor([T, T]),
                     num_heads=6, **told)
        state = ops.prefill_state(k, v, torch.tensor([T, T]), **told)
        one = [x[:, :, 0] for x in case.inputs]
        self.refused("q must have the state's dtype Float, found BFloat16", ops.decode_step, *(x.bfloat16() for x in one), *state,
                     **told)
        self.refused(r"window_k and window_v must be contiguous \[2, 2, 8, 16\]", ops.decode_step, *one, *state,
                     **{**told, "window": "sliding"})
        self.refused("positions int64, found Float, Float and Int", ops.decode_step, *one, *state[:4], state[4].int(), **told)
        sinks = torch.zeros(2, B, G, 4, D)
        self.refused("the state must have sink_k and sink_v, num_sinks is 4", ops.decode_step, *one, *state,
                     **{**told, "num_sinks": 4})
        self.refused(r"sink_k and sink_v must be contiguous \[2, 2, 3, 16\]", ops.decode_step, *one, *state, *sinks,
                     **{**told, "num_sinks": 3})
        self.refused("num_sinks must be that of the state, which has sinks, found 0", ops.decode_step, *one, *state, *sinks, **told)
        self.refused("the state must have recall_k and recall_v", ops.decode_step, *one, *state, **{**told, "recall_cache": 4})
        self.refused("recall_cache must be that of the state, which has one, found 0", ops.decode_step, *one, *state,
                     recall_k=sinks[0], recall_v=sinks[1], recall_positions=torch.zeros(B, G, 4).long(), **told)


if __name__ == "__main__":
    unittest.main()
