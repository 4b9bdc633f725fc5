#!/usr/bin/env python3
"""troupe.stats: loads of a transformers model's experts, against counts of the routers' own choices, and in the logs of
transformers' Trainer."""
import tempfile
import unittest

import torch
from troupe_package import troupe

from transformers import AutoModelForCausalLM, LlamaConfig, OlmoeConfig, Trainer, TrainingArguments  # isort: skip

E, K, LAYERS = 8, 2, 2


def olmoe(**more):
    torch.manual_seed(3)
    return AutoModelForCausalLM.from_config(OlmoeConfig(
        hidden_size=32, intermediate_size=16, num_hidden_layers=more.pop("layers", LAYERS), num_attention_heads=4, vocab_size=64, num_experts=E,
        num_experts_per_tok=K, use_cache=False, pad_token_id=None, eos_token_id=None, **more))


class CountingTrainer(Trainer):
    def log(self, logs, *rest, **more):
        super().log({**logs, **troupe.stats(self.model)}, *rest, **more)


class Stats(unittest.TestCase):
    def expected(self, model, *batches):
        """moe/load and moe/dead by the routers' logits."""
        counts = torch.zeros(LAYERS, E)
        for batch in batches:
            for layer, logits in enumerate(model(batch, output_router_logits=True).router_logits):
                counts[layer] += torch.bincount(logits.topk(K).indices.flatten(), minlength=E)
        share = counts / counts.mean(1, keepdim=True)
        return share.max(1).values, int((share < 0.01).sum())

    def compare(self, model):
        batches = [torch.randint(64, (2, 20)) for _ in range(3)]
        loads, dead = self.expected(model, *batches)
        self.assertEqual(troupe.stats(model), {})
        for batch in batches:
            model(batch)
        got = troupe.stats(model)
        self.assertEqual(sorted(got), ["moe/dead", "moe/load", "moe/load_layers/0", "moe/load_layers/1"])
        self.assertEqual(got["moe/dead"], dead)
        self.assertAlmostEqual(got["moe/load"], loads.max().item(), places=5)
        for layer in range(LAYERS):
            self.assertAlmostEqual(got[f"moe/load_layers/{layer}"], loads[layer].item(), places=5)
        self.assertEqual(troupe.stats(model), {})  # since the last call: nothing
        self.assertFalse([name for name in model.state_dict() if "troupe" in name])

    def test_loads_are_those_of_the_routers_choices(self):
        self.compare(olmoe())
        model = olmoe()
        troupe.patch(model)
        self.compare(model)

    def test_an_expert_that_nobody_chooses_is_dead(self):
        model = olmoe()
        with torch.no_grad():
            for layer in model.model.layers:
                layer.mlp.gate.weight.zero_()  # all logits are equal: the same K experts have all tokens
        troupe.stats(model)
        model(torch.randint(64, (1, 10)))
        got = troupe.stats(model)
        self.assertEqual((got["moe/load"], got["moe/dead"]), (E / K, LAYERS * (E - K)))

    def test_unpatch_ends_it(self):
        model = olmoe()
        troupe.patch(model)
        troupe.stats(model)
        troupe.unpatch(model)
        model(torch.randint(64, (1, 10)))
        self.assertEqual([m._forward_pre_hooks for m in model.modules() if m._forward_pre_hooks], [])
        self.assertEqual(troupe.stats(model), {})

    def test_a_dense_model_is_refused(self):
        dense = AutoModelForCausalLM.from_config(LlamaConfig(hidden_size=16, intermediate_size=16, num_hidden_layers=1,
                                                             num_attention_heads=2, vocab_size=32))
        with self.assertRaisesRegex(troupe.Unsupported, "no experts"):
            troupe.stats(dense)

    def test_trainers_logs_have_them(self):
        model = olmoe(output_router_logits=True)
        troupe.patch(model)
        troupe.stats(model)
        piece = torch.arange(16) % 64
        with tempfile.TemporaryDirectory() as folder:
            settings = TrainingArguments(folder, max_steps=4, per_device_train_batch_size=2, logging_steps=2, save_strategy="no",
                                         report_to="none", disable_tqdm=True, use_cpu=True)
            trainer = CountingTrainer(model, settings, train_dataset=[{"input_ids": piece, "labels": piece}] * 8)
            trainer.train()
        rows = [row for row in trainer.state.log_history if "loss" in row]
        self.assertEqual([row["step"] for row in rows], [2, 4])
        for row in rows:
            self.assertTrue(1 <= row["moe/load"] <= E / K, row)
            self.assertEqual(row["moe/load"], max(row[f"moe/load_layers/{i}"] for i in range(LAYERS)))
            self.assertTrue(0 <= row["moe/dead"] <= LAYERS * (E - K), row)


class Accumulated(unittest.TestCase):
    def step(self, model):
        """The router's weights after the Trainer's step of four microbatches."""
        generator = torch.Generator().manual_seed(1)
        pieces = [{"input_ids": t, "labels": t} for t in torch.randint(64, (8, 12), generator=generator)]
        with tempfile.TemporaryDirectory() as folder:
            settings = TrainingArguments(folder, max_steps=1, per_device_train_batch_size=2, gradient_accumulation_steps=4, optim="sgd",
                                         learning_rate=1.0, max_grad_norm=1e9, lr_scheduler_type="constant", save_strategy="no",
                                         report_to="none", disable_tqdm=True, use_cpu=True)
            Trainer(model, settings, train_dataset=pieces).train()
        return model.model.layers[0].mlp.gate.weight.detach()

    def test_an_attached_loss_counts_as_transformers_own_where_the_trainer_accumulates(self):
        """Both have the task's loss / num_items_in_batch and the whole balance loss of each microbatch. Theirs counts choices where ours
        has their share: K times ours."""
        want = self.step(olmoe(layers=1, output_router_logits=True, router_aux_loss_coef=0.5))
        plain = self.step(olmoe(layers=1))
        ours = olmoe(layers=1)
        for layer in ours.model.layers:
            layer.mlp = troupe.MoE.from_hf(layer.mlp, balance="aux", aux_loss=0.5 * K, losses="attach")
        got = self.step(ours)
        self.assertGreater((want - plain).norm().item(), 0.05)
        torch.testing.assert_close(got - plain, want - plain, rtol=1e-3, atol=1e-5)


if __name__ == "__main__":
    unittest.main()
