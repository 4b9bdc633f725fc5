"""Whole models against Hugging Face transformers: logits, loss and every gradient, of each family.

Tiny random models, fp32, on the CPU. The weights go through the files that transformers saves and
our tables of names (checkpoint/hf/families); tests/model_run.cpp runs ours.
"""
import os
import pathlib
import subprocess
import tempfile
import unittest

import torch
from safetensors.torch import load_file
from transformers import (DbrxConfig, DbrxForCausalLM, DeepseekV2Config, DeepseekV2ForCausalLM,
                          DeepseekV3Config, DeepseekV3ForCausalLM, Dots1Config, Dots1ForCausalLM, Ernie4_5_MoeConfig, Ernie4_5_MoeForCausalLM, FlexOlmoConfig,
                          FlexOlmoForCausalLM, Glm4MoeConfig, Glm4MoeForCausalLM, Glm4MoeLiteConfig, Glm4MoeLiteForCausalLM, GPT2Config,
                          GPT2LMHeadModel, GptOssConfig, GptOssForCausalLM, GraniteMoeConfig, GraniteMoeForCausalLM,
                          GraniteMoeSharedConfig, GraniteMoeSharedForCausalLM,
                          HunYuanMoEV1Config, HunYuanMoEV1ForCausalLM, LlamaConfig, LlamaForCausalLM, MiniMaxM2Config,
                          MiniMaxM2ForCausalLM, MistralConfig, MistralForCausalLM, MixtralConfig, MixtralForCausalLM, OlmoeConfig, OlmoeForCausalLM, Qwen2Config,
                          Qwen2ForCausalLM, Qwen2MoeConfig, Qwen2MoeForCausalLM, Qwen3Config, Qwen3ForCausalLM,
                          Qwen3MoeConfig, Qwen3MoeForCausalLM, Qwen3NextConfig, Qwen3NextForCausalLM, SolarOpenConfig, SolarOpenForCausalLM)

PROGRAM = pathlib.Path(os.environ["TROUPE_BUILD"], "model_run")
VOCAB, BATCH, SEQUENCE = 96, 2, 40
COMMON = dict(hidden_size=32, num_hidden_layers=2, vocab_size=VOCAB, max_position_embeddings=64,
              num_attention_heads=4, attention_dropout=0.0, use_cache=False)
SHAPE = f"layers: 2, width: 32, heads: 4, vocab: {VOCAB}, max_positions: 64, "


def relative(got, want):
    return ((got - want).abs().max() / want.abs().max().clamp_min(1e-30)).item()


def seeded(kind, config):
    torch.manual_seed(3)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    made = kind(config).float().train()
    with torch.no_grad():
        for name, p in made.named_parameters():
            p.normal_(std=0.2)
            if p.dim() == 1 and ("norm" in name or "ln_" in name) and name.endswith("weight"):
                p.add_(1)
    return made


class Models(unittest.TestCase):
    def compare(self, family, theirs, config, bound=1e-4, sequence=SEQUENCE):
        torch.manual_seed(4)
        ids = torch.randint(VOCAB, (BATCH, sequence + 1))
        sent = {"ids": ids[:, :-1].contiguous(), "labels": ids[:, 1:].contiguous()}
        logits = theirs(input_ids=sent["ids"]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), sent["labels"].flatten())
        loss.backward()
        with tempfile.TemporaryDirectory() as folder:
            theirs.save_pretrained(folder)
            weights = load_file(pathlib.Path(folder, "model.safetensors"))
            paths = [str(pathlib.Path(folder, name)) for name in ("c.yaml", "in.pt", "out.pt")]
            pathlib.Path(paths[0]).write_text("{" + config + "}")
            torch.save(sent | {k: v.clone() for k, v in weights.items()}, paths[1])
            subprocess.run([PROGRAM, family, *paths], check=True)
            got = torch.load(paths[2], weights_only=False)
        self.assertLess((got["logits"] - logits.detach()).abs().max().item(), bound)
        self.assertAlmostEqual(got["loss"].item(), loss.item(), delta=1e-5)
        gradients = {n: p.grad for n, p in theirs.named_parameters() if p.grad is not None}
        ours = {n[5:]: g for n, g in got.items() if n.startswith("grad.")}
        self.assertEqual(sorted(ours), sorted(gradients))
        for name, gradient in gradients.items():
            self.assertLess(relative(ours[name], gradient), 2e-3, name)
        return got

    def test_llama(self):
        config = LlamaConfig(**COMMON, intermediate_size=48, num_key_value_heads=2,
                             rms_norm_eps=1e-5, attention_bias=True, mlp_bias=True,
                             rope_parameters=dict(rope_type="llama3", rope_theta=500.0, factor=8.0,
                                                  low_freq_factor=1.0, high_freq_factor=4.0,
                                                  original_max_position_embeddings=16))
        self.compare("llama", seeded(LlamaForCausalLM, config),
                     SHAPE + "kv_heads: 2, ffn: 48, bias: true, norm: {eps: 1e-5}, rope: {theta: "
                     "500, scaling: llama3, factor: 8, original_positions: 16}")

    def test_llama_tied(self):
        config = LlamaConfig(**COMMON, intermediate_size=48, rms_norm_eps=1e-6,
                             tie_word_embeddings=True,
                             rope_parameters=dict(rope_type="linear", rope_theta=10000.0,
                                                  factor=4.0))
        self.compare("llama", seeded(LlamaForCausalLM, config),
                     SHAPE + "ffn: 48, tie_embeddings: true, norm: {eps: 1e-6}, rope: {scaling: "
                     "linear, factor: 4}")

    def test_mistral(self):
        config = MistralConfig(**COMMON, intermediate_size=48, num_key_value_heads=2, head_dim=16, sliding_window=7,
                               rms_norm_eps=1e-5, rope_parameters=dict(rope_type="default", rope_theta=1e6))
        self.compare("mistral", seeded(MistralForCausalLM, config),
                     SHAPE + "kv_heads: 2, head_dim: 16, ffn: 48, window: 7, norm: {eps: 1e-5}, rope: {theta: 1000000}")

    def test_qwen2(self):
        config = Qwen2Config(**COMMON, intermediate_size=48, num_key_value_heads=2, use_sliding_window=True,
                             sliding_window=7, max_window_layers=1, rms_norm_eps=1e-6,
                             rope_parameters=dict(rope_type="default", rope_theta=1e6))
        self.compare("qwen2", seeded(Qwen2ForCausalLM, config),
                     SHAPE + "kv_heads: 2, ffn: 48, qkv_bias: true, window: 7, window_layers: '[0,1]', "
                     "norm: {eps: 1e-6}, rope: {theta: 1000000}")

    def test_qwen3(self):
        config = Qwen3Config(**COMMON, intermediate_size=48, num_key_value_heads=2, head_dim=16,
                             tie_word_embeddings=True, rms_norm_eps=1e-6,
                             rope_parameters=dict(rope_type="default", rope_theta=1e6))
        self.compare("qwen3", seeded(Qwen3ForCausalLM, config),
                     SHAPE + "kv_heads: 2, head_dim: 16, ffn: 48, qk_norm: head, tie_embeddings: true, "
                     "norm: {eps: 1e-6}, rope: {theta: 1000000}")

    def test_qwen2_moe(self):
        config = Qwen2MoeConfig(**COMMON, num_key_value_heads=2, moe_intermediate_size=12, intermediate_size=40,
                                shared_expert_intermediate_size=20, num_experts=8, num_experts_per_tok=3,
                                norm_topk_prob=False, mlp_only_layers=[0], rms_norm_eps=1e-6,
                                rope_parameters=dict(rope_type="default", rope_theta=1e6))
        self.compare("qwen2_moe", seeded(Qwen2MoeForCausalLM, config),
                     SHAPE + "kv_heads: 2, qkv_bias: true, norm: {eps: 1e-6}, ffn: 40, first_dense: 1, rope: {theta: "
                     "1000000}, moe: {experts: 8, top_k: 3, hidden: 12, shared: {experts: 1, hidden: 20, form: gate}, "
                     "router: {kind: topk_softmax, order: before}}")

    def test_glm4_moe(self):
        config = Glm4MoeConfig(**COMMON, num_key_value_heads=2, head_dim=16, moe_intermediate_size=12,
                               intermediate_size=40, n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=2,
                               n_group=4, topk_group=2, first_k_dense_replace=1, routed_scaling_factor=2.5,
                               use_qk_norm=True, attention_bias=True, num_nextn_predict_layers=0, rms_norm_eps=1e-5,
                               rope_parameters=dict(rope_type="default", rope_theta=1e6, partial_rotary_factor=0.5))
        theirs = seeded(Glm4MoeForCausalLM, config)
        theirs.model.layers[1].mlp.gate.e_score_correction_bias.normal_(std=0.1)
        self.compare("glm4_moe", theirs,
                     SHAPE + "kv_heads: 2, head_dim: 16, qk_norm: head, qkv_bias: true, norm: {eps: 1e-5}, ffn: 40, "
                     "first_dense: 1, rope: {theta: 1000000, fraction: 0.5}, moe: {experts: 8, top_k: 2, hidden: 12, "
                     "shared: {experts: 1}, router: {kind: sigmoid_bias, scale: 2.5, limit: {groups: 4, keep: 2, "
                     "top: 2}}}")

    def test_dots1(self):
        config = Dots1Config(**COMMON, num_key_value_heads=2, head_dim=16, moe_intermediate_size=12, intermediate_size=40,
                             n_routed_experts=8, n_shared_experts=2, num_experts_per_tok=2, n_group=4, topk_group=2,
                             first_k_dense_replace=1, routed_scaling_factor=2.5, norm_topk_prob=True, sliding_window=9,
                             max_window_layers=1, rms_norm_eps=1e-5,
                             rope_parameters=dict(rope_type="default", rope_theta=1e6))
        theirs = seeded(Dots1ForCausalLM, config)
        theirs.model.layers[1].mlp.gate.e_score_correction_bias.normal_(std=0.1)
        self.compare("dots1", theirs,
                     SHAPE + "kv_heads: 2, head_dim: 16, qk_norm: head, norm: {eps: 1e-5}, ffn: 40, first_dense: 1, "
                     "window: 9, window_layers: '[0,1]', rope: {theta: 1000000}, moe: {experts: 8, top_k: 2, hidden: 12, "
                     "shared: {experts: 2}, router: {kind: sigmoid_bias, scale: 2.5, limit: {groups: 4, keep: 2, top: 2}}}")

    def test_solar_open(self):
        config = SolarOpenConfig(**COMMON, num_key_value_heads=2, head_dim=16, moe_intermediate_size=12, n_routed_experts=8,
                                 n_shared_experts=1, num_experts_per_tok=2, n_group=1, topk_group=1,
                                 routed_scaling_factor=1.5, attention_bias=True, rms_norm_eps=1e-5,
                                 rope_parameters=dict(rope_type="default", rope_theta=1e6, partial_rotary_factor=1.0))
        theirs = seeded(SolarOpenForCausalLM, config)
        theirs.model.layers[1].mlp.gate.e_score_correction_bias.normal_(std=0.1)
        self.compare("solar_open", theirs,
                     SHAPE + "kv_heads: 2, head_dim: 16, qkv_bias: true, norm: {eps: 1e-5}, rope: {theta: 1000000}, moe: "
                     "{experts: 8, top_k: 2, hidden: 12, shared: {experts: 1}, router: {kind: sigmoid_bias, scale: 1.5}}")

    def test_glm4_moe_lite(self):
        config = Glm4MoeLiteConfig(**COMMON, q_lora_rank=16, kv_lora_rank=20, qk_nope_head_dim=12, qk_rope_head_dim=8,
                                   v_head_dim=10, intermediate_size=40, moe_intermediate_size=12, n_routed_experts=8,
                                   n_shared_experts=1, num_experts_per_tok=2, n_group=4, topk_group=2,
                                   routed_scaling_factor=1.8, num_key_value_heads=4, rms_norm_eps=1e-6,
                                   mlp_layer_types=["dense", "sparse"],
                                   rope_parameters=dict(rope_type="default", rope_theta=1e6))
        theirs = seeded(Glm4MoeLiteForCausalLM, config)
        theirs.model.layers[1].mlp.gate.e_score_correction_bias.normal_(std=0.1)
        self.compare("glm4_moe_lite", theirs,
                     SHAPE + self.MLA % ", q_rank: 16" + "rope: {theta: 1000000, interleaved: true}, moe: {experts: 8, "
                     "top_k: 2, hidden: 12, shared: {experts: 1}, router: {kind: sigmoid_bias, scale: 1.8, limit: {groups: "
                     "4, keep: 2, top: 2}}}")

    def test_granitemoeshared(self):
        config = GraniteMoeSharedConfig(**COMMON, num_key_value_heads=2, intermediate_size=12, num_local_experts=4,
                                        num_experts_per_tok=2, shared_intermediate_size=20, rms_norm_eps=1e-6,
                                        attention_multiplier=8 ** -0.5,
                                        rope_parameters=dict(rope_type="default", rope_theta=1e4))
        self.compare("granitemoeshared", seeded(GraniteMoeSharedForCausalLM, config),
                     SHAPE + "kv_heads: 2, norm: {eps: 1e-6}, moe: {experts: 4, top_k: 2, hidden: 12, shared: {experts: 1, "
                     "hidden: 20}, router: {kind: topk_softmax, order: after}}")

    def test_ernie4_5_moe(self):
        config = Ernie4_5_MoeConfig(**{k: v for k, v in COMMON.items() if k != "attention_dropout"}, num_key_value_heads=2,
                                    moe_intermediate_size=12, intermediate_size=40, moe_num_experts=8, moe_k=3,
                                    moe_num_shared_experts=2, moe_layer_start_index=1, tie_word_embeddings=False,
                                    pad_token_id=None,
                                    rms_norm_eps=1e-5, rope_parameters=dict(rope_type="default", rope_theta=5e5))
        theirs = seeded(Ernie4_5_MoeForCausalLM, config)
        with torch.no_grad():
            theirs.model.layers[1].mlp.gate.moe_statics.e_score_correction_bias.normal_(std=0.1)
        self.compare("ernie4_5_moe", theirs,
                     SHAPE + "kv_heads: 2, norm: {eps: 1e-5}, ffn: 40, first_dense: 1, rope: {theta: 500000, interleaved: "
                     "true}, moe: {experts: 8, top_k: 3, hidden: 12, shared: {experts: 2}, router: {kind: sigmoid_bias, "
                     "score: softmax}}")

    def test_flex_olmo(self):
        config = FlexOlmoConfig(**COMMON, num_key_value_heads=2, intermediate_size=12, num_experts=8, num_experts_per_tok=3,
                                rms_norm_eps=1e-6, pad_token_id=None, eos_token_id=1,
                                rope_parameters=dict(rope_type="default", rope_theta=5e5))
        self.compare("flex_olmo", seeded(FlexOlmoForCausalLM, config),
                     SHAPE + "kv_heads: 2, norm: {eps: 1e-6}, qk_norm: whole, block: {kind: post_norm}, rope: {theta: "
                     "500000}, moe: {experts: 8, top_k: 3, hidden: 12, router: {kind: topk_softmax, order: before}}")

    def test_granitemoe(self):
        config = GraniteMoeConfig(**COMMON, num_key_value_heads=2, intermediate_size=12, num_local_experts=8,
                                  num_experts_per_tok=3, rms_norm_eps=1e-6, attention_bias=True,
                                  attention_multiplier=8 ** -0.5,
                                  rope_parameters=dict(rope_type="default", rope_theta=5e5))
        self.compare("granitemoe", seeded(GraniteMoeForCausalLM, config),
                     SHAPE + "kv_heads: 2, norm: {eps: 1e-6}, qkv_bias: true, out_bias: true, rope: {theta: 500000}, moe: "
                     "{experts: 8, top_k: 3, hidden: 12, router: {kind: topk_softmax, order: after}}")

    def test_hunyuan_v1_moe(self):
        config = HunYuanMoEV1Config(**COMMON, num_key_value_heads=2, head_dim=16, intermediate_size=12, num_experts=8,
                                    moe_topk=3, rms_norm_eps=1e-5, pad_token_id=None,
                                    rope_parameters=dict(rope_type="default", rope_theta=5e5))
        self.compare("hunyuan_v1_moe", seeded(HunYuanMoEV1ForCausalLM, config),
                     SHAPE + "kv_heads: 2, head_dim: 16, norm: {eps: 1e-5}, qk_norm: head_turned, rope: {theta: 500000}, "
                     "moe: {experts: 8, top_k: 3, hidden: 12, shared: {experts: 1}, router: {kind: topk_softmax, order: "
                     "before, p_norm: 1}}")

    def test_minimax_m2(self):
        config = MiniMaxM2Config(**COMMON, num_key_value_heads=2, head_dim=16, intermediate_size=12, num_local_experts=8,
                                 num_experts_per_tok=3, rms_norm_eps=1e-6,
                                 rope_parameters=dict(rope_type="default", rope_theta=5e6, partial_rotary_factor=0.5))
        theirs = seeded(MiniMaxM2ForCausalLM, config)
        for layer in theirs.model.layers:
            layer.mlp.e_score_correction_bias.normal_(std=0.1)
        self.compare("minimax_m2", theirs,
                     SHAPE + "kv_heads: 2, head_dim: 16, norm: {eps: 1e-6}, qk_norm: whole, rope: {theta: 5000000, "
                     "fraction: 0.5}, moe: {experts: 8, top_k: 3, hidden: 12, router: {kind: sigmoid_bias}}")

    def test_gpt2(self):
        config = GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=64, n_inner=40,
                            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False)
        self.compare("gpt2", seeded(GPT2LMHeadModel, config),
                     SHAPE + "ffn: 40, bias: true, norm: {kind: layer, eps: 1e-5, bias: true}, positions: learned, act: "
                     "gelu_tanh, tie_embeddings: true")

    def test_mixtral(self):
        config = MixtralConfig(**COMMON, intermediate_size=24, num_key_value_heads=2,
                               num_local_experts=4, num_experts_per_tok=2, sliding_window=7,
                               rms_norm_eps=1e-5, rope_parameters=dict(rope_type="default",
                                                                       rope_theta=1e6))
        self.compare("mixtral", seeded(MixtralForCausalLM, config),
                     SHAPE + "kv_heads: 2, window: 7, norm: {kind: rms_rounded}, rope: {theta: "
                     "1000000}, moe: {experts: 4, top_k: 2, hidden: 24, router: {kind: "
                     "topk_softmax, order: after}}")

    def test_qwen3_moe(self):
        config = Qwen3MoeConfig(**COMMON, num_key_value_heads=2, head_dim=16,
                                moe_intermediate_size=12, intermediate_size=40, num_experts=8,
                                num_experts_per_tok=3, norm_topk_prob=True, mlp_only_layers=[0],
                                rms_norm_eps=1e-6, rope_parameters=dict(rope_type="default",
                                                                        rope_theta=1e6))
        self.compare("qwen3_moe", seeded(Qwen3MoeForCausalLM, config),
                     SHAPE + "kv_heads: 2, head_dim: 16, qk_norm: head, norm: {eps: 1e-6}, ffn: 40,"
                     " first_dense: 1, rope: {theta: 1000000}, moe: {experts: 8, top_k: 3, hidden: "
                     "12, router: {kind: topk_softmax, order: before, p_norm: 1}}")

    # Rows of 150 tokens: two whole chunks of the linear layers, and a part of one.
    def test_qwen3_next(self):
        config = Qwen3NextConfig(**COMMON | dict(max_position_embeddings=160), num_key_value_heads=2, head_dim=16,
                                 moe_intermediate_size=12, intermediate_size=40, shared_expert_intermediate_size=20,
                                 num_experts=8, num_experts_per_tok=3, norm_topk_prob=True, rms_norm_eps=1e-6,
                                 linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=6,
                                 linear_value_head_dim=10, layer_types=["linear_attention", "full_attention"],
                                 rope_parameters=dict(rope_type="default", rope_theta=1e6, partial_rotary_factor=0.25))
        self.compare("qwen3_next", seeded(Qwen3NextForCausalLM, config),
                     "layers: 2, width: 32, heads: 4, vocab: 96, max_positions: 160, kv_heads: 2, head_dim: 16, qk_norm: "
                     "head, attn_gate: true, norm: {eps: 1e-6}, rope: {theta: 1000000, fraction: 0.25}, delta: {layers: "
                     "'[1,0]', key_heads: 2, value_heads: 4, key_dim: 6, value_dim: 10}, moe: {experts: 8, top_k: 3, "
                     "hidden: 12, shared: {experts: 1, hidden: 20, form: gate}, router: {kind: topk_softmax, order: "
                     "before, p_norm: 1}}", sequence=150)

    def test_olmoe(self):
        config = OlmoeConfig(**COMMON, intermediate_size=12, num_key_value_heads=4, num_experts=8,
                             num_experts_per_tok=3, norm_topk_prob=False, clip_qkv=0.9,
                             rms_norm_eps=1e-5, pad_token_id=None, eos_token_id=2,
                             rope_parameters=dict(rope_type="default", rope_theta=1e4))
        self.compare("olmoe", seeded(OlmoeForCausalLM, config),
                     SHAPE + "qk_norm: whole, clip_qkv: 0.9, norm: {eps: 1e-5}, moe: {experts: 8, "
                     "top_k: 3, hidden: 12, router: {kind: topk_softmax, order: before}}")

    def test_dbrx(self):
        config = DbrxConfig(d_model=32, n_heads=4, n_layers=2, max_seq_len=64, vocab_size=VOCAB,
                            attn_config=dict(kv_n_heads=2, clip_qkv=0.8, rope_theta=10000.0),
                            ffn_config=dict(ffn_hidden_size=12, moe_num_experts=4, moe_top_k=2,
                                            moe_jitter_eps=0.0, hidden_size=32,
                                            ffn_act_fn={"name": "silu"}),
                            use_cache=False, resid_pdrop=0.0, emb_pdrop=0.0)
        self.compare("dbrx", seeded(DbrxForCausalLM, config),
                     SHAPE + "kv_heads: 2, clip_qkv: 0.8, norm: {kind: layer, eps: 1e-5}, moe: "
                     "{experts: 4, top_k: 2, hidden: 12, router: {kind: topk_softmax, order: "
                     "before, p_norm: 1}}")

    MLA = ("mla: {kv_rank: 20, nope_dim: 12, rope_dim: 8, value_dim: 10%s}, ffn: 40, first_dense: 1,"
           " norm: {eps: 1e-6}, ")

    def test_deepseek_v2(self):
        config = DeepseekV2Config(**COMMON, q_lora_rank=None, kv_lora_rank=20, qk_nope_head_dim=12,
                                  qk_rope_head_dim=8, v_head_dim=10, intermediate_size=40,
                                  moe_intermediate_size=12, n_routed_experts=8, n_shared_experts=2,
                                  num_experts_per_tok=3, first_k_dense_replace=1,
                                  routed_scaling_factor=1.0, topk_method="greedy",
                                  norm_topk_prob=False, num_key_value_heads=4, rms_norm_eps=1e-6,
                                  head_dim=8,
                                  rope_parameters=dict(rope_type="default", rope_theta=1e4))
        self.compare("deepseek_v2", seeded(DeepseekV2ForCausalLM, config),
                     SHAPE + self.MLA % "" + "rope: {interleaved: true}, moe: {experts: 8, top_k: "
                     "3, hidden: 12, shared: {experts: 2}, router: {kind: topk_softmax, order: "
                     "before}}")

    def test_deepseek_v3(self):
        rope = dict(rope_type="yarn", rope_theta=1e4, factor=4.0, beta_fast=8.0, beta_slow=1.0,
                    mscale=1.0, mscale_all_dim=1.0, original_max_position_embeddings=16)
        config = DeepseekV3Config(**COMMON, q_lora_rank=16, kv_lora_rank=20, qk_nope_head_dim=12,
                                  qk_rope_head_dim=8, v_head_dim=10, intermediate_size=40,
                                  moe_intermediate_size=12, n_routed_experts=8, n_shared_experts=1,
                                  num_experts_per_tok=2, first_k_dense_replace=1, n_group=4,
                                  topk_group=2, routed_scaling_factor=2.5, norm_topk_prob=True,
                                  num_key_value_heads=4, rms_norm_eps=1e-6, rope_parameters=rope)
        theirs = seeded(DeepseekV3ForCausalLM, config)
        theirs.model.layers[1].mlp.gate.e_score_correction_bias.normal_(std=0.1)
        self.compare("deepseek_v3", theirs,
                     SHAPE + self.MLA % ", q_rank: 16" + "rope: {interleaved: true, scaling: yarn, "
                     "factor: 4, beta_fast: 8, mscale: 1, mscale_all_dim: 1, original_positions: "
                     "16}, moe: {experts: 8, top_k: 2, hidden: 12, shared: {experts: 1}, router: "
                     "{kind: sigmoid_bias, scale: 2.5, limit: {groups: 4, keep: 2, top: 2}}}")

    def test_gpt_oss(self):
        rope = dict(rope_type="yarn", rope_theta=1.5e4, factor=4.0, beta_fast=8.0, beta_slow=1.0,
                    truncate=False, original_max_position_embeddings=16)
        config = GptOssConfig(**COMMON, intermediate_size=12, num_key_value_heads=2, head_dim=16,
                              num_local_experts=4, num_experts_per_tok=2, sliding_window=9,
                              rms_norm_eps=1e-5, rope_parameters=rope)
        self.compare("gpt_oss", seeded(GptOssForCausalLM, config),
                     SHAPE + "kv_heads: 2, head_dim: 16, bias: true, sinks: true, window: 9, "
                     "window_layers: '2', norm: {eps: 1e-5}, rope: {theta: 15000, scaling: yarn, "
                     "factor: 4, beta_fast: 8, truncate: false, original_positions: 16}, moe: "
                     "{experts: 4, top_k: 2, hidden: 12, activation: quick_gelu, clamp: 7, offset: "
                     "1, bias: true, router: {kind: topk_softmax, order: after, bias: true}}")


if __name__ == "__main__":
    unittest.main()
