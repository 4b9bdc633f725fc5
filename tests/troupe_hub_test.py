"""`troupe import` and `troupe export` with transformers on the other side."""
import json
import os
import pathlib
import random
import resource
import subprocess
import unittest

import torch
import yaml
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from tiny_hub import FolderTest, random_model

SMALL = dict(vocab_size=96, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64, intermediate_size=48)
NANO = """
model: {layers: 2, width: 32, heads: 4, vocab: 300, max_positions: 64,
        moe: {experts: 4, top_k: 2, hidden: 64}}
data: {train: [{path: data}], sequence: 32, tokenizer: tokenizer.json}
train: {global_batch: 8, steps: 3, optimizer: {lr: 3e-3}}
checkpoint: {dir: run}
run: {device: cpu}
"""

SHAPE = "layers: 2, width: 32, heads: 4, vocab: 96, max_positions: 64, init_std: 0.3, "
MLA = ("mla: {kv_rank: 20, nope_dim: 12, rope_dim: 8, value_dim: 10%s}, ffn: 40, first_dense: 1, norm: {eps: 1e-6}, "
       "rope: {theta: 500000, interleaved: true}, ")
# A model of each family whose files we write; no theta is a class's default.
BUILT_HERE = {
    "llama": SHAPE + "kv_heads: 2, ffn: 48, norm: {eps: 1e-5}, rope: {theta: 500000}",
    "mistral": SHAPE + "kv_heads: 2, ffn: 48, window: 7, norm: {eps: 1e-5}, rope: {theta: 500000}",
    "qwen2": SHAPE + "kv_heads: 2, ffn: 48, qkv_bias: true, window: 7, window_layers: '[0,1]', norm: {eps: 1e-6}, rope: "
                     "{theta: 500000}",
    "qwen3": SHAPE + "kv_heads: 2, head_dim: 16, ffn: 48, qk_norm: head, tie_embeddings: true, norm: {eps: 1e-6}, rope: "
                     "{theta: 500000}",
    "qwen2_moe": SHAPE + "kv_heads: 2, qkv_bias: true, norm: {eps: 1e-6}, ffn: 40, first_dense: 1, rope: {theta: 500000}, "
                         "moe: {experts: 8, top_k: 3, hidden: 12, shared: {experts: 1, hidden: 20, form: gate}, router: "
                         "{kind: topk_softmax, order: before}}",
    "glm4_moe": SHAPE + "kv_heads: 2, head_dim: 16, qk_norm: head, norm: {eps: 1e-5}, ffn: 40, first_dense: 1, rope: "
                        "{theta: 500000, fraction: 0.5}, moe: {experts: 8, top_k: 2, hidden: 12, shared: {experts: 1}, "
                        "router: {kind: sigmoid_bias, scale: 2.5, limit: {groups: 4, keep: 2, top: 2}}}",
    "ernie4_5_moe": SHAPE + "kv_heads: 2, norm: {eps: 1e-5}, ffn: 40, first_dense: 1, rope: {theta: 600000, interleaved: "
                            "true}, moe: {experts: 8, top_k: 3, hidden: 12, shared: {experts: 2}, router: {kind: "
                            "sigmoid_bias, score: softmax}}",
    "flex_olmo": SHAPE + "kv_heads: 2, norm: {eps: 1e-6}, qk_norm: whole, block: {kind: post_norm}, rope: {theta: 600000}, "
                         "moe: {experts: 8, top_k: 3, hidden: 12, router: {kind: topk_softmax, order: before}}",
    "hunyuan_v1_moe": SHAPE + "kv_heads: 2, head_dim: 16, norm: {eps: 1e-5}, qk_norm: head_turned, rope: {theta: 500000}, "
                              "moe: {experts: 8, top_k: 3, hidden: 12, shared: {experts: 1}, router: {kind: topk_softmax, "
                              "order: before, p_norm: 1}}",
    "minimax_m2": SHAPE + "kv_heads: 2, head_dim: 16, norm: {eps: 1e-6}, qk_norm: whole, rope: {theta: 600000, fraction: "
                          "0.5}, moe: {experts: 8, top_k: 3, hidden: 12, router: {kind: sigmoid_bias}}",
    "gpt2": SHAPE + "ffn: 48, bias: true, norm: {kind: layer, eps: 1e-5, bias: true}, positions: learned, act: gelu_tanh, "
                    "tie_embeddings: true",
    "mixtral": SHAPE + "kv_heads: 2, window: 7, norm: {kind: rms_rounded}, rope: {theta: 500000}, moe: {experts: 4, "
                       "top_k: 2, hidden: 24, router: {kind: topk_softmax, order: after}}",
    "qwen3_moe": SHAPE + "kv_heads: 2, head_dim: 16, qk_norm: head, norm: {eps: 1e-6}, ffn: 40, first_dense: 1, rope: "
                         "{theta: 500000}, moe: {experts: 8, top_k: 3, hidden: 12, router: {kind: topk_softmax, order: "
                         "before, p_norm: 1}}",
    "olmoe": SHAPE + "qk_norm: whole, clip_qkv: 0.9, norm: {eps: 1e-5}, rope: {theta: 500000}, moe: {experts: 8, top_k: "
                     "3, hidden: 12, router: {kind: topk_softmax, order: before}}",
    "dbrx": SHAPE + "kv_heads: 2, clip_qkv: 0.8, norm: {kind: layer, eps: 1e-5}, rope: {theta: 500000}, moe: {experts: 4, "
                    "top_k: 2, hidden: 12, router: {kind: topk_softmax, order: before, p_norm: 1}}",
    "deepseek_v2": SHAPE + MLA % "" + "moe: {experts: 8, top_k: 3, hidden: 12, shared: {experts: 2}, router: {kind: "
                                      "topk_softmax, order: before}}",
    "deepseek_v3": SHAPE + MLA % ", q_rank: 16" + "moe: {experts: 8, top_k: 2, hidden: 12, shared: {experts: 1}, router: "
                   "{kind: sigmoid_bias, scale: 2.5, limit: {groups: 4, keep: 2, top: 2}}}",
    "gpt_oss": SHAPE + "kv_heads: 2, head_dim: 16, bias: true, sinks: true, window: 9, window_layers: '2', norm: {eps: "
               "1e-5}, rope: {theta: 15000, scaling: yarn, factor: 4, beta_fast: 8, truncate: false, original_positions: "
               "16}, moe: {experts: 4, top_k: 2, hidden: 12, activation: quick_gelu, clamp: 7, offset: 1, bias: true, "
               "router: {kind: topk_softmax, order: after, bias: true}}",
}


class TroupeHub(FolderTest):
    def save(self, family, dtype=torch.bfloat16, **more):
        random_model(AutoConfig.for_model(family, **dict(SMALL, **more)), dtype).save_pretrained(self.folder / family)

    def test_an_imported_model_writes_and_is_evaluated(self):
        self.save("mixtral", num_local_experts=4, num_experts_per_tok=2, vocab_size=280)
        (self.folder / "text.txt").write_text("the cat sat on the mat. " * 200)
        self.troupe("tokenizer", "train", "text.txt", "--output", "mixtral/tokenizer.json", "--vocab", 270)
        self.troupe("import", "mixtral", "run")
        said = self.troupe("generate", "run", "-p", "the cat", "-n", 4, "--temperature", 0)
        self.assertTrue(said.startswith("the cat"), said)
        self.troupe("data", "build", "text.txt", "--output", "set", "--tokenizer", "mixtral/tokenizer.json")
        out = self.troupe("eval", "run", "--set", f"data.valid=[{{path: {self.folder}/set}}]", "--set",
                          "data.sequence=32", "--set", "eval.batches=2")
        self.assertIn("loss", out)
        # A text that `eval` reads itself is the model's ids and not its bytes: the score of the file that was built.
        self.troupe("data", "build", "text.txt", "--output", "plain", "--tokenizer", "mixtral/tokenizer.json", "--no-eod")
        scores = [json.loads(self.troupe("eval", "run", "--json", "--set", f"data.valid=[{source}]", "--set",
                                         "data.sequence=32").splitlines()[-1])
                  for source in ("{path: plain}", "{kind: text, path: text.txt}")]
        self.assertEqual(scores[0]["targets"], scores[1]["targets"])
        self.assertLess(scores[1]["targets"], (self.folder / "text.txt").stat().st_size / 2)
        self.assertAlmostEqual(scores[0]["loss"], scores[1]["loss"], places=5)

    def test_questions_are_scored_as_transformers_scores_them(self):
        """Multiple choice as lm-eval asks it: the log-likelihood of each continuation, and that divided
        by its bytes."""
        self.save("mixtral", dtype=torch.float32, num_local_experts=4, num_experts_per_tok=2, vocab_size=280,
                  max_position_embeddings=128)
        (self.folder / "text.txt").write_text("the cat sat on the mat. a dog ran after it. " * 200)
        self.troupe("tokenizer", "train", "text.txt", "--output", "mixtral/tokenizer.json", "--vocab", 270)
        self.troupe("import", "mixtral", "run")
        draw, words = random.Random(3), "the cat sat on mat a dog ran after it zx q".split()
        questions = [{"query": " ".join(draw.choices(words, k=6)), "gold": draw.randrange(4),
                      "choices": [" ".join(draw.choices(words, k=draw.randrange(1, 7))) for _ in range(4)]}
                     for _ in range(24)]
        (self.folder / "q.jsonl").write_text("".join(json.dumps(q) + "\n" for q in questions))
        everyday = [json.loads(line) for line in self.troupe("eval", "--show-everyday").splitlines()]
        self.assertEqual(len(everyday), 40)
        self.assertEqual([q["gold"] for q in everyday], [0, 1, 2, 3] * 10)  # no place is a guess
        tasks = self.troupe("eval", "run", "--tasks", "q.jsonl", "--tasks", "everyday", "--json", "--set",
                            "data.valid=[]").splitlines()[-2:]
        own = self.as_transformers_scores(questions)
        self.assertNotEqual(*own)  # else one of them could stand for the other
        for line, name, want in zip(tasks, ("q.jsonl", "everyday"), (own, self.as_transformers_scores(everyday))):
            ours = json.loads(line)
            self.assertEqual(ours["task"], name)
            self.assertAlmostEqual(ours["accuracy"], want[0])
            self.assertAlmostEqual(ours["accuracy_normed"], want[1])

    def as_transformers_scores(self, questions):
        """The part of the questions whose right choice is the likeliest, as it is and by its bytes."""
        tokenizer = Tokenizer.from_file(str(self.folder / "mixtral/tokenizer.json"))
        model = AutoModelForCausalLM.from_pretrained(self.folder / "mixtral", dtype=torch.float32).eval()
        right = normed = 0
        for q in questions:
            scores = []
            for choice in q["choices"]:
                before = len(tokenizer.encode(q["query"]).ids)
                ids = torch.tensor([tokenizer.encode(q["query"] + " " + choice).ids])
                with torch.no_grad():
                    logs = model(ids).logits[0, :-1].log_softmax(-1)
                scores.append(logs.gather(1, ids[0, 1:, None])[before - 1:].sum().item())
            right += max(range(4), key=scores.__getitem__) == q["gold"]
            normed += max(range(4), key=lambda i: scores[i] / len(q["choices"][i].encode())) == q["gold"]
        return right / len(questions), normed / len(questions)

    def test_there_and_back_is_the_same_model(self):
        self.save("mixtral", num_local_experts=4, num_experts_per_tok=2)
        got = json.loads(self.troupe("import", "mixtral", "run", "--check-logits", "--json"))
        tensors = load_file(self.folder / "mixtral" / "model.safetensors")
        self.assertEqual((got["family"], got["of"]), ("mixtral", len(tensors)))
        self.assertEqual(got["parameters"], sum(t.numel() for t in tensors.values()))
        self.assertTrue(got["logits"]["equal"])
        self.assertGreater(got["logits"]["largest"], 1)
        before = (self.folder / "run" / "step-000000" / "manifest.json").read_bytes()
        self.assertIn("step-000000 already", self.troupe("import", "mixtral", "run", code=7))
        self.assertEqual((self.folder / "run" / "step-000000" / "manifest.json").read_bytes(), before)
        said = self.troupe("export", "run", "back", "--shard-size", "60KB", "--check-logits")
        self.assertIn("the same bits", said)
        self.assertGreater(len(list((self.folder / "back").glob("*.safetensors"))), 1)
        back = {}
        for path in (self.folder / "back").glob("*.safetensors"):
            back.update(load_file(path))
        self.assertEqual(sorted(back), sorted(tensors))
        for name, tensor in tensors.items():
            self.assertTrue(torch.equal(back[name], tensor), name)
        one, two = (AutoModelForCausalLM.from_pretrained(self.folder / name, dtype=torch.bfloat16)
                    for name in ("mixtral", "back"))
        ids = torch.randint(0, 96, (2, 24), generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            self.assertTrue(torch.equal(one.eval()(ids).logits, two.eval()(ids).logits))
        self.assertIn("tensors are equal bit for bit\n", self.troupe("diff", "mixtral", "back"))
        self.assertIn("mixtral, ", self.troupe("inspect", "mixtral"))

    def test_a_training_starts_from_an_import(self):
        self.save("mixtral", num_local_experts=4, num_experts_per_tok=2)
        self.troupe("import", "mixtral", "run")
        # What a run would save beside the weights is there too, as a new run begins with it.
        with safe_open(self.folder / "run/step-000000/shard-00000-000.safetensors", "pt") as shard:
            past = [n for n in shard.keys() if n.endswith("previous_fractions")]
            self.assertEqual(len(past), 2)
            self.assertTrue(all(not shard.get_tensor(name).any() for name in past))
        recipe = {"model": yaml.safe_load((self.folder / "run/recipe.yaml").read_text())["model"],
                  "data": {"train": [{"kind": "mock"}], "sequence": 32},
                  "train": {"global_batch": 4, "steps": 2, "precision": "fp32",
                            "optimizer": {"lr": 1e-30}},
                  "checkpoint": {"dir": "more", "init_from": "run/step-000000", "cast": True},
                  "run": {"device": "cpu"}}
        (self.folder / "more.yaml").write_text(json.dumps(recipe))
        self.troupe("train", "more.yaml", "--quiet")
        log = (self.folder / "more" / "log.txt").read_text()
        casts = [line for line in log.splitlines() if "cast: " in line]
        self.assertEqual(len(casts), 1, log)
        self.assertRegex(casts[0], r"cast: \d\d+ tensors from BF16 to F32")
        # Steps of 1e-30 change zeros alone: what is exported is what was imported.
        self.troupe("export", "more", "back", "--dtype", "bfloat16")
        want, got = (load_file(self.folder / name / "model.safetensors") for name in ("mixtral", "back"))
        for name, tensor in want.items():
            self.assertLess((got[name] - tensor).abs().max(), 1e-29, name)
        # What differs from the model is still reported.
        said = self.troupe("train", "more.yaml", "--set", "checkpoint.dir=other", "--set",
                           "model.moe.experts=5", code=4)
        self.assertIn("missing: model.layers.1.moe.experts.4.w2", said)

    def test_40_a_dense_model_becomes_experts_that_compute_what_it_did(self):
        self.save("llama", torch.float32)
        out = json.loads(self.troupe("import", "llama", "run", "--upcycle", "{experts: 4, top_k: 2}",
                                     "--check-logits", "--json"))
        self.assertLess(out["logits"]["mean_difference"], 1e-5 * out["logits"]["mean"])
        model = yaml.safe_load((self.folder / "run/recipe.yaml").read_text())["model"]
        self.assertEqual((model["moe"]["experts"], model["moe"]["top_k"], model["moe"]["hidden"]), (4, 2, 48))
        # It is a Mixtral for transformers, and trains.
        self.troupe("export", "run", "back", "--dtype", "float32")
        one, two = (AutoModelForCausalLM.from_pretrained(self.folder / name, dtype=torch.float32).eval()
                    for name in ("llama", "back"))
        self.assertEqual(two.config.model_type, "mixtral")
        ids = torch.randint(0, 96, (2, 24), generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            want, got = one(ids).logits, two(ids).logits
        self.assertLess((want - got).abs().max(), 1e-4 * want.abs().max())
        recipe = {"model": model, "data": {"train": [{"kind": "mock"}], "sequence": 32},
                  "train": {"global_batch": 4, "steps": 2, "precision": "fp32", "optimizer": {"lr": 1e-3}},
                  "checkpoint": {"dir": "more", "init_from": "run/step-000000"}, "run": {"device": "cpu"}}
        (self.folder / "more.yaml").write_text(json.dumps(recipe))
        self.troupe("train", "more.yaml", "--quiet")
        # Slices of half the width, of which four are chosen: near, which --check-logits does not take for equal.
        self.troupe("import", "llama", "slices", "--upcycle", "{experts: 8, top_k: 4, hidden: 24}")
        sliced = yaml.safe_load((self.folder / "slices/recipe.yaml").read_text())["model"]["moe"]
        self.assertEqual(sliced["hidden"], 24)
        for moe, said in (("{experts: 3, top_k: 2, hidden: 24}", "must be multiples of the slices"),
                          ("{experts: 4, top_k: 2, router: {kind: sinkhorn}}", "topk_softmax"),
                          ("{expert: 4}", "experts")):
            self.assertIn(said, self.troupe("import", "llama", "bad", "--upcycle", moe, code=2))
        self.save("mixtral", num_local_experts=4, num_experts_per_tok=2)
        self.assertIn("has experts already",
                      self.troupe("import", "mixtral", "bad", "--upcycle", "{experts: 4, top_k: 2}", code=2))

    def test_211_a_balance_coefficient_keeps_its_value_at_balance(self):
        """transformers pools over the layers: a coefficient a of each of 3 layers is 3 a / k there, and w over
        their mean is w / k."""
        (self.folder / "nano.yaml").write_text(NANO)
        for name, balance, want in (("aux", "{aux_loss: 0.01}", 0.015), ("mean", "{aux_loss: 0, batched_loss: 0.1}", 0.05),
                                    ("both", "{aux_loss: 0.01, batched_loss: 0.1}", 0.065)):
            self.troupe("train", "nano.yaml", "--quiet", "--set", "model.layers=3", "--set", "train.steps=1", "--set",
                        "data={train: [{kind: mock}], sequence: 32, tokenizer: ''}", "--set",
                        f"model.moe.router.balance={balance}", "--set", f"checkpoint.dir={name}")
            self.troupe("export", name, f"hub-{name}")
            config = json.loads((self.folder / f"hub-{name}" / "config.json").read_text())
            self.assertEqual(config["router_aux_loss_coef"], want)
            self.troupe("import", f"hub-{name}", f"back-{name}")
            back = yaml.safe_load((self.folder / f"back-{name}" / "recipe.yaml").read_text())["model"]["moe"]
            self.assertAlmostEqual(back["router"]["balance"]["aux_loss"], want * 2 / 3)

    def test_another_type_is_rounded_once_and_told(self):
        self.save("olmoe", torch.float32, num_experts=4, num_experts_per_tok=2, eos_token_id=3)
        out = json.loads(self.troupe("import", "olmoe", "narrow", "--dtype", "bfloat16",
                                     "--check-logits", "--json"))
        self.assertFalse(out["logits"]["equal"])
        self.assertLess(out["logits"]["mean_difference"], 2e-2 * out["logits"]["mean"])
        self.assertIn("BF16", self.troupe("inspect", "narrow"))
        self.troupe("import", "olmoe", "wide", "--check-logits")
        out = json.loads(self.troupe("export", "wide", "half", "--dtype", "float16", "--check-logits",
                                     "--json"))
        self.assertFalse(out["logits"]["equal"])
        self.assertLess(out["logits"]["mean_difference"], 2e-3 * out["logits"]["mean"])
        want = load_file(self.folder / "olmoe" / "model.safetensors")
        got = load_file(self.folder / "half" / "model.safetensors")
        for name, tensor in want.items():
            self.assertTrue(torch.equal(got[name], tensor.to(torch.float16)), name)
        self.assertIn("E2005", self.troupe("export", "wide", "x", "--dtype", "int8", code=2))

    def test_every_tensor_is_used_or_named(self):
        self.save("mixtral", num_local_experts=4, num_experts_per_tok=2)
        path = self.folder / "mixtral" / "model.safetensors"
        tensors = load_file(path)
        name = "model.layers.1.block_sparse_moe.experts.3.w2.weight"
        tensors[name + "x"] = tensors.pop(name)
        save_file(tensors, path, {"format": "pt"})
        said = self.troupe("import", "mixtral", "run", code=4)
        self.assertIn("missing: " + name, said)
        self.assertIn("unused: " + name + "x", said)
        self.assertFalse((self.folder / "run" / "step-000000").exists())

    def test_links_out_of_a_folder_are_refused_and_those_of_a_hubs_cache_followed(self):
        self.save("mixtral", num_local_experts=4, num_experts_per_tok=2)
        theirs, secret = self.folder / "mixtral", self.folder / "secret"
        secret.write_text('{"token": "hunter2"}')
        kept = ["tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json",
                "chat_template.jinja", "generation_config.json"]
        (theirs / "generation_config.json").unlink(missing_ok=True)
        for names in (kept, ["config.json"]):
            real = (theirs / names[0]).read_bytes() if names != kept else None
            for name in names:
                (theirs / name).unlink(missing_ok=True)
                (theirs / name).symlink_to("../secret")
            said = self.troupe("import", "mixtral", "run", code=4)
            for name in names:
                self.assertRegex(said, rf"mixtral/{name}: E400\d is a link that leaves the folder")
                (theirs / name).unlink()
            self.assertNotIn("hunter2", said)
            self.assertFalse((self.folder / "run").exists())
            if real is not None:
                (theirs / names[0]).write_bytes(real)
        (theirs / "chat_template.jinja").write_text("{{ messages }}")
        cache = self.folder / "models--them--mixtral"
        (cache / "snapshots/1f3a").mkdir(parents=True)
        (cache / "blobs").mkdir()
        for number, path in enumerate(sorted(theirs.iterdir())):
            path.rename(cache / f"blobs/{number}")
            (cache / "snapshots/1f3a" / path.name).symlink_to(f"../../blobs/{number}")
        self.troupe("import", cache / "snapshots/1f3a", "run")
        self.troupe("export", "run", "out")
        self.assertEqual((self.folder / "out/chat_template.jinja").read_text(), "{{ messages }}")
        (self.folder / "run/hf/special_tokens_map.json").symlink_to("../../secret")
        self.assertIn("leaves the folder", self.troupe("export", "run", "out2", code=4))
        self.assertFalse((self.folder / "out2").exists())

    def test_a_small_file_that_is_large_is_refused_unread(self):
        self.save("mixtral", num_local_experts=4, num_experts_per_tok=2)
        with (self.folder / "mixtral/generation_config.json").open("wb") as file:
            file.truncate(3 << 30)
        said = self.troupe("import", "mixtral", "run", code=4)
        self.assertIn("mixtral/generation_config.json: E4003 has 3221225472 bytes, more than 16777216", said)
        self.assertFalse((self.folder / "run").exists())

    def test_F143_a_config_of_too_many_layers_is_refused_at_once(self):
        self.save("mixtral", num_local_experts=4, num_experts_per_tok=2)
        path = self.folder / "mixtral" / "config.json"
        path.write_text(json.dumps(dict(json.loads(path.read_text()), num_hidden_layers=96425)))
        used = lambda: sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
        before = used()
        said = self.troupe("import", "mixtral", "run", code=4)
        self.assertLess(used() - before, 10)
        self.assertIn("num_hidden_layers", said)
        self.assertIn("at most 1024", said)

    def test_a_model_that_was_trained_here_is_loaded_there(self):
        (self.folder / "text.txt").write_text("the cat sat on the mat. the dog ran. " * 200)
        self.troupe("tokenizer", "train", "text.txt", "--vocab", 300, "-o", "tokenizer.json")
        self.troupe("data", "build", "text.txt", "-t", "tokenizer.json", "-o", "data")
        (self.folder / "nano.yaml").write_text(NANO)
        self.troupe("train", "nano.yaml", "--quiet")
        out = json.loads(self.troupe("export", "run", "hub", "--check-logits", "--dtype", "float32",
                                     "--json"))
        self.assertTrue(out["logits"]["equal"])
        model = AutoModelForCausalLM.from_pretrained(self.folder / "hub", dtype=torch.float32).eval()
        tokenizer = AutoTokenizer.from_pretrained(self.folder / "hub")
        text = "the dog sat on the cat."
        ids = tokenizer(text)["input_ids"]
        ours = self.troupe("tokenizer", "encode", "tokenizer.json", text)
        self.assertEqual(ids, [int(i) for i in ours.split()])
        self.assertEqual(tokenizer.eos_token, "<|endoftext|>")
        # Greedy text is a long chain of equal logits.
        made = model.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False)
        said = self.troupe("generate", "run", "-p", text, "-n", 12, "--temperature", 0)
        self.assertEqual(tokenizer.decode(made[0]), said.rstrip("\n"))

    def test_every_family_trained_here_has_the_same_logits_there(self):
        """Built and trained here, so that nothing of a config that was read can help: exported, and loaded by
        transformers from that folder alone. Ours are computed by tests/model_run."""
        ids = torch.randint(0, 96, (2, 40), generator=torch.Generator().manual_seed(4))
        for family, model in BUILT_HERE.items():
            with self.subTest(family):
                (self.folder / f"{family}.yaml").write_text(
                    f"model: {{{model}}}\ndata: {{train: [{{kind: mock}}], sequence: 32}}\ntrain: {{global_batch: 4, steps: 2, "
                    f"precision: fp32, optimizer: {{lr: 1e-2}}}}\ncheckpoint: {{dir: {family}}}\nrun: {{device: cpu}}\n")
                self.troupe("train", f"{family}.yaml", "--quiet")
                made = json.loads(self.troupe("export", family, f"hub-{family}", "--dtype", "float32", "--check-logits",
                                              "--json"))
                self.assertEqual(made["family"], family)
                ours = self.logits_here(family, model, ids)
                for attention in ("eager", "sdpa"):
                    if (family, attention) == ("gpt_oss", "sdpa"):  # whose sinks transformers' SDPA does not have
                        continue
                    theirs = AutoModelForCausalLM.from_pretrained(self.folder / f"hub-{family}", dtype=torch.float32,
                                                                  attn_implementation=attention).eval()
                    with torch.no_grad():
                        logits = theirs(ids).logits
                    largest = logits.abs().max().item()
                    self.assertGreater(largest, 0.1)
                    apart = (logits - ours).abs().max().item()
                    print(f"{family}, {attention}: logits apart by {apart:.2g} of {largest:.3g}")
                    self.assertLess(apart, 1e-4 * max(1, largest), attention)

    def logits_here(self, family, model, ids):
        (self.folder / "model.yaml").write_text("{" + model + "}")
        weights = {name: value.clone() for name, value in load_file(self.folder / f"hub-{family}/model.safetensors").items()}
        torch.save({"ids": ids, "labels": ids, **weights}, self.folder / "in.pt")
        program = pathlib.Path(os.environ["TROUPE_BUILD"], "model_run").resolve()
        subprocess.run([program, family, "model.yaml", "in.pt", "out.pt"], cwd=self.folder, timeout=300, check=True)
        return torch.load(self.folder / "out.pt", weights_only=False)["logits"].detach()


if __name__ == "__main__":
    unittest.main()
