"""The MoE layer against blocks of Hugging Face transformers: outputs, all gradients, aux loss.

Random weights, fp32, on the CPU. tests/moe_block.cpp runs ours on the tensors made here.
"""
import os
import pathlib
import subprocess
import tempfile
import unittest

import torch
from transformers import DeepseekV3Config, MixtralConfig, OlmoeConfig, Qwen3MoeConfig
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE
from transformers.models.mixtral.modeling_mixtral import (MixtralSparseMoeBlock,
                                                          load_balancing_loss_func)
from transformers.models.olmoe.modeling_olmoe import OlmoeSparseMoeBlock
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

PROGRAM = pathlib.Path(os.environ["TROUPE_BUILD"], "moe_block")
WIDTH, BATCH, SEQUENCE = 24, 3, 17
# Our parameter -> theirs. Shared experts keep gate and up apart there.
NAMES = {"router.weight": "gate.weight", "experts.w1": "experts.gate_up_proj",
         "experts.w2": "experts.down_proj", "shared.w2": "shared_experts.down_proj.weight"}


def block(kind, config):
    config._experts_implementation = "eager"
    torch.manual_seed(3)
    made = kind(config)
    with torch.no_grad():
        for p in made.parameters():
            p.normal_(std=0.3)
    return made.train()


def relative(got, want):
    return ((got - want).abs().max() / want.abs().max().clamp_min(1e-30)).item()


def ours(config, tensors):
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(pathlib.Path(folder, name)) for name in ("config.yaml", "in.pt", "out.pt")]
        pathlib.Path(paths[0]).write_text(config)
        torch.save(tensors, paths[1])
        subprocess.run([PROGRAM, *paths], check=True)
        return torch.load(paths[2], weights_only=False)  # C++ tags the dictionary's type


class Blocks(unittest.TestCase):
    def compare(self, theirs, config, extra=None, tokens=(BATCH, SEQUENCE)):
        """Runs both on one input; returns our results and the input."""
        torch.manual_seed(4)
        x = torch.randn(*tokens, WIDTH, requires_grad=True)
        grad = torch.randn(*tokens, WIDTH)
        y = theirs(x)
        y = y[0] if isinstance(y, tuple) else y
        y.backward(grad)
        parameters = dict(theirs.named_parameters())
        want = {name: parameters[other] for name, other in NAMES.items() if other in parameters}
        sent = {name: p.detach() for name, p in want.items()}
        gradients = {name: p.grad for name, p in want.items()}
        if "shared_experts.gate_proj.weight" in parameters:
            halves = [parameters[f"shared_experts.{n}_proj.weight"] for n in ("gate", "up")]
            sent["shared.w1"] = torch.cat([h.detach() for h in halves])
            gradients["shared.w1"] = torch.cat([h.grad for h in halves])
        got = ours(config, {"x": x.detach(), "grad": grad, **sent, **(extra or {})})
        self.assertLess(relative(got["y"], y.detach()), 1e-5)
        self.assertLess(relative(got["x.grad"], x.grad), 1e-4)
        self.assertGreaterEqual(len(gradients), 3)
        for name, gradient in gradients.items():
            error = relative(got[name + ".grad"].view(gradient.shape), gradient)
            self.assertLess(error, 1e-4, name)
        return got, x.detach()

    def test_mixtral(self):
        config = MixtralConfig(hidden_size=WIDTH, intermediate_size=40, num_local_experts=8,
                               num_experts_per_tok=2)
        self.compare(block(MixtralSparseMoeBlock, config),
                     "{experts: 8, top_k: 2, hidden: 40, router: {kind: topk_softmax, order: after,"
                     " balance: {aux_loss: 0}}}")

    def test_qwen3_moe(self):
        config = Qwen3MoeConfig(hidden_size=WIDTH, moe_intermediate_size=20, num_experts=16,
                                num_experts_per_tok=4, norm_topk_prob=True)
        self.compare(block(Qwen3MoeSparseMoeBlock, config),
                     "{experts: 16, top_k: 4, hidden: 20, router: {kind: topk_softmax,"
                     " order: before, p_norm: 1, balance: {aux_loss: 0}}}")

    def test_olmoe(self):
        config = OlmoeConfig(hidden_size=WIDTH, intermediate_size=12, num_experts=64,
                             num_experts_per_tok=8, norm_topk_prob=False)
        recipe = ("{experts: 64, top_k: 8, hidden: 12, router: {kind: topk_softmax, order: before,"
                  " balance: {aux_loss: 0}}}")
        self.compare(block(OlmoeSparseMoeBlock, config), recipe)
        self.compare(block(OlmoeSparseMoeBlock, config), recipe, tokens=(1, 1))

    def test_deepseek_v3(self):
        config = DeepseekV3Config(hidden_size=WIDTH, moe_intermediate_size=20, n_routed_experts=16,
                                  num_experts_per_tok=4, n_group=4, topk_group=2,
                                  n_shared_experts=1, routed_scaling_factor=2.5,
                                  norm_topk_prob=True, hidden_act="silu")
        theirs = block(DeepseekV3MoE, config)
        torch.manual_seed(5)
        theirs.gate.e_score_correction_bias.normal_(std=0.1)
        self.compare(theirs,
                     "{experts: 16, top_k: 4, hidden: 20, shared: {experts: 1}, router: {kind: "
                     "sigmoid_bias, scale: 2.5, limit: {groups: 4, keep: 2, top: 2}}}",
                     {"router.balance_bias": theirs.gate.e_score_correction_bias.clone()})

    def test_aux_loss_after_conversion(self):
        """Theirs is k LB: at one layer, pooling changes nothing."""
        config = MixtralConfig(hidden_size=WIDTH, intermediate_size=8, num_local_experts=8,
                               num_experts_per_tok=2)
        theirs = block(MixtralSparseMoeBlock, config)
        torch.manual_seed(4)
        x = torch.randn(BATCH, SEQUENCE, WIDTH)
        sent = {"x": x, "grad": torch.zeros_like(x)}
        sent |= {name: dict(theirs.named_parameters())[other].detach()
                 for name, other in NAMES.items() if name[:6] != "shared"}
        got = ours("{experts: 8, top_k: 2, hidden: 8, router: {kind: topk_softmax, order: after,"
                   " balance: {aux_loss: 0.01}}}", sent)
        logits = torch.nn.functional.linear(x.view(-1, WIDTH), theirs.gate.weight)
        want = load_balancing_loss_func((logits,), 8, 2)
        (0.01 / 2 * want).backward()
        self.assertLess(relative(got["loss.aux"], (0.01 / 2 * want).detach()), 1e-5)
        self.assertLess(relative(got["router.weight.grad"], theirs.gate.weight.grad), 1e-4)


if __name__ == "__main__":
    unittest.main()
