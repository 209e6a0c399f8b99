"""An export in somebody else's training loop: loss, checkpointing, what it refuses. transformers is the oracle.

Catches: a loss that forgets num_items_in_batch, so that accumulated steps are too long; gradients that checkpointing
changes; an argument that changes Llama's result and is swallowed here.
"""

from __future__ import annotations

import tempfile
import unittest
from pathlib import Path

import support

support.require("torch", "transformers")

import torch
from modeling_test import DEFAULT, make_model
from torch.testing import assert_close
from transformers import AutoModel, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

ATTENTION = {"window": "terraced", "window_size": 8, "feature_dim": 12, **DEFAULT}


def llama_and_export(directory: str) -> tuple[LlamaForCausalLM, torch.nn.Module]:
    """A tiny Llama of transformers and the export that kept all of its layers softmax: the same function."""
    torch.manual_seed(support.SEED)
    llama = LlamaForCausalLM(LlamaConfig(**support.TINY)).eval()
    with torch.no_grad():
        for parameter in llama.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2)
    ours = make_model(directory, {"window": "sliding", "window_size": 8}, (0, 1))
    ours.load_state_dict(llama.state_dict())
    return llama, ours


class Loss(unittest.TestCase):
    @torch.no_grad()
    def test_every_loss_argument_gives_llamas_loss(self):
        ids = torch.randint(3, 97, (2, 40))
        labels = ids.clone()
        labels[:, :9] = -100
        shifted = torch.cat((labels[:, 1:], torch.full((2, 1), -100)), dim=1)
        with tempfile.TemporaryDirectory() as directory:
            llama, ours = llama_and_export(directory)
            for given in ({}, {"num_items_in_batch": 10}, {"num_items_in_batch": torch.tensor(10)},
                          {"ignore_index": int(ids[0, 20]), "labels": ids}, {"shift_labels": shifted},
                          {"shift_labels": shifted.flip(1), "num_items_in_batch": 7}):
                given = {"labels": labels, **given}
                found, expected = (model(ids, **given).loss for model in (ours, llama))
                assert_close(found, expected, rtol=1e-5, atol=0.0, msg=lambda m: f"{given}: {m}")
                as_tuple = ours(ids, return_dict=False, **given)
                assert_close(as_tuple[0], expected, rtol=1e-5, atol=0.0)

    def test_eight_accumulated_rows_step_as_one_batch_of_eight(self):
        support.require("accelerate")
        from transformers import Trainer, TrainingArguments
        rows = [torch.randint(3, 97, (40,)) for _ in range(8)]
        labels = [torch.where(torch.arange(40) < 4 * i, -100, row) for i, row in enumerate(rows)]
        data = [{"input_ids": row, "labels": counted} for row, counted in zip(rows, labels)]
        with tempfile.TemporaryDirectory() as directory:
            for model in (llama_and_export(directory)[1], make_model(directory, ATTENTION)):
                found = []
                for batch, accumulated in ((8, 1), (1, 8)):
                    arguments = TrainingArguments(directory, max_steps=1, per_device_train_batch_size=batch,
                                                  gradient_accumulation_steps=accumulated, learning_rate=0.0, report_to=[],
                                                  use_cpu=True, save_strategy="no", disable_tqdm=True, logging_steps=1)
                    trainer = Trainer(model=model, args=arguments, train_dataset=data)
                    trainer.train()
                    logged = trainer.state.log_history[0]
                    found.append(torch.tensor([float(logged["loss"]), float(logged["grad_norm"])]))
                assert_close(found[1], found[0], rtol=1e-3, atol=0.0)


class Checkpointing(unittest.TestCase):
    def gradients(self, model, ids, **arguments):
        model.zero_grad()
        model(ids, labels=ids, **arguments).loss.backward()
        return {name: p.grad.clone() for name, p in model.named_parameters()}

    def test_gradients_are_those_without_it_whichever_way_it_recomputes(self):
        ids = torch.randint(3, 97, (2, 33))
        restarting = torch.cat((torch.arange(20), torch.arange(13)))[None]
        for softmax_layers in ((), (1,)):
            with self.subTest(softmax_layers=softmax_layers), tempfile.TemporaryDirectory() as directory:
                model = make_model(directory, ATTENTION, softmax_layers).train()
                for arguments in ({}, {"position_ids": restarting}):
                    model.gradient_checkpointing_disable()
                    expected = self.gradients(model, ids, **arguments)
                    for reentrant in (False, True):
                        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
                        calls = []
                        hook = model.model.layers[0].input_layernorm.register_forward_hook(lambda *_: calls.append(1))
                        found = self.gradients(model, ids, **arguments)
                        hook.remove()
                        self.assertEqual(len(calls), 2)  # it did compute the layer again
                        for name in expected:
                            assert_close(found[name], expected[name], rtol=1e-5, atol=1e-6, msg=lambda m: f"{name}: {m}")

    def test_it_makes_no_cache_and_takes_none(self):
        ids = torch.randint(3, 97, (1, 20))
        with tempfile.TemporaryDirectory() as directory:
            model = make_model(directory, ATTENTION)
            cache = model(ids).past_key_values
            model.train().gradient_checkpointing_enable()
            self.assertIsNone(model(ids, use_cache=True).past_key_values)
            with self.assertRaisesRegex(ValueError, "past_key_values: gradient checkpointing"):
                model(ids, past_key_values=cache)
            self.assertIsNotNone(model.eval()(ids, use_cache=True).past_key_values)


class Loading(unittest.TestCase):
    @torch.no_grad()
    def test_auto_model_loads_the_body_without_the_head(self):
        ids = torch.randint(3, 97, (2, 33))
        with tempfile.TemporaryDirectory() as directory:
            model = make_model(directory, ATTENTION)
            saved = Path(directory) / "saved"
            model.save_pretrained(saved)
            body = AutoModel.from_pretrained(saved, trust_remote_code=True)
            self.assertEqual(type(body).__name__, "HedgerowModel")
            assert_close(body(ids).last_hidden_state, model.model(ids).last_hidden_state, rtol=0.0, atol=0.0)
            self.assertTrue(torch.equal(body(ids, return_dict=False)[0], body(ids).last_hidden_state))
            model.model.save_pretrained(Path(directory) / "body")  # no auto class loaded this one
            again = AutoModel.from_pretrained(Path(directory) / "body", trust_remote_code=True)
            self.assertTrue(torch.equal(again(ids).last_hidden_state, body(ids).last_hidden_state))
            whole = AutoModelForCausalLM.from_pretrained(saved, trust_remote_code=True, attn_implementation="sdpa")
            self.assertTrue(torch.equal(whole(ids).logits, model(ids).logits))


class Arguments(unittest.TestCase):
    @torch.no_grad()
    def test_what_would_change_llamas_result_and_cannot_change_ours_is_refused_by_name(self):
        ids = torch.randint(3, 97, (1, 12))
        with tempfile.TemporaryDirectory() as directory:
            model = make_model(directory, ATTENTION)
            for body in (model, model.model):
                for name, value in (("output_attentions", True), ("is_causal", False), ("output_hidden_states", [1]),
                                    ("attention_mask", torch.ones(1, 1, 12, 12)), ("attention_mask", torch.ones(1, 11))):
                    with self.assertRaisesRegex(ValueError, name):
                        body(ids, **{name: value})
                allowed = body(ids, output_attentions=False, is_causal=True, token_type_ids=torch.zeros_like(ids))[0]
                self.assertTrue(torch.equal(allowed, body(ids)[0]))
            with self.assertRaisesRegex(ValueError, "output_attentions"):
                model.generate(ids, max_new_tokens=2, output_attentions=True, return_dict_in_generate=True)

    @torch.no_grad()
    def test_the_configuration_asks_for_hidden_states_and_tuples_as_llamas_does(self):
        ids = torch.randint(3, 97, (1, 12))
        with tempfile.TemporaryDirectory() as directory:
            llama, ours = llama_and_export(directory)
            for model in (llama, ours):
                model.config.output_hidden_states = True
            for found, expected in zip(ours(ids).hidden_states, llama(ids).hidden_states, strict=True):
                assert_close(found, expected, rtol=1e-4, atol=1e-4)
            ours.config.return_dict = False
            self.assertIsInstance(ours(ids), tuple)


if __name__ == "__main__":
    unittest.main()
