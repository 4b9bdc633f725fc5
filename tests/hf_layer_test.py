#!/usr/bin/env python3
"""troupe.MoE.from_hf: the MoE block of every model of the installed transformers as a layer of ours, or refused by name; outputs,
gradients and tensors, there and back."""
import importlib
import os
import pathlib
import unittest

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
import torch  # noqa: E402
import transformers  # noqa: E402
from troupe_package import troupe  # noqa: E402

from troupe import hf, hf_layer  # noqa: E402

MODELS = pathlib.Path(transformers.__file__).parent / "models"
D, T = 32, 9
SIZES = {"hidden_size": D, "intermediate_size": 24, "moe_intermediate_size": 20, "num_experts": 8, "num_local_experts": 8,
         "n_routed_experts": 8, "num_experts_per_tok": 2, "top_k": 2, "n_group": 4, "topk_group": 2, "n_shared_experts": 1,
         "shared_expert_intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
KNOWN = {"mixtral", "olmoe", "flex_olmo", "qwen2_moe", "qwen3_moe", "qwen3_next", "deepseek_v3", "glm4_moe", "gpt_oss", "minimax_m2",
         "nemotron_h", "jamba"}


def config_of(kind):
    config = kind()
    for name, value in SIZES.items():
        if getattr(config, name, None) is not None or name == "num_experts_per_tok":
            setattr(config, name, value)
    config._experts_implementation = "eager"
    return config


def families():
    """(name, configurations) of the models whose files have decorated experts."""
    for file in sorted(MODELS.glob("*/modeling_*.py")):
        if "use_experts_implementation" in file.read_text():
            name = f"transformers.models.{file.parent.name}.{file.stem.replace('modeling_', 'configuration_')}"
            module = importlib.import_module(name)
            yield file.parent.name, [kind for kind in vars(module).values() if isinstance(kind, type) and kind.__module__ == name
                                     and issubclass(kind, transformers.PretrainedConfig)]


def block_of(family):
    for kind in dict(families())[family]:
        try:
            torch.manual_seed(3)
            return hf_layer._block_of(config_of(kind)).train()
        except troupe.Unsupported:  # of the model's other parts
            continue
    raise AssertionError(family)


def first(y):
    return y[0] if isinstance(y, tuple) else y


class Blocks(unittest.TestCase):
    def compare(self, block):
        moe = troupe.MoE.from_hf(block)
        grad = torch.randn(2, T, D)
        x = torch.randn(2, T, D, requires_grad=True)
        other = x.detach().clone().requires_grad_()
        first(block(x)).backward(grad)
        y, _ = moe(other)
        y.backward(grad)
        with torch.no_grad():
            self.near(y, first(block(x)), "y")
        self.near(other.grad, x.grad, "x")
        back = moe.to_hf_state_dict()
        self.assertEqual(set(back), set(block.state_dict()))
        for name, t in block.state_dict().items():
            self.assertTrue(back[name].equal(t), name)
        for p in moe.parameters():
            p.data = p.grad
        ours = moe.to_hf_state_dict()
        for name, p in block.named_parameters():
            if p.grad is not None:
                self.near(ours[name], p.grad, name)

    def near(self, got, want, name):
        self.assertLess((got - want).abs().max().item(), 1e-4 * want.abs().max().item(), name)

    def test_pyl3_every_block_is_a_layer_or_refused_by_name(self):
        taken, refused = set(), {}
        for family, kinds in families():
            for kind in kinds:
                try:
                    config = config_of(kind)
                    torch.manual_seed(3)
                    block = hf_layer._block_of(config)
                except Exception:  # sizes that this configuration does not take, or a vision tower's
                    continue
                try:
                    self.compare(block)
                    taken.add(family)
                except troupe.Unsupported as no:
                    refused[family] = str(no)
        print(f"transformers {transformers.__version__}: blocks of {len(taken)} models are layers, "
              f"{len(refused.keys() - taken)} are refused: {', '.join(sorted(refused.keys() - taken))}")
        self.assertEqual(KNOWN - taken, set())
        for text in refused.values():
            self.assertRegex(text, "^from_hf: ")

    def test_pyl3_a_configuration_gives_the_form_with_initial_values_of_its_own(self):
        config = config_of(transformers.DeepseekV3Config)
        torch.manual_seed(1)
        moe = troupe.MoE.from_hf(config, std=0.05, balance="seq", aux_loss=0.1)
        self.assertEqual((moe.gate.rule["groups"], moe.gate.kind, moe.options.shared_hidden), ((4, 2, 2), "sigmoid_bias", 20))
        self.assertLess(abs(moe.experts.gate_up_proj.std().item() - 0.05), 0.005)
        y, aux = moe(torch.randn(2, T, D))
        self.assertGreater(aux.loss.item(), 0)
        block = hf_layer._block_of(config)
        block.load_state_dict(moe.to_hf_state_dict())
        x = torch.randn(2, T, D)
        self.near(moe(x)[0], block(x), "y")

    def test_pyl3_16_bits_and_what_a_layer_does_beyond_a_block(self):
        block = block_of("qwen3_moe").to(torch.bfloat16)
        moe = troupe.MoE.from_hf(block, recompute="layer", losses="attach", balance="aux")
        x = torch.randn(2, T, D, dtype=torch.bfloat16, requires_grad=True)
        y = moe(x)
        y.float().sum().backward()
        self.assertEqual((y.dtype, moe.experts.down_proj.dtype), (torch.bfloat16, torch.bfloat16))
        self.assertLess((y.float() - block(x).float()).abs().max().item(), 0.05 * block(x).float().abs().max().item())

    def test_pyl3_what_has_no_place_or_no_rule_is_refused(self):
        block = block_of("mixtral")
        block.extra = torch.nn.Parameter(torch.zeros(1))
        cases = {"tensors without a place in troupe.MoE: extra": block, "holds no experts": torch.nn.Linear(2, 2),
                 "is on the meta device": block_of("olmoe").to("meta")}
        own = block_of("olmoe")
        forward = own.forward
        own.forward = lambda x: forward(x) * 1.5
        cases["no router of troupe.MoE gives the output of OlmoeSparseMoeBlock; the nearest is ...e-01"] = own
        for text, bad in cases.items():
            with self.subTest(text), self.assertRaisesRegex(troupe.Unsupported, text):
                troupe.MoE.from_hf(bad)
        with self.assertRaisesRegex(troupe.Unsupported, "came from no transformers block"):
            troupe.MoE(D, 4, 2, 8).to_hf_state_dict()
        self.assertFalse(hf.is_decorated(torch.nn.Linear(2, 2)))


if __name__ == "__main__":
    unittest.main()
