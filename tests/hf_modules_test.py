"""`troupe diff --modules` beside transformers: what troupe.record_modules writes agrees module by module, and a planted difference is
named by the first module that has it. Tiny random models, fp32, on the CPU."""
import contextlib
import io
import json
import unittest

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from tiny_hub import FolderTest, random_model
from troupe_package import troupe
from troupe.modules import main

SMALL = dict(vocab_size=96, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=64, intermediate_size=48, rms_norm_eps=1e-5)
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, beta_fast=32.0, beta_slow=1.0, original_max_position_embeddings=16)
# A family for each way in which modules are built or named.
FAMILIES = {
    "mixtral": dict(SMALL, num_local_experts=4, num_experts_per_tok=2),
    "olmoe": dict(SMALL, num_experts=4, num_experts_per_tok=2, clip_qkv=8.0, eos_token_id=3),
    "qwen2_moe": dict(SMALL, moe_intermediate_size=32, num_experts=4, num_experts_per_tok=2, shared_expert_intermediate_size=40,
                      mlp_only_layers=[1]),
    "deepseek_v3": dict(SMALL, num_key_value_heads=4, moe_intermediate_size=32, n_routed_experts=4, num_experts_per_tok=2,
                        n_shared_experts=1, first_k_dense_replace=1, kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=8,
                        v_head_dim=16, q_lora_rank=24, n_group=2, topk_group=1,
                        rope_parameters=dict(YARN, mscale=1.0, mscale_all_dim=1.0)),
    "gpt_oss": dict(SMALL, head_dim=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=8,
                    rope_parameters=dict(YARN, truncate=False)),
    "flex_olmo": dict(SMALL, num_experts=4, num_experts_per_tok=2, pad_token_id=0, eos_token_id=1),
    "llama": dict(SMALL, tie_word_embeddings=True),
    "gpt2": dict(vocab_size=96, n_embd=64, n_layer=2, n_head=4, n_positions=64),
}


class HfModules(FolderTest):
    def saved(self, family, **more):
        """A model of transformers and the folder that it is saved in."""
        model = random_model(AutoConfig.for_model(family, **dict(FAMILIES[family], **more)), torch.float32)
        model.save_pretrained(self.folder / family)
        return model

    def record(self, model, ids=None):
        ids = torch.randint(96, (2, 9)) if ids is None else ids
        return troupe.record_modules(model, ids, self.folder / "outputs.safetensors")

    def compare(self, a, b="outputs.safetensors", code=0):
        return json.loads(self.troupe("diff", "--modules", a, b, "--json", code=code))

    def test_253_every_module_agrees_with_transformers(self):
        for family in FAMILIES:
            with self.subTest(family):
                model = self.saved(family)
                names = self.record(model)
                found = self.compare(family)
                self.assertEqual(found["first"], "")
                compared = [m["name"] for m in found["modules"]]
                self.assertEqual(compared, [name for name in names if name in compared])  # transformers' order
                self.assertEqual(compared[-1], "lm_head")
                layer = "transformer.h.1" if family == "gpt2" else "model.layers.1"
                self.assertGreaterEqual(sum(name.startswith(layer) for name in compared), 5)
                self.assertLess(max(m["max_rel"] for m in found["modules"]), 1e-4)

    def test_253_the_first_module_with_a_planted_difference_is_named(self):
        plants = {
            "model.layers.1.post_attention_layernorm": lambda m: m.layers[1].post_attention_layernorm.weight[3].add_(0.5),
            "model.layers.0.self_attn": lambda m: m.layers[0].self_attn.k_proj.weight.mul_(1.1),
            "model.layers.1.mlp.gate": lambda m: m.layers[1].mlp.gate.weight[2].mul_(1.1),
            "model.layers.0.mlp": lambda m: m.layers[0].mlp.experts.down_proj.mul_(1.1),
            "model.norm": lambda m: m.norm.weight.mul_(1.1),
        }
        for name, plant in plants.items():
            with self.subTest(name):
                model = self.saved("mixtral")
                with torch.no_grad():
                    plant(model.model)
                self.record(model)
                found = self.compare("mixtral", code=1)
                self.assertEqual(found["first"], name)
                before = [m["name"] for m in found["modules"]].index(name)
                self.assertFalse(any(m["differs"] for m in found["modules"][:before]))
                said = self.troupe("diff", "--modules", "mixtral", "outputs.safetensors", code=1)
                self.assertIn(f"{name} is the first module whose output differs", said)
                self.troupe("diff", "--modules", "mixtral", "outputs.safetensors", "--within", "1e9")

    def test_253_an_import_agrees_with_its_folder_and_with_the_record(self):
        self.saved("mixtral")
        self.troupe("import", "mixtral", "run")
        words = [str(self.folder / "mixtral"), "-o", str(self.folder / "outputs.safetensors")]  # python -m troupe.modules
        with contextlib.redirect_stdout(io.StringIO()) as said:
            for more, tokens in (([], 32), (["--ids", "5", "17", "3"], 3)):
                main(words + more)
                self.assertRegex(said.getvalue(), rf"\d+ modules, {tokens} tokens\n$")
                found = self.compare("run")
                self.assertEqual((found["first"], found["modules"][0]["shape"]), ("", [1, tokens, 64]))
        with contextlib.redirect_stderr(io.StringIO()) as said, self.assertRaises(SystemExit):
            main([*words, "--ids", "96"])
        self.assertIn("96 is not a token of the model, which has 96", said.getvalue())
        found = self.compare("run", "mixtral")
        self.assertEqual((found["first"], found["modules"][0]["name"]), ("", "embed.tokens"))
        self.assertLess(max(m["max_rel"] for m in found["modules"]), 1e-6)

    def test_253_the_model_is_left_as_it_was(self):
        model = self.saved("mixtral").train()
        self.record(model, torch.tensor([1, 5, 3]))
        self.assertTrue(all(module.training for module in model.modules()))
        self.assertFalse(any(module._forward_hooks for module in model.modules()))
        self.assertEqual(load_file(self.folder / "outputs.safetensors")["input_ids"].tolist(), [[1, 5, 3]])
        with self.assertRaisesRegex(ValueError, "whole numbers"):
            self.record(model, torch.zeros(2, 3))

    def test_253_a_file_that_does_not_fit_is_refused_with_all_that_is_missing(self):
        self.record(self.saved("mixtral"))
        file = self.folder / "outputs.safetensors"
        whole = load_file(file)

        def said(code, *words, **changed):
            save_file({name: t for name, t in dict(whole, **changed).items() if t is not None}, file)
            return self.troupe("diff", "--modules", *(words or ("mixtral", file)), code=code)

        lost = said(4, **{"model.norm": None, "model.layers.1.mlp.gate": whole["model.layers.1.mlp.gate"][:, :3].contiguous(),
                          "model.layers.2": whole["model.layers.1"].clone()})
        for part in ("E4005", "missing: model.norm", "model.layers.1.mlp.gate is [18, 3] there and [18, 4]", "model.layers.2"):
            self.assertIn(part, lost)
        self.assertIn("vocabulary has 96 tokens", said(3, input_ids=whole["input_ids"] + 90))
        self.assertIn("troupe.record_modules", said(4, input_ids=None))
        self.assertIn("first name a run or a model's folder", said(2, file, "mixtral"))
        self.assertIn("--within", said(2, "mixtral", file, "--within=-1"))


if __name__ == "__main__":
    unittest.main()
