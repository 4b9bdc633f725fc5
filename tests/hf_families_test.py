"""Families of the hub through `troupe import`, `export` and `generate`: what is imported continues a text as transformers
does, and an export has transformers' logits again, with eager attention and with SDPA."""
import json
import unittest

import torch
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM

from tiny_hub import FolderTest, random_model

VOCAB, PRINTED = 280, range(34, 128)  # a byte's id is the byte + 1: "!" to "~"; 0 ends a text
SMALL = dict(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=64, eos_token_id=VOCAB - 1, pad_token_id=None, bos_token_id=None,
             tie_word_embeddings=False)
FAMILIES = {
    "ernie4_5_moe": dict(intermediate_size=40, moe_intermediate_size=24, moe_num_experts=8, moe_k=3),
    "flex_olmo": dict(intermediate_size=24, num_experts=8, num_experts_per_tok=3),
    # The multipliers of the published Granite 3.
    "granitemoe": dict(intermediate_size=24, num_local_experts=8, num_experts_per_tok=3, embedding_multiplier=12.0,
                       residual_multiplier=0.22, attention_multiplier=0.015625, logits_scaling=6.0),
    "dots1": dict(intermediate_size=48, moe_intermediate_size=24, n_routed_experts=8, n_shared_experts=1,
                  num_experts_per_tok=3, first_k_dense_replace=1, norm_topk_prob=True, routed_scaling_factor=2.5),
    "solar_open": dict(moe_intermediate_size=24, n_routed_experts=8, num_experts_per_tok=3, head_dim=8),
    "glm4_moe_lite": dict(num_key_value_heads=4, intermediate_size=48, moe_intermediate_size=32, n_routed_experts=4,
                          num_experts_per_tok=2, n_shared_experts=1, kv_lora_rank=16, qk_nope_head_dim=16,
                          qk_rope_head_dim=8, v_head_dim=16, q_lora_rank=24),
    # The multipliers of the published Granite 3, which its shared part has too.
    "granitemoeshared": dict(intermediate_size=24, num_local_experts=8, num_experts_per_tok=3, embedding_multiplier=12.0,
                             residual_multiplier=0.22, attention_multiplier=0.015625, logits_scaling=6.0,
                             shared_intermediate_size=40),
    "qwen3_next": dict(num_hidden_layers=4, moe_intermediate_size=24, num_experts=8, num_experts_per_tok=3,
                       shared_expert_intermediate_size=20, head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4,
                       linear_key_head_dim=8, linear_value_head_dim=12),
    "hunyuan_v1_moe": dict(intermediate_size=24, num_experts=8, moe_topk=3, head_dim=8, rope_parameters=dict(
        rope_type="dynamic", type="dynamic", rope_theta=1e4, alpha=50.0, factor=1.0)),
    "minimax_m2": dict(intermediate_size=24, num_local_experts=8, num_experts_per_tok=3, head_dim=8, rope_parameters=dict(
        rope_type="default", rope_theta=5e6, partial_rotary_factor=0.5)),
    "deepseek_v3": dict(num_key_value_heads=4, intermediate_size=48, moe_intermediate_size=32, n_routed_experts=4,
                        num_experts_per_tok=2, n_shared_experts=1, first_k_dense_replace=1, kv_lora_rank=16,
                        qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16, q_lora_rank=24, n_group=1, topk_group=1,
                        num_nextn_predict_layers=0),
}


class Families(FolderTest):
    def save(self, family):
        model = random_model(AutoConfig.for_model(family, **SMALL | FAMILIES[family]), torch.float32)
        with torch.no_grad():
            # Logits of the others are 0, which is never the largest.
            model.lm_head.weight[:PRINTED.start] = 0
            model.lm_head.weight[PRINTED.stop:] = 0
            for name, buffer in model.named_buffers():
                if name.endswith("e_score_correction_bias"):
                    buffer.normal_(std=0.1)
        model.save_pretrained(self.folder / "hub")
        return AutoModelForCausalLM.from_pretrained(self.folder / "hub", dtype=torch.float32).eval()

    def tokenizer(self):
        (self.folder / "text.txt").write_text("the cat sat on the mat. " * 200)
        self.troupe("tokenizer", "train", "text.txt", "--output", "hub/tokenizer.json", "--vocab", 270)
        return Tokenizer.from_file(str(self.folder / "hub/tokenizer.json"))

    def continues(self, model, tokenizer, prompt, count=40):
        ids = torch.tensor([tokenizer.encode(prompt).ids])
        with torch.no_grad():
            for _ in range(count):
                ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], 1)
        return tokenizer.decode(ids[0].tolist())

    def check(self, family):
        model = self.save(family)
        tokenizer = self.tokenizer()
        self.troupe("import", "hub", "run", "--check-logits")
        want = self.continues(model, tokenizer, "the cat sat")
        self.assertEqual(self.troupe("generate", "run", "-p", "the cat sat", "-n", 40, "--temperature", 0).rstrip("\n"), want)
        self.troupe("export", "run", "back", "--dtype", "float32", "--check-logits")
        ids = torch.randint(0, VOCAB, (2, 40), generator=torch.Generator().manual_seed(1))
        for attention in ("eager", "sdpa"):
            one, two = (AutoModelForCausalLM.from_pretrained(self.folder / path, dtype=torch.float32,
                                                             attn_implementation=attention).eval()
                        for path in ("hub", "back"))
            with torch.no_grad():
                a, b = one(ids).logits, two(ids).logits
            self.assertGreater(a.abs().max().item(), 0.1)
            apart = (a - b).abs().max().item()
            print(f"{family}, {attention}: logits apart by {apart:.2g} of {a.abs().max().item():.3g}")
            self.assertLess(apart, 1e-4 * max(1, a.abs().max().item()), attention)

    def test_ernie4_5_moe(self):
        self.check("ernie4_5_moe")

    def test_flex_olmo(self):
        self.check("flex_olmo")

    def test_granitemoe_with_its_multipliers(self):
        self.check("granitemoe")
        made = json.loads((self.folder / "back/config.json").read_text())
        self.assertEqual((made["embedding_multiplier"], made["residual_multiplier"], made["logits_scaling"]), (1, 1, 1))

    def test_hunyuan_v1_moe_with_an_alpha(self):
        self.check("hunyuan_v1_moe")

    def test_dots1(self):
        self.check("dots1")

    def test_solar_open(self):
        self.check("solar_open")

    def test_glm4_moe_lite(self):
        self.check("glm4_moe_lite")

    def test_granitemoeshared_with_its_multipliers(self):
        self.check("granitemoeshared")

    def test_minimax_m2(self):
        self.check("minimax_m2")

    def test_qwen3_next(self):
        self.check("qwen3_next")

    def test_kimi_k2_is_deepseek_v3(self):
        model = self.save("deepseek_v3")
        path = self.folder / "hub/config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"model_type": "kimi_k2"}))
        tokenizer = self.tokenizer()
        self.troupe("import", "hub", "run", "--check-logits")
        want = self.continues(model, tokenizer, "the cat sat")
        self.assertEqual(self.troupe("generate", "run", "-p", "the cat sat", "-n", 40, "--temperature", 0).rstrip("\n"), want)
        self.troupe("export", "run", "back", "--dtype", "float32")
        two = AutoModelForCausalLM.from_pretrained(self.folder / "back", dtype=torch.float32).eval()
        self.assertEqual(two.config.model_type, "deepseek_v3")
        ids = torch.randint(0, VOCAB, (2, 40), generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            self.assertLess((model(ids).logits - two(ids).logits).abs().max().item(), 1e-4)


if __name__ == "__main__":
    unittest.main()
