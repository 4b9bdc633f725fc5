"""Fine-tuning with model.lora.frozen: a tiny Qwen2-MoE of transformers is imported and trained with adapters beside weights in few
bits. A run that goes on after a stop has the losses of one that was not stopped, and so do ranks that share experts."""
import json
import pathlib
import re
import shutil
import unittest

import peft
import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM

from tiny_hub import random_model
from tiny_tune import TuneTest

# A layer with experts and a shared expert, and a dense one; rows of 64 elements, and of 128.
MODEL = dict(vocab_size=96, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=64, rms_norm_eps=1e-5, intermediate_size=128, moe_intermediate_size=64, num_experts=4,
             num_experts_per_tok=2, shared_expert_intermediate_size=64, mlp_only_layers=[1])
TARGETS = ["attention", "experts", "shared", "ffn"]
LORA = {"rank": 3, "alpha": 6, "targets": TARGETS, "frozen": {"format": "nf4", "targets": TARGETS}}
MATRICES = ("q.weight", "k.weight", "v.weight", "out.weight", ".w1", ".w2")


# The 16 values of NF4: table 5 of QLoRA (arXiv 2305.14314).
NF4 = torch.tensor([-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
                    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
                    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0])


def rounded_to_nf4(w):
    """Blocks of 64 along a row over their largest magnitude, each at the nearest of the 16 values."""
    blocks = w.reshape(-1, 64)
    scale = blocks.abs().amax(1, keepdim=True)
    nearest = (blocks / scale).unsqueeze(-1).sub(NF4).abs().argmin(-1)
    return (NF4[nearest] * scale).view_as(w)


class FrozenBits(TuneTest):
    def setUp(self):
        super().setUp()
        random_model(AutoConfig.for_model("qwen2_moe", **MODEL), torch.float32, std=0.15).save_pretrained(self.folder / "base")
        self.troupe("import", "base", "run")
        self.write_recipe(LORA, every_steps=4)

    def train(self, *sets):
        self.troupe("train", "tune.yaml", "--quiet", *(word for one in sets for word in ("--set", one)))

    def saved(self, step):
        """The names of the tensors in a step's own files."""
        out = set()
        for path in pathlib.Path(self.folder, step).glob("*.safetensors"):
            with safe_open(path, "pt") as shard:
                out |= set(shard.keys())
        return out

    def test_245_a_run_that_goes_on_has_the_losses_of_one_that_was_not_stopped(self):
        self.train()
        log = (self.folder / "tuned/log.txt").read_text()
        self.assertRegex(log, r"frozen weights: [0-9.]+ KiB in nf4 \(attention, experts, shared, ffn\), [0-9.]+ KiB in fp32")
        whole = self.losses("tuned")
        self.assertEqual(len(whole), 8)
        self.assertLess(whole[-1], whole[0])
        # As if it had been stopped behind the fourth step.
        shutil.copytree(self.folder / "tuned", self.folder / "cut")
        shutil.rmtree(self.folder / "cut/step-000008")
        self.train("checkpoint.dir=cut", "checkpoint.resume=step 4")
        self.assertIn("resumed step 4", (self.folder / "cut/log.txt").read_text())
        self.assertEqual(self.losses("cut")[-4:], whole[4:])

    def test_245_a_checkpoint_holds_no_weight_in_few_bits(self):
        self.train()
        names = self.saved("tuned/step-000008")
        self.assertTrue(any("lora_a" in name for name in names))
        model = {name for name in names if name.startswith("model.") and "lora" not in name}
        self.assertEqual({name for name in model if any(matrix in name for matrix in MATRICES)}, set())
        manifest = json.loads((self.folder / "tuned/step-000008/manifest.json").read_text())
        self.assertIn("run/step-000000", manifest["base"]["folder"])

    def test_245_adapters_are_exported_alone_and_merged_into_the_full_weights(self):
        self.train()
        self.troupe("export", "tuned", "--adapter", "adapter", "--base", str(self.folder / "base"))
        base = AutoModelForCausalLM.from_pretrained(self.folder / "base", dtype=torch.float32)
        adapted = peft.PeftModel.from_pretrained(base, str(self.folder / "adapter")).eval()
        said = json.loads(self.troupe("export", "tuned", "merged", "--merge", "--dtype", "float32", "--check-logits", "--json"))
        self.assertLess(said["logits"]["max_difference"], 1e-4 * said["logits"]["largest"])
        merged = AutoModelForCausalLM.from_pretrained(self.folder / "merged", dtype=torch.float32).eval()
        ids = torch.arange(48).view(2, 24)
        with torch.no_grad():
            a, b = adapted(ids).logits, merged(ids).logits
        self.assertLess((a - b).abs().max(), 1e-4 * b.abs().max())

    def test_245_the_losses_are_those_of_the_base_rounded_to_nf4(self):
        self.train()
        self.train("checkpoint.dir=full", "model.lora.frozen=null")
        model = AutoModelForCausalLM.from_pretrained(self.folder / "base", dtype=torch.float32)
        with torch.no_grad():
            for name, p in model.named_parameters():
                if re.search(r"_proj(\.weight)?$", name):
                    p.copy_(rounded_to_nf4(p))
        model.save_pretrained(self.folder / "rounded")
        self.troupe("import", "rounded", "rounded-run")
        self.train("checkpoint.dir=rounded-tuned", "model.lora.frozen=null", "checkpoint.init_from=rounded-run/step-000000")
        few, rounded, full = self.losses("tuned"), self.losses("rounded-tuned"), self.losses("full")
        for a, b in zip(few, rounded):
            self.assertLess(abs(a - b), 1e-4 * abs(a), (few, rounded))
        self.assertGreater(abs(few[0] - full[0]), 1e-4 * full[0])

    def test_245_the_weights_come_from_the_base_wherever_it_is(self):
        self.train()
        evaluate = ("eval", "tuned", "--json", "--set", "data.valid=[{kind: mock, documents: 4}]")
        said = self.troupe(*evaluate)
        (self.folder / "run").rename(self.folder / "moved")
        self.assertIn("run/step-000000", self.troupe(*evaluate, code=4))
        self.assertEqual(self.troupe(*evaluate, "--set", "checkpoint.init_from=moved/step-000000"), said)

    def test_245_ranks_that_share_experts_train_the_same(self):
        self.train()
        self.check_two_ranks()
        said = self.troupe("check", "tune.yaml", "--ranks", "2", "--set", "parallel={tensor: 2}", "--set",
                           "model.lora.targets=[router]", code=2)
        self.assertIn("2 ranks would cut the matrices of attention, which model.lora.frozen keeps in few bits", said)

    def test_245_plan_counts_the_packed_bytes(self):
        def weights(*sets):
            words = (word for one in sets for word in ("--set", one))
            return json.loads(self.troupe("plan", "tune.yaml", "--json", *words))["parts"]["weights"]

        packed, some, full = weights(), weights("model.lora.frozen.targets=[experts]"), weights("model.lora.frozen=null")
        self.assertLess(packed, 0.4 * full)
        self.assertLess(packed, some)
        self.assertLess(some, full)

    def test_245_what_cannot_be_is_refused_with_what_to_do(self):
        for lora, said in (
                (LORA | {"rank": 0}, "cannot be trained, and model.lora.rank is 0: set model.lora.rank"),
                (LORA | {"frozen": {"targets": []}}, "model.lora.frozen.targets: E2005 is empty"),
                (LORA | {"frozen": {"targets": ["router"]}}, "names router, which is small"),
                (LORA | {"frozen": {"format": "int8"}}, "is int8, in which 128 elements of a row share a scale; matrices of "
                                                        "experts in layer 0 have rows of 64 : use a format with smaller groups"),
                (LORA | {"frozen": {"format": "int4"}}, "nf4, int8, fp8, mxfp4")):
            self.write_recipe(lora, every_steps=4)
            self.assertIn(said, self.troupe("train", "tune.yaml", code=2))
        self.write_recipe(LORA, every_steps=4)
        for one, said in (("train.fp8={}", "model.lora.frozen keeps weights in nf4 already: leave one of the two out"),
                          ("model.moe.impl=loop", "need impl grouped"),
                          ("checkpoint.base=saved", "those in few bits (model.lora.frozen) are saved nowhere"),
                          ("model.moe.recompute=expert", "keep H: recompute must be none, act or layer")):
            self.assertIn(said, self.troupe("train", "tune.yaml", "--set", one, "--set", "train.precision=auto", code=2))


if __name__ == "__main__":
    unittest.main()
