"""`troupe export --gguf` with others on the other side.

The PyPI package gguf reads the files, transformers loads them as its own models, and llama.cpp (the PyPI package
xllamacpp, which brings it compiled) runs them: tiny random models of every family that is written. Which tensor of the
hub's folder each of the file's is, is said here once more.
"""
import importlib.util
import unittest

import numpy as np
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM

import llama_cpp
from tiny_hub import FolderTest, random_model

GGUF = importlib.util.find_spec("gguf") is not None
if GGUF:
    import gguf

VOCAB = 96
SMALL = dict(vocab_size=VOCAB, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=64, rms_norm_eps=1e-5)
LLAMA3 = dict(rope_type="llama3", rope_theta=5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=16)
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, beta_fast=32.0, beta_slow=1.0,
            original_max_position_embeddings=16)
PLAIN = dict(rope_type="default", rope_theta=10000.0)
MLA = dict(SMALL, num_key_value_heads=4, intermediate_size=96, moe_intermediate_size=32, n_routed_experts=4,
           num_experts_per_tok=2, n_shared_experts=2, first_k_dense_replace=1, q_lora_rank=32, kv_lora_rank=32,
           qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=32)
MOE = dict(SMALL, intermediate_size=96, num_experts_per_tok=2)
QWEN_MOE = dict(MOE, moe_intermediate_size=32, num_experts=4)
# family: transformers' config, the architecture of the file.
FAMILIES = {
    "llama": (dict(SMALL, intermediate_size=96, attention_bias=True, mlp_bias=True, rope_parameters=LLAMA3), "llama"),
    "mistral": (dict(SMALL, intermediate_size=96, head_dim=32, sliding_window=None, rope_parameters=YARN), "llama"),
    "qwen2": (dict(SMALL, intermediate_size=96, tie_word_embeddings=True,
                   rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=4.0)), "qwen2"),
    "qwen3": (dict(SMALL, intermediate_size=96, head_dim=32), "qwen3"),
    "mixtral": (dict(MOE, num_local_experts=4), "llama"),
    "granitemoe": (dict(MOE, num_local_experts=4, attention_multiplier=0.25), "granitemoe"),
    "qwen2_moe": (dict(QWEN_MOE, shared_expert_intermediate_size=64), "qwen2moe"),
    "qwen3_moe": (dict(QWEN_MOE, head_dim=32, norm_topk_prob=True), "qwen3moe"),
    "olmoe": (dict(MOE, num_experts=4, num_key_value_heads=4, eos_token_id=3), "olmoe"),
    "dbrx": (dict(vocab_size=VOCAB, d_model=64, n_layers=2, n_heads=4, max_seq_len=64,
                  attn_config=dict(kv_n_heads=2, clip_qkv=8.0, rope_theta=5e5),
                  ffn_config=dict(hidden_size=64, ffn_hidden_size=96, moe_num_experts=4, moe_top_k=2)), "dbrx"),
    "deepseek_v2": (dict(MLA, topk_method="greedy", routed_scaling_factor=2.0), "deepseek2"),
    "deepseek_v3": (dict(MLA, n_group=2, topk_group=1, rope_parameters=dict(YARN, mscale=1.0, mscale_all_dim=1.0)),
                    "deepseek2"),
    "gpt_oss": (dict(MOE, head_dim=64, num_local_experts=4, sliding_window=8, rope_parameters=PLAIN), "gpt-oss"),
}
TURNED = ("llama", "mistral", "mixtral", "granitemoe")
BLOCK = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
         "post_attention_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
         "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
         "attn_k_norm": "self_attn.k_norm", "attn_q_a": "self_attn.q_a_proj", "attn_q_a_norm": "self_attn.q_a_layernorm",
         "attn_q_b": "self_attn.q_b_proj", "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
         "attn_kv_a_norm": "self_attn.kv_a_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
         "ffn_down": "mlp.down_proj", "ffn_gate_inp": "mlp.gate"}
ENDS = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight"}


def interleaved(w, heads):
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).transpose(1, 2).reshape(w.shape)


def routed(hub, layer, part):
    """[experts, out, in] of gate, up or down, from the hub's names of any family."""
    for prefix, names in (("mlp.experts", ("gate_proj", "up_proj", "down_proj")), ("block_sparse_moe.experts", ("w1", "w3", "w2"))):
        name = f"{layer}{prefix}.%d.{dict(zip(('gate', 'up', 'down'), names))[part]}.weight"
        if name % 0 in hub:
            return torch.stack([hub[name % e] for e in range(4)])
    up = hub[layer + "block_sparse_moe.input_linear.weight"]
    half = up.shape[1] // 2
    return {"gate": up[:, :half], "up": up[:, half:], "down": hub[layer + "block_sparse_moe.output_linear.weight"]}[part]


def wanted(family, config, hub, name):
    """The tensor of the file, from the hub's folder."""
    if name in ENDS:
        return hub[ENDS[name]]
    block, part, kind = name.removeprefix("blk.").split(".")
    layer = f"model.layers.{block}."
    if part.endswith("_exps"):
        return routed(hub, layer, part.split("_")[1])
    if part == "ffn_gate_inp_shexp":
        return hub[layer + "mlp.shared_expert_gate.weight"][0]
    if part.endswith("_shexp"):
        shared = "mlp.shared_expert" if layer + "mlp.shared_expert.gate_proj.weight" in hub else "mlp.shared_experts"
        return hub[f"{layer}{shared}.{part.split('_')[1]}_proj.weight"]
    if part == "exp_probs_b":
        return hub[layer + "mlp.gate.e_score_correction_bias"]
    if part in ("attn_k_b", "attn_v_b"):
        both = hub[layer + "self_attn.kv_b_proj.weight"].view(4, 64, 32)
        return both[:, :32].transpose(1, 2) if part == "attn_k_b" else both[:, 32:]
    if part == "ffn_gate_inp" and layer + "mlp.gate.weight" not in hub:
        sparse = layer + "block_sparse_moe."
        return hub[sparse + ("gate.weight" if sparse + "gate.weight" in hub else "router.layer.weight")]
    value = hub[f"{layer}{BLOCK[part]}.{kind}"]
    if family in TURNED and part in ("attn_q", "attn_k"):
        return interleaved(value, config.num_attention_heads if part == "attn_q" else config.num_key_value_heads)
    return value


class GgufTest(FolderTest):
    def run_of(self, family, **other):
        """A run's folder of a random model of the family, and the model."""
        config = AutoConfig.for_model(family, **FAMILIES[family][0] | other)
        model = random_model(config, torch.float32, std=0.2)
        with torch.no_grad():
            for name, p in model.named_parameters():
                if "norm" in name and p.dim() == 1:
                    p.add_(1)
            for name, b in model.named_buffers():
                if name.endswith("e_score_correction_bias"):
                    b.normal_(std=0.1)
        model.save_pretrained(self.folder / "hub")
        self.troupe("import", "hub", "run")
        return model

    def export(self, kind, out="out.gguf", **more):
        return self.troupe("export", "run", out, "--gguf", kind, *more.get("words", ()), code=more.get("code", 0))


class Families(GgufTest):
    @unittest.skipUnless(GGUF, "the PyPI package gguf is not installed")
    def test_each_tensor_is_the_hubs(self):
        # DBRX and gpt-oss have joined and transposed tensors: llama.cpp compares those.
        for family in FAMILIES.keys() - {"dbrx", "gpt_oss"}:
            with self.subTest(family):
                self.setUp()
                config = self.run_of(family).config
                self.troupe("export", "run", "float32", "--dtype", "float32")
                self.troupe("export", "run", "bfloat16", "--dtype", "bfloat16")
                hub = {}
                for path in (self.folder / "float32").glob("*.safetensors"):
                    hub |= load_file(path)
                for kind in ("f32", "bf16", "q8_0"):
                    self.export(kind, kind + ".gguf")
                    self.compare(family, config, hub, kind)

    def compare(self, family, config, hub, kind):
        tensors = {t.name: t for t in gguf.GGUFReader(self.folder / (kind + ".gguf")).tensors}
        types = {"f32": "F32", "bf16": "BF16", "q8_0": "Q8_0"}
        for name, tensor in tensors.items():
            if name == "rope_freqs.weight":
                continue
            want = wanted(family, config, hub, name).contiguous().float()
            plain = want.dim() == 1 or name.endswith(("ffn_gate_inp.weight", "_norm.weight", ".bias"))
            self.assertEqual(tensor.tensor_type.name, "F32" if plain else types[kind], name)
            self.assertEqual(list(reversed([int(n) for n in tensor.shape])), list(want.shape), name)
            if plain or kind == "f32":
                stored = want.numpy()
            elif kind == "bf16":
                stored = want.to(torch.bfloat16).view(torch.uint8).numpy()
            else:
                stored = gguf.quants.quantize(want.numpy(), gguf.GGMLQuantizationType.Q8_0)
            self.assertEqual(np.ascontiguousarray(tensor.data).tobytes(), stored.tobytes(), f"{family} {kind} {name}")

    @unittest.skipUnless(GGUF, "the PyPI package gguf is not installed")
    def test_transformers_loads_it_as_the_same_model(self):
        torch.manual_seed(7)
        ids = torch.randint(VOCAB, (2, 24))
        for family in ("llama", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe"):
            with self.subTest(family):
                self.setUp()
                # Of scalings, of biases of Llama and of a Qwen3's head its reader knows nothing.
                other = {"llama": dict(attention_bias=False, mlp_bias=False), "qwen3": dict(head_dim=128)}.get(family, {})
                model = self.run_of(family, rope_parameters=PLAIN, tie_word_embeddings=False, **other)
                self.export("f32")
                loaded = AutoModelForCausalLM.from_pretrained(self.folder, gguf_file="out.gguf", dtype=torch.float32)
                with torch.no_grad():
                    got, want = loaded(ids).logits, model(ids).logits
                self.assertLess(((got - want).abs().max() / want.abs().max()).item(), 1e-4)

    @unittest.skipUnless(GGUF, "the PyPI package gguf is not installed")
    @unittest.skipUnless(llama_cpp.installed(), "the PyPI package xllamacpp, which has llama.cpp in it, is not installed")
    def test_llama_cpp_computes_the_same_logits(self):
        torch.manual_seed(7)
        ids = torch.randint(VOCAB, (1, 40))
        for family in FAMILIES:
            with self.subTest(family):
                self.setUp()
                model = self.run_of(family)
                with torch.no_grad():
                    want = model(ids).logits[0].numpy()
                # Its products round to 16 bits in places. Of most tokens: rounding may change a choice of experts. A
                # tensor that is mixed up differs by more than a tenth.
                for kind, bound in (("f32", 1e-2), ("bf16", 5e-2), ("q8_0", 5e-2)):
                    self.export(kind, kind + ".gguf")
                    if kind == "q8_0":  # the weights' own rounding moves these logits by up to 7 %: beside the rounded ones
                        self.round_to("q8_0.gguf", "f32.gguf")
                        want = self.llama_logits("f32.gguf", ids)
                    got = self.llama_logits(kind + ".gguf", ids)
                    errors = np.abs(got - want).max(1) / np.abs(want).max(1)
                    self.assertLess(np.median(errors), bound, kind)
                    if kind == "f32":
                        self.assertLess(errors.max(), 2 * bound)

    def llama_logits(self, name, ids):
        with llama_cpp.Model(self.folder / name) as theirs:
            return theirs.logits(ids[0].tolist(), VOCAB)

    def round_to(self, packed, whole):
        """Gives the f32 tensors of the file `whole` the values that `packed` has in fewer bits."""
        rounded = {t.name: t for t in gguf.GGUFReader(self.folder / packed).tensors}
        changed = 0
        for tensor in gguf.GGUFReader(self.folder / whole, "r+").tensors:
            of = rounded[tensor.name]
            values = gguf.quants.dequantize(of.data, of.tensor_type).reshape(tensor.data.shape)
            changed += not np.array_equal(values, tensor.data)
            tensor.data[:] = values
        self.assertGreater(changed, 10)

    @unittest.skipUnless(GGUF, "the PyPI package gguf is not installed")
    def test_fields_are_the_models(self):
        for family, (_, architecture) in FAMILIES.items():
            with self.subTest(family):
                self.setUp()
                config = self.run_of(family).config
                self.export("f32")
                fields = {k: f.contents() for k, f in gguf.GGUFReader(self.folder / "out.gguf").fields.items()}
                self.assertEqual(fields["general.architecture"], architecture)
                self.assertEqual(fields["general.name"], "out")
                self.assertEqual(fields["tokenizer.ggml.model"], "none")
                a = architecture + "."
                self.assertEqual(fields[a + "vocab_size"], VOCAB)
                self.assertEqual(fields[a + "block_count"], 2)
                self.assertEqual(fields[a + "attention.head_count"], 4)
                self.assertEqual(fields[a + "context_length"], 64)
                epsilon = fields.get(a + "attention.layer_norm_rms_epsilon", fields.get(a + "attention.layer_norm_epsilon"))
                self.assertAlmostEqual(epsilon, 1e-5)
                if hasattr(config, "num_experts_per_tok"):
                    self.assertEqual(fields[a + "expert_used_count"], 2)


class Refusals(GgufTest):
    def refuse(self, family, what, kind="f32", **other):
        with self.subTest(what):
            self.setUp()
            self.run_of(family, **other)
            self.assertRegex(self.export(kind, code=4), what)
            self.assertFalse((self.folder / "out.gguf").exists())

    def test_what_llama_cpp_would_compute_otherwise_is_named(self):
        self.refuse("mistral", "E4008.*model.window is 7", sliding_window=7)
        self.refuse("qwen2_moe", "E4008.*moe.router.*divided by their sum", norm_topk_prob=True)
        self.refuse("qwen3_moe", "E4008.*moe.router.*as they are", norm_topk_prob=False)
        self.refuse("qwen3_moe", "E4008.*layer 1 is dense", mlp_only_layers=[1])
        self.refuse("olmoe", "E4008.*clip_qkv", clip_qkv=4.0)
        self.refuse("olmoe", "E4008.*kv_heads is 2", num_key_value_heads=2)
        self.refuse("qwen3", "E4008.*qkv_bias", attention_bias=True)
        self.refuse("llama", "E4008.*ffn_down.weight has rows of 40", "q8_0", intermediate_size=40)

    def test_a_family_without_a_form_is_named(self):
        config = AutoConfig.for_model("hunyuan_v1_moe", **SMALL, intermediate_size=96, num_experts=4, moe_topk=2, head_dim=16)
        random_model(config, torch.float32).save_pretrained(self.folder / "hub")
        self.troupe("import", "hub", "run")
        self.assertRegex(self.export("f32", code=4), "E4008 the family hunyuan_v1_moe is not written.*mixtral")

    def test_a_file_that_is_there_stays_unless_forced(self):
        self.run_of("llama")
        (self.folder / "out.gguf").write_text("mine")
        self.assertIn("--force replaces it", self.export("f32", code=7))
        self.assertEqual((self.folder / "out.gguf").read_text(), "mine")
        self.export("f32", words=["--force"])
        self.assertEqual((self.folder / "out.gguf").read_bytes()[:4], b"GGUF")
        self.troupe("export", "run", "again.gguf", "--gguf", "f32")
        self.assertIn("--dtype", self.troupe("export", "run", "x", "--gguf", "f32", "--dtype", "float32", code=2))


TEXTS = ("the quick brown fox", "  spaces,\n\n lines\tand tabs ", "it's 12345 o'clock, isn't it?", "naïve Übermut 東京 🙂",
         "<|end|> is one token")


class Vocabularies(GgufTest):
    def tokenizer(self, pre):
        """A byte-level BPE beside a Llama with more ids than it has, in the run's folder."""
        made = Tokenizer(models.BPE())
        made.pre_tokenizer, made.decoder = pre, decoders.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<|end|>"],
                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
        made.train_from_iterator(TEXTS * 4, trainer)
        config = AutoConfig.for_model("llama", **SMALL | dict(vocab_size=320), intermediate_size=96)
        random_model(config, torch.float32).save_pretrained(self.folder / "hub")
        made.save(str(self.folder / "hub/tokenizer.json"))
        (self.folder / "hub/tokenizer_config.json").write_text('{"eos_token": "<|end|>", "chat_template": "{{ messages }}"}')
        self.troupe("import", "hub", "run")
        self.export("bf16")
        return made

    @unittest.skipUnless(GGUF, "the PyPI package gguf is not installed")
    def test_fields_of_a_byte_level_bpe(self):
        made = self.tokenizer(pre_tokenizers.ByteLevel(add_prefix_space=False))
        fields = {k: f.contents() for k, f in gguf.GGUFReader(self.folder / "out.gguf").fields.items()}
        self.assertEqual(fields["tokenizer.ggml.model"], "gpt2")
        self.assertEqual(fields["tokenizer.ggml.pre"], "gpt-2")
        tokens = fields["tokenizer.ggml.tokens"]
        self.assertEqual(len(tokens), 320)
        self.assertEqual(tokens[:made.get_vocab_size()], [made.id_to_token(i) for i in range(made.get_vocab_size())])
        end = made.token_to_id("<|end|>")
        self.assertEqual(fields["tokenizer.ggml.token_type"][end], 3)
        self.assertEqual(fields["tokenizer.ggml.token_type"][319], 5)
        self.assertEqual(fields["tokenizer.ggml.eos_token_id"], end)
        self.assertFalse(fields["tokenizer.ggml.add_bos_token"])
        self.assertEqual(fields["tokenizer.chat_template"], "{{ messages }}")

    @unittest.skipUnless(llama_cpp.installed(), "the PyPI package xllamacpp, which has llama.cpp in it, is not installed")
    def test_llama_cpp_makes_the_same_ids(self):
        made = self.tokenizer(pre_tokenizers.ByteLevel(add_prefix_space=False))
        with llama_cpp.Model(self.folder / "out.gguf") as theirs:
            for text in TEXTS:
                self.assertEqual(theirs.ids(text), made.encode(text).ids, text)


if __name__ == "__main__":
    unittest.main()
