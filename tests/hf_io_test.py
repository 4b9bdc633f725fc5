"""Import and export of Hugging Face folders, with transformers on the other side.

Each family as a tiny random model: transformers' folder into a checkpoint of ours and out again has
the same bytes in each tensor, and AutoModelForCausalLM gives the same logits for both, with eager attention and with SDPA.
"""
import json
import os
import pathlib
import shutil
import subprocess
import unittest

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from tiny_hub import FolderTest, random_model

PROGRAM = pathlib.Path(os.environ["TROUPE_BUILD"], "hf_io")
SMALL = dict(vocab_size=96, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5)
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, beta_fast=32.0, beta_slow=1.0,
            original_max_position_embeddings=16)
MLA = dict(SMALL, num_key_value_heads=4, intermediate_size=48, moe_intermediate_size=32,
           n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1, first_k_dense_replace=1,
           kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16)
FAMILIES = {
    "llama": dict(SMALL, intermediate_size=48, attention_bias=True, rope_parameters=dict(
        rope_type="llama3", rope_theta=5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=16)),
    "mistral": dict(SMALL, intermediate_size=48, head_dim=8, sliding_window=8),
    "qwen2": dict(SMALL, intermediate_size=48, use_sliding_window=True, sliding_window=8, max_window_layers=1),
    "qwen3": dict(SMALL, intermediate_size=48, head_dim=8, tie_word_embeddings=True),
    "qwen2_moe": dict(SMALL, intermediate_size=48, moe_intermediate_size=32, num_experts=4,
                      num_experts_per_tok=2, shared_expert_intermediate_size=40, mlp_only_layers=[1]),
    "glm4_moe": dict(SMALL, intermediate_size=48, moe_intermediate_size=32, n_routed_experts=4, num_experts_per_tok=2,
                     head_dim=16, use_qk_norm=True, attention_bias=True, num_nextn_predict_layers=0,
                     rope_parameters=dict(rope_type="default", rope_theta=1e6, partial_rotary_factor=0.5)),
    "ernie4_5_moe": dict(SMALL, intermediate_size=48, moe_intermediate_size=32, moe_num_experts=4, moe_k=2,
                         moe_layer_start_index=1),
    "flex_olmo": dict(SMALL, intermediate_size=48, num_experts=4, num_experts_per_tok=2, pad_token_id=0, eos_token_id=1),
    "granitemoe": dict(SMALL, intermediate_size=48, num_local_experts=4, num_experts_per_tok=2, attention_multiplier=0.25),
    "hunyuan_v1_moe": dict(SMALL, intermediate_size=48, num_experts=4, moe_topk=2, head_dim=8),
    "minimax_m2": dict(SMALL, intermediate_size=48, num_local_experts=4, num_experts_per_tok=2, head_dim=16,
                       rope_parameters=dict(rope_type="default", rope_theta=5e6, partial_rotary_factor=0.5)),
    "dots1": dict(SMALL, intermediate_size=48, moe_intermediate_size=32, n_routed_experts=4, n_shared_experts=2,
                  num_experts_per_tok=2, head_dim=16, first_k_dense_replace=1, norm_topk_prob=True, sliding_window=8,
                  max_window_layers=1),
    "solar_open": dict(SMALL, moe_intermediate_size=32, n_routed_experts=4, num_experts_per_tok=2, head_dim=16,
                       attention_bias=True),
    "glm4_moe_lite": dict({k: v for k, v in MLA.items() if k != "first_k_dense_replace"}, q_lora_rank=24,
                          mlp_layer_types=["sparse", "dense"]),
    "granitemoeshared": dict(SMALL, intermediate_size=48, num_local_experts=4, num_experts_per_tok=2,
                             attention_multiplier=0.25, shared_intermediate_size=40),
    "gpt2": dict(vocab_size=96, n_embd=64, n_layer=2, n_head=4, n_positions=64),
    "mixtral": dict(SMALL, intermediate_size=48, num_local_experts=4, num_experts_per_tok=2),
    "qwen3_moe": dict(SMALL, intermediate_size=48, moe_intermediate_size=32, num_experts=4,
                      num_experts_per_tok=2, head_dim=8, mlp_only_layers=[1], norm_topk_prob=True),
    "qwen3_next": dict(SMALL, num_hidden_layers=4, intermediate_size=48, moe_intermediate_size=32, num_experts=4,
                       num_experts_per_tok=2, shared_expert_intermediate_size=40, head_dim=16, linear_num_key_heads=2,
                       linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=12, mlp_only_layers=[1]),
    "olmoe": dict(SMALL, intermediate_size=48, num_experts=4, num_experts_per_tok=2, clip_qkv=8.0,
                  eos_token_id=3),
    "dbrx": dict(vocab_size=96, d_model=64, n_layers=2, n_heads=4, max_seq_len=64,
                 attn_config=dict(kv_n_heads=2, clip_qkv=8.0, rope_theta=5e5),
                 ffn_config=dict(hidden_size=64, ffn_hidden_size=48, moe_num_experts=4, moe_top_k=2,
                                 moe_loss_weight=0.05)),
    "deepseek_v2": dict(MLA, q_lora_rank=None, topk_method="greedy"),
    "deepseek_v3": dict(MLA, q_lora_rank=24, n_group=2, topk_group=1,
                        rope_parameters=dict(YARN, mscale=1.0, mscale_all_dim=1.0)),
    "gpt_oss": dict(SMALL, intermediate_size=48, head_dim=16, num_local_experts=4,
                    num_experts_per_tok=2, sliding_window=8,
                    rope_parameters=dict(YARN, truncate=False)),
}


def tensors_of(folder):
    out = {}
    for path in pathlib.Path(folder).glob("*.safetensors"):
        out.update(load_file(path))
    return out


class HfIo(FolderTest):
    def hf_io(self, *args, code=0):
        ran = subprocess.run([PROGRAM, *map(str, args)], capture_output=True, text=True)
        self.assertEqual(ran.returncode, code, ran.stderr)
        return ran.stdout if code == 0 else ran.stderr

    def save(self, family, dtype=torch.bfloat16, **other):
        model = random_model(AutoConfig.for_model(family, **FAMILIES[family] | other), dtype)
        folder = self.folder / family
        model.save_pretrained(folder)
        (folder / "tokenizer.json").write_text('{"a": "\u00e4"}')
        return folder, model

    def round_trip(self, family, **other):
        folder, _ = self.save(family, **other)
        run, back = self.folder / (family + ".run"), self.folder / (family + ".back")
        self.hf_io("import", folder, run)
        self.hf_io("export", run, back)
        want, got = tensors_of(folder), tensors_of(back)
        self.assertEqual(sorted(want), sorted(got))
        for name, tensor in want.items():
            # What a model must keep in f32 is written so, whatever type was asked for.
            exact = got[name] if got[name].dtype == tensor.dtype else got[name].to(tensor.dtype)
            self.assertTrue(torch.equal(exact.view(torch.uint8), tensor.view(torch.uint8)), name)
        self.assertEqual((back / "tokenizer.json").read_bytes(),
                         (folder / "tokenizer.json").read_bytes())
        # Both are loaded: a model that was cast has rotary frequencies in bf16, one that is loaded not.
        ids = torch.randint(0, 96, (2, 24), generator=torch.Generator().manual_seed(1))
        for attention in ("eager", "sdpa"):
            if attention == "sdpa" and family == "gpt_oss":  # whose sinks transformers' SDPA does not have
                with self.assertRaisesRegex(ValueError, "scaled_dot_product_attention"):
                    AutoModelForCausalLM.from_pretrained(back, attn_implementation=attention)
                continue
            one, two = (AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16, attn_implementation=attention).eval()
                        for path in (folder, back))
            self.assertEqual(two.config._attn_implementation, attention)
            with torch.no_grad():
                self.assertTrue(torch.equal(one(ids).logits, two(ids).logits), attention)
        return folder, run, back

    def test_llama(self):
        self.round_trip("llama")

    def test_mistral_with_and_without_a_window(self):
        folder, _, back = self.round_trip("mistral")
        self.assertEqual(json.loads((back / "config.json").read_text())["sliding_window"], 8)
        shutil.rmtree(self.folder)
        self.folder.mkdir()
        folder, _, back = self.round_trip("mistral", sliding_window=None)
        self.assertIsNone(json.loads((back / "config.json").read_text())["sliding_window"])

    def test_qwen2_whose_last_layer_has_a_window(self):
        _, _, back = self.round_trip("qwen2")
        self.assertEqual(json.loads((back / "config.json").read_text())["layer_types"],
                         ["full_attention", "sliding_attention"])

    def test_qwen3_with_one_table(self):
        self.round_trip("qwen3")

    def test_qwen2_moe_with_a_gated_shared_expert(self):
        self.round_trip("qwen2_moe")

    def test_glm4_moe_of_both_forms(self):
        folder, _, _ = self.round_trip("glm4_moe")
        self.assertIn("fraction: 0.5", self.hf_io("config", folder))
        shutil.rmtree(self.folder)
        self.folder.mkdir()
        self.round_trip("glm4_moe", use_qk_norm=False, attention_bias=False, n_group=2, topk_group=1)

    def test_ernie4_5_moe_with_one_table(self):
        folder, _, _ = self.round_trip("ernie4_5_moe")
        said = self.hf_io("config", folder)
        self.assertIn("score: softmax", said)
        self.assertIn("tie_embeddings: true", said)

    def test_flex_olmo(self):
        folder, _, _ = self.round_trip("flex_olmo")
        self.assertIn("block: post_norm", self.hf_io("config", folder))

    def test_granitemoe_without_multipliers(self):
        self.round_trip("granitemoe")

    def test_hunyuan_v1_moe(self):
        self.round_trip("hunyuan_v1_moe")

    def test_minimax_m2(self):
        folder, _, _ = self.round_trip("minimax_m2")
        self.assertIn("fraction: 0.5", self.hf_io("config", folder))

    def test_dots1_whose_last_layer_has_a_window(self):
        _, _, back = self.round_trip("dots1")
        self.assertEqual(json.loads((back / "config.json").read_text())["layer_types"],
                         ["full_attention", "sliding_attention"])

    def test_dots1_of_files_that_do_not_divide_by_the_sum(self):
        folder, _ = self.save("dots1", norm_topk_prob=False)
        self.assertRegex(self.hf_io("import", folder, self.folder / "x", code=4), "norm_topk_prob")

    def test_solar_open(self):
        self.round_trip("solar_open")

    def test_qwen3_next_with_its_layers_named_or_counted_and_its_prediction_modules_left_out(self):
        _, _, back = self.round_trip("qwen3_next")
        want = ["linear_attention"] * 3 + ["full_attention"]
        self.assertEqual(json.loads((back / "config.json").read_text())["layer_types"], want)
        config = json.loads((self.folder / "qwen3_next" / "config.json").read_text())
        del config["layer_types"]
        (self.folder / "qwen3_next" / "config.json").write_text(json.dumps(config | {"full_attention_interval": 4}))
        tensors = tensors_of(self.folder / "qwen3_next")
        save_file(tensors | {"mtp.fc.weight": torch.zeros(2, 2)}, self.folder / "qwen3_next" / "model.safetensors",
                  {"format": "pt"})
        shutil.rmtree(self.folder / "qwen3_next.run")
        self.hf_io("import", self.folder / "qwen3_next", self.folder / "qwen3_next.run")
        again = self.folder / "again"
        self.hf_io("export", self.folder / "qwen3_next.run", again)
        self.assertEqual(json.loads((again / "config.json").read_text())["layer_types"], want)
        self.assertEqual(sorted(tensors_of(again)), sorted(tensors))

    def test_glm4_moe_lite_whose_last_layer_is_dense(self):
        _, _, back = self.round_trip("glm4_moe_lite")
        self.assertEqual(json.loads((back / "config.json").read_text())["mlp_layer_types"], ["sparse", "dense"])

    def test_granitemoeshared_with_and_without_a_shared_part(self):
        self.round_trip("granitemoeshared")
        shutil.rmtree(self.folder)
        self.folder.mkdir()
        self.round_trip("granitemoeshared", shared_intermediate_size=0)

    def test_what_has_no_operator_is_refused_by_its_name(self):
        for family, operator in (("phimoe", "SparseMixer"), ("minimax", "lightning attention"),
                                 ("lfm2_moe", "gated short convolutions"), ("llama4_text", "chunked attention")):
            folder = self.folder / family
            folder.mkdir()
            (folder / "config.json").write_text(json.dumps({"model_type": family}))
            save_file({"x": torch.zeros(1)}, folder / "model.safetensors", {"format": "pt"})
            self.assertRegex(self.hf_io("import", folder, self.folder / "run", code=4), f"E4008.*{operator}")

    def test_gpt2_and_its_files_without_a_head(self):
        folder, run, _ = self.round_trip("gpt2")
        # The hub's first files are of the model alone, with the masks that it had then.
        path = folder / "model.safetensors"
        bare = {name.removeprefix("transformer."): x for name, x in load_file(path).items()}
        bare["h.0.attn.bias"] = torch.ones(1, 1, 64, 64)
        save_file(bare, path, {"format": "pt"})
        self.hf_io("import", folder, self.folder / "bare")
        shards = [next((self.folder / name).glob("step-*/shard-*.safetensors")) for name in (run.name, "bare")]
        one, two = map(load_file, shards)
        self.assertEqual(sorted(one), sorted(two))
        for name, tensor in one.items():
            self.assertTrue(torch.equal(tensor, two[name]), name)

    def test_mixtral(self):
        folder, run, back = self.round_trip("mixtral")
        self.assertGreater(len(list(back.glob("*.safetensors"))), 1)  # sharded, with an index
        # Any safetensors reader opens our shards; an expert has a name of its own.
        theirs = tensors_of(folder)["model.layers.1.block_sparse_moe.experts.3.w2.weight"]
        with safe_open(run / "step-000000" / "shard-00000-000.safetensors", "pt") as shard:
            self.assertTrue(torch.equal(shard.get_tensor("model.layers.1.moe.experts.3.w2"), theirs))

    def test_qwen3_moe(self):
        self.round_trip("qwen3_moe")

    def test_olmoe(self):
        self.round_trip("olmoe")

    def test_dbrx(self):
        self.round_trip("dbrx")

    def test_deepseek_v2(self):
        self.round_trip("deepseek_v2")

    def test_deepseek_v3(self):
        self.round_trip("deepseek_v3")

    def test_gpt_oss(self):
        self.round_trip("gpt_oss")

    def test_gpt_oss_whose_rope_is_not_scaled(self):  # its class's default is
        self.round_trip("gpt_oss", rope_parameters=dict(rope_type="default", rope_theta=1e4))

    def test_both_spellings_are_one_config(self):
        folder, _ = self.save("mixtral")
        path = folder / "config.json"
        new = json.loads(path.read_text())
        parameters = new.pop("rope_parameters")
        old = dict(new, rope_theta=parameters["rope_theta"], rope_scaling=None,
                   torch_dtype=new.pop("dtype"), num_experts=new["num_local_experts"])
        del old["num_local_experts"]
        before = self.hf_io("config", folder)
        path.write_text(json.dumps(old))
        self.assertEqual(self.hf_io("config", folder), before)

    def test_four_faults_of_one_expert_are_four_errors(self):
        folder, _ = self.save("mixtral")
        path, name = folder / "model.safetensors", \
            "model.layers.1.block_sparse_moe.experts.3.w2.weight"
        good = load_file(path)

        def refusal(change):
            tensors = dict(good)
            change(tensors)
            save_file({k: v.contiguous().clone() for k, v in tensors.items()}, path,
                      {"format": "pt"})
            return self.hf_io("import", folder, self.folder / "x", code=4)

        self.assertIn("missing: " + name, refusal(lambda t: t.pop(name)))
        renamed = refusal(lambda t: t.update({name + "x": t.pop(name)}))
        self.assertIn("missing: " + name, renamed)
        self.assertIn("unused: " + name + "x", renamed)
        self.assertIn("unused: " + name + ".copy",
                      refusal(lambda t: t.update({name + ".copy": t[name]})))
        self.assertIn("reshaped: " + name, refusal(lambda t: t.update({name: t[name].t()})))

    def test_a_config_that_does_not_fit_or_is_not_known_is_refused(self):
        folder, _ = self.save("mixtral")
        path = folder / "config.json"
        good = json.loads(path.read_text())
        for change, what in [({"num_local_experts": 8}, "missing: "),
                             ({"vocab_size": 95}, "reshaped: "),
                             ({"model_type": "gpt_neox"}, "model_type"),
                             ({"hidden_act": "gelu"}, "hidden_act"),
                             ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
                              "rope_type"),
                             ({"quantization_config": {"quant_method": "gptq"}}, "quant_method"),
                             ({"num_experts_per_tok": 9}, "num_experts_per_tok")]:
            path.write_text(json.dumps(dict(good, **change)))
            self.assertIn(what, self.hf_io("import", folder, self.folder / "x", code=4))

    def test_an_export_replaces_nothing(self):
        folder, _ = self.save("llama")
        self.hf_io("import", folder, self.folder / "run")
        (self.folder / "there").mkdir()
        self.assertIn("--force", self.hf_io("export", self.folder / "run", self.folder / "there", code=7))

    def test_fp8_blocks_are_widened(self):
        folder, _ = self.save("deepseek_v3")
        path, config = folder / "model.safetensors", folder / "config.json"
        tensors, want = load_file(path), {}
        for name in [n for n in tensors if n.endswith("_proj.weight") and ".experts." in n]:
            rows, columns = tensors[name].shape
            scale = torch.rand(-(-rows // 16), -(-columns // 24)) + 0.5
            wide = scale.repeat_interleave(16, 0)[:rows].repeat_interleave(24, 1)[:, :columns]
            tensors[name] = (tensors[name].float() / wide).to(torch.float8_e4m3fn)
            tensors[name + "_scale_inv"] = scale
            want[name] = (tensors[name].float() * wide).to(torch.bfloat16)
        save_file(tensors, path, {"format": "pt"})
        config.write_text(json.dumps(dict(json.loads(config.read_text()), quantization_config=dict(
            quant_method="fp8", fmt="e4m3", weight_block_size=[16, 24]))))
        self.hf_io("import", folder, self.folder / "run")
        self.hf_io("export", self.folder / "run", self.folder / "back")
        got = tensors_of(self.folder / "back")
        self.assertGreater(len(want), 8)
        for name, tensor in want.items():
            self.assertTrue(torch.equal(got[name], tensor), name)

    def test_mxfp4_is_widened(self):
        folder, _ = self.save("gpt_oss")
        path, config = folder / "model.safetensors", folder / "config.json"
        tensors, want = load_file(path), {}
        # transformers makes experts of 48: not whole groups of 32 for `down`; quantize `gate_up`.
        values = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6])
        for name in [n for n in tensors if n.endswith("gate_up_proj")]:
            experts, inner, outer = tensors[name].shape
            codes = torch.randint(0, 16, (experts, outer, inner // 32, 32))
            scales = torch.randint(120, 130, (experts, outer, inner // 32), dtype=torch.uint8)
            tensors[name + "_blocks"] = (codes[..., ::2] | codes[..., 1::2] << 4).to(torch.uint8)
            tensors[name + "_scales"] = scales
            wide = values[codes] * torch.pow(2.0, scales.float() - 127)[..., None]
            want[name] = wide.flatten(2).transpose(1, 2).to(torch.bfloat16)
            del tensors[name]
        save_file(tensors, path, {"format": "pt"})
        config.write_text(json.dumps(dict(json.loads(config.read_text()),
                                          quantization_config=dict(quant_method="mxfp4"))))
        self.hf_io("import", folder, self.folder / "run")
        self.hf_io("export", self.folder / "run", self.folder / "back")
        got = tensors_of(self.folder / "back")
        self.assertEqual(len(want), 2)
        for name, tensor in want.items():
            self.assertTrue(torch.equal(got[name], tensor), name)

    def test_pickles_are_never_opened(self):
        folder, _ = self.save("llama")
        shutil.move(folder / "model.safetensors", folder / "pytorch_model.bin")
        self.assertIn("never opened", self.hf_io("import", folder, self.folder / "x", code=4))


if __name__ == "__main__":
    unittest.main()
