"""Fine-tuning with model.lora: a tiny Qwen2-MoE of transformers is imported, trained with adapters on every target, and exported
as PEFT's folder and merged. PEFT, transformers and this program must compute the same logits of it."""
import json
import shutil
import unittest

import peft
import torch
import yaml
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from tiny_hub import random_model
from tiny_tune import TuneTest

# A layer with experts, a shared expert and a router, and a dense one.
MODEL = dict(vocab_size=96, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=64, rms_norm_eps=1e-5, intermediate_size=48, moe_intermediate_size=32, num_experts=4,
             num_experts_per_tok=2, shared_expert_intermediate_size=40, mlp_only_layers=[1])
TARGETS = ["attention", "experts", "shared", "router", "ffn"]
LORA = {"rank": 3, "alpha": 6, "targets": TARGETS}


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def logits(model):
    with torch.no_grad():
        return model(torch.arange(48).view(2, 24)).logits


def apart(a, b):
    return ((a - b).abs().max() / b.abs().max()).item()


class Adapters(TuneTest):
    def imported(self, seed=5):
        random_model(AutoConfig.for_model("qwen2_moe", **MODEL), torch.float32, std=0.15, seed=seed).save_pretrained(
            self.folder / "base")
        self.troupe("import", "base", "run")

    def tuned(self, **lora):
        self.imported()
        self.write_recipe(LORA | lora)
        self.troupe("train", "tune.yaml", "--quiet")

    def export_adapter(self, *options):
        self.troupe("export", "tuned", "--adapter", "adapter", "--base", str(self.folder / "base"), "--force", *options)

    def with_peft(self):
        self.export_adapter()
        return peft.PeftModel.from_pretrained(load(self.folder / "base"), str(self.folder / "adapter")).eval()

    def merged(self):
        said = json.loads(self.troupe("export", "tuned", "merged", "--merge", "--force", "--dtype", "float32", "--check-logits", "--json"))
        # This program: the checkpoint's factors apart, and the merged files.
        self.assertLess(said["logits"]["max_difference"], 1e-4 * said["logits"]["largest"])
        return load(self.folder / "merged")

    def test_245_peft_transformers_and_this_program_agree_on_the_logits(self):
        self.tuned()
        log = (self.folder / "tuned/log.txt").read_text()
        self.assertRegex(log, r"\d+ factors of adapters are not in the checkpoint and begin with zero effect")
        base, merged, adapted = logits(load(self.folder / "base")), logits(self.merged()), logits(self.with_peft())
        self.assertGreater(apart(merged, base), 0.01)
        self.assertLess(apart(adapted, merged), 1e-4)
        config = json.loads((self.folder / "adapter/adapter_config.json").read_text())
        self.assertEqual(config["base_model_name_or_path"], str(self.folder / "base"))
        self.assertEqual(sorted(config["target_parameters"]),
                         ["mlp.experts.down_proj", "mlp.experts.gate_up_proj", "mlp.gate.weight"])
        self.assertEqual(sorted(config["target_modules"]), sorted(
            [f"self_attn.{p}_proj" for p in "qkvo"] +
            [f"mlp.{part}{p}_proj" for part in ("", "shared_expert.") for p in ("gate", "up", "down")]))

    def test_245_rslora_divides_by_the_root_of_the_rank(self):
        self.tuned(rslora=True)
        model = self.with_peft()
        self.assertTrue(model.peft_config["default"].use_rslora)
        self.assertLess(apart(logits(model), logits(self.merged())), 1e-4)

    def test_245_the_layout_of_0_18_says_the_same_of_experts(self):
        self.tuned()
        self.export_adapter("--peft", "0.18")
        base = dict(load(self.folder / "base").named_parameters())
        merged = dict(self.merged().named_parameters())
        factors = load_file(self.folder / "adapter/adapter_model.safetensors")
        for name, under in (("gate_up_proj", "base_layer."), ("down_proj", "")):
            at = "model.layers.0.mlp.experts."
            a, b = (factors[f"base_model.model.{at}{under}lora_{x}.weight"] for x in "AB")
            a, b = a.reshape(4, 3, -1), b.reshape(b.shape[0], 3, 4)
            # What PEFT 0.18 adds to a parameter [E, i, o], whatever its dimensions mean.
            delta = torch.einsum("o r e, e r i -> e i o", b, a) * LORA["alpha"] / LORA["rank"]
            want = (merged[at + name] - base[at + name]).detach()
            self.assertGreater(want.abs().max(), 1e-3)
            self.assertLess(apart(delta, want), 1e-4, name)

    def test_245_the_base_keeps_its_bits(self):
        self.tuned()
        newest = max(path.name for path in (self.folder / "tuned").glob("step-*"))
        told = json.loads(self.troupe("diff", "run/step-000000", f"tuned/{newest}", "--only", "model.*", "--json", "--all", code=1))
        self.assertGreater(told["tensors"], 20)
        names = {d["name"] for d in told["differences"]}
        factors = {name for name in names if name.endswith(("lora_a", "lora_b"))}
        # Four products of attention in each of two layers, two of each of four experts, of the shared one and of the dense
        # one, and the router.
        self.assertEqual(len(factors), 2 * (2 * 4 + 2 * 4 + 2 + 2 + 1))
        self.assertEqual({name for name in names - factors if not name.endswith("previous_fractions")}, set())
        # Nor has the optimizer anything of it.
        told = json.loads(self.troupe("diff", "run/step-000000", f"tuned/{newest}", "--only", "optimizer.*", "--json", code=1))
        self.assertGreater(told["tensors"], 0)
        self.assertEqual({d["name"] for d in told["differences"] if not d["name"].endswith(("lora_a", "lora_b"))}, set())

    def newest(self, run="tuned"):
        return max((self.folder / run).glob("step-*"))

    def own_tensors(self, run="tuned"):
        """The tensors that a run's newest checkpoint holds itself."""
        lines = [line for file in self.newest(run).glob("*.jsonl") for line in file.read_text().splitlines()]
        return {json.loads(line)["name"] for line in lines}

    def test_245_a_checkpoint_holds_the_adapters_alone_and_names_its_base(self):
        self.tuned()
        names = self.own_tensors()
        weights = {n for n in names if n.startswith("model.") and not n.endswith("previous_fractions")}
        self.assertEqual({n for n in weights if not n.endswith(("lora_a", "lora_b"))}, set())
        self.assertEqual(len(weights), 2 * (2 * 4 + 2 * 4 + 2 + 2 + 1))
        base = json.loads((self.newest() / "manifest.json").read_text())["base"]
        self.assertEqual((base["folder"], base["beside"]), ("run/step-000000", "../run/step-000000"))
        self.assertIn("its base, run/step-000000", self.troupe("inspect", "tuned"))
        self.assertEqual(json.loads(self.troupe("inspect", "tuned", "--json"))["base"], "run/step-000000")
        self.assertIn("checkpoints leave out the frozen weights and name their base", (self.folder / "tuned/log.txt").read_text())
        # With the frozen weights in it, a checkpoint says the same of every tensor.
        self.troupe("train", "tune.yaml", "--quiet", "--set", "checkpoint.dir=whole", "--set", "checkpoint.base=saved")
        self.assertNotIn("base", json.loads((self.newest("whole") / "manifest.json").read_text()))
        self.assertGreater(len(self.own_tensors("whole")), len(names))
        self.troupe("diff", "tuned", "whole", "--only", "model.*")
        size = {run: sum(f.stat().st_size for f in self.newest(run).glob("*.safetensors")) for run in ("tuned", "whole")}
        self.assertLess(size["tuned"], 0.6 * size["whole"])
        self.troupe("eval", "tuned", "--set", "data.valid=[{kind: mock, documents: 2}]")

    def test_245_a_run_resumes_with_its_base_in_any_layout(self):
        self.imported()
        self.write_recipe(LORA, every_steps=4, keep=0)
        self.troupe("train", "tune.yaml", "--quiet")
        want = self.losses("tuned")[4:]
        for layout in ("{}", "{expert: 2}", "{shard: full}", "{pipeline: 2}"):
            run = "again-" + "".join(c for c in layout if c.isalnum())
            launched = () if layout == "{}" else ("launch", "-n", "2", "--quiet", "--")
            shutil.copytree(self.folder / "tuned/step-000004", self.folder / run / "step-000004")
            options = ["--set", f"checkpoint.dir={run}", "--set", f"parallel={layout}"]
            self.troupe(*launched, "train", "tune.yaml", "--quiet", *options)
            again = self.losses(run)
            self.assertEqual(len(again), 4, layout)
            for a, b in zip(want, again):
                self.assertEqual(a, b) if layout == "{}" else self.assertLess(abs(a - b), 1e-4 * abs(a), layout)
            self.assertNotIn("model.layers.0.attention.q.weight", self.own_tensors(run))
            self.troupe("inspect", run)

    def test_245_a_moved_base_is_named_and_a_changed_one_refused(self):
        self.imported()
        self.write_recipe(LORA, every_steps=4, keep=0)
        self.troupe("train", "tune.yaml", "--quiet")
        (self.folder / "run").rename(self.folder / "moved")
        shutil.copytree(self.folder / "tuned/step-000004", self.folder / "again/step-000004")
        again = ("train", "tune.yaml", "--quiet", "--set", "checkpoint.dir=again")
        for words in (("inspect", "tuned"), ("diff", "tuned", "tuned"), again):
            said = self.troupe(*words, code=4)
            self.assertIn("E4010", said)
            self.assertIn("run/step-000000: there is no checkpoint", said)
        moved = ("--set", "checkpoint.init_from=moved")
        self.troupe("eval", "tuned", "--set", "data.valid=[{kind: mock, documents: 2}]", *moved)
        self.troupe(*again, *moved)
        self.assertEqual(self.losses("again"), self.losses("tuned")[4:])
        self.assertEqual(json.loads((self.newest("again") / "manifest.json").read_text())["base"]["folder"], "moved/step-000000")
        # Another import in its place has other weights.
        self.imported(seed=6)
        said = self.troupe("inspect", "tuned", code=4)
        self.assertIn("run/step-000000: holds other weights, whose hash is", said)

    def test_245_a_run_whose_checkpoints_hold_the_base_goes_on_so(self):
        self.imported()
        self.write_recipe(LORA, every_steps=4, keep=0, base="saved")
        self.troupe("train", "tune.yaml", "--quiet")
        shutil.copytree(self.folder / "tuned/step-000004", self.folder / "again/step-000004")
        shutil.rmtree(self.folder / "run")
        self.troupe("train", "tune.yaml", "--quiet", "--set", "checkpoint.dir=again", "--set", "checkpoint.base=named")
        self.assertEqual(self.losses("again"), self.losses("tuned")[4:])
        self.troupe("diff", "again", "tuned")

    def import_adapter(self, run="start"):
        return json.loads(self.troupe("import", "run", run, "--adapter", "adapter", "--json"))

    def test_245_an_exported_adapter_is_imported_bit_for_bit(self):
        self.tuned()
        for version in ("0.19", "0.18"):
            self.export_adapter("--peft", version)
            run = f"start-{version}"
            told = self.import_adapter(run)
            self.assertEqual((told["rank"], told["alpha"], told["targets"], told["added"]), (3, 6, TARGETS, 0))
            self.troupe("export", run, "--adapter", "again", "--peft", version, "--force")
            self.assertEqual((self.folder / "again/adapter_model.safetensors").read_bytes(),
                             (self.folder / "adapter/adapter_model.safetensors").read_bytes(), version)
        # Trained on, from the factors and the base's weights.
        self.write_recipe(LORA, dir="further", init_from="start-0.19/step-000000")
        self.troupe("train", "tune.yaml", "--quiet")
        base = json.loads((self.newest("further") / "manifest.json").read_text())["base"]["folder"]
        self.assertEqual(base, "start-0.19/step-000000")
        self.troupe("export", "further", "--adapter", "adapter", "--force")
        self.assertNotEqual(self.losses("further")[0], self.losses("tuned")[0])

    def made_by_peft(self, **config):
        """Saves an adapter of random factors; returns PEFT's logits with it."""
        model = peft.get_peft_model(load(self.folder / "base"), peft.LoraConfig(task_type="CAUSAL_LM", r=3, lora_alpha=6, **config))
        with torch.no_grad():
            for name, p in model.named_parameters():
                if "lora_" in name:
                    p.normal_(std=0.2)
        model.eval().save_pretrained(self.folder / "adapter")
        return logits(model)

    DORA = {"rank": 3, "alpha": 6, "dora": True, "targets": ["attention", "shared", "ffn"]}

    def test_245_magnitudes_of_dora_are_pefts(self):
        self.imported()
        self.write_recipe(self.DORA)
        self.troupe("train", "tune.yaml", "--quiet")
        model = self.with_peft()
        self.assertTrue(model.peft_config["default"].use_dora)
        adapted, merged = logits(model), logits(self.merged())
        self.assertLess(apart(adapted, merged), 1e-4)
        vectors = {n: t for n, t in load_file(self.folder / "adapter/adapter_model.safetensors").items() if "magnitude" in n}
        # q, k, v, o of two layers; gate, up and down of the shared expert and of the dense layer.
        self.assertEqual(len(vectors), 2 * 4 + 2 * 3)
        base = dict(load(self.folder / "base").named_parameters())
        for name, vector in vectors.items():
            norms = base[name.removeprefix("base_model.model.").replace("lora_magnitude_vector", "weight")].norm(dim=1)
            self.assertGreater(apart(vector, norms), 1e-3, name)
            with torch.no_grad():
                vector.copy_(norms)
        # Without what was learned of them the logits are others.
        file = self.folder / "adapter/adapter_model.safetensors"
        save_file(load_file(file) | vectors, file)
        plain = peft.PeftModel.from_pretrained(load(self.folder / "base"), str(self.folder / "adapter")).eval()
        self.assertGreater(apart(logits(plain), merged), 1e-3)

    def test_245_magnitudes_of_peft_are_imported_and_start_at_the_norms(self):
        self.imported()
        theirs = self.made_by_peft(use_dora=True, target_modules=[f"self_attn.{p}_proj" for p in "qkvo"])
        told = self.import_adapter()
        self.assertEqual((told["targets"], told["added"]), (["attention"], 0))
        self.assertLess(apart(self.start_merged(), theirs), 1e-4)
        # A new run begins at the base.
        self.write_recipe(self.DORA)
        self.troupe("train", "tune.yaml", "--quiet", "--set", "train.steps=1", "--set", "train.optimizer.lr=1e-9")
        self.assertLess(apart(logits(self.merged()), logits(load(self.folder / "base"))), 1e-5)

    def test_245_magnitudes_are_refused_where_there_are_none(self):
        self.imported()
        for lora, said in ((self.DORA | {"targets": ["experts"]}, "model.lora.dora: E2005 is true and model.lora.targets names experts"),
                           (self.DORA | {"targets": ["router"]}, "model.lora.targets names router, which has no magnitudes"),
                           ({"dora": True}, "model.lora.dora: E2005 is true and model.lora.rank is 0")):
            self.write_recipe(lora)
            self.assertIn(said, self.troupe("train", "tune.yaml", "--quiet", code=2))

    def start_merged(self):
        self.troupe("export", "start", "merged", "--merge", "--dtype", "float32", "--check-logits", "--force")
        return logits(load(self.folder / "merged"))

    def test_245_an_adapter_of_peft_is_imported(self):
        self.imported()
        # Two matrices of attention: the others of the target begin without effect.
        theirs = self.made_by_peft(target_modules=["q_proj", "v_proj"], use_rslora=True)
        told = self.import_adapter()
        self.assertEqual((told["rank"], told["targets"], told["tensors"], told["added"]), (3, ["attention"], 8, 4))
        self.assertGreater(apart(theirs, logits(load(self.folder / "base"))), 0.01)
        self.assertLess(apart(self.start_merged(), theirs), 1e-4)
        # Everything, with an A each for gate_proj and up_proj.
        for path in ("start", "adapter"):
            shutil.rmtree(self.folder / path)
        theirs = self.made_by_peft(
            target_modules=[f"self_attn.{p}_proj" for p in "qkvo"] +
            [f"mlp.{part}{p}_proj" for part in ("", "shared_expert.") for p in ("gate", "up", "down")],
            target_parameters=["mlp.experts.down_proj", "mlp.experts.gate_up_proj", "mlp.gate.weight"])
        told = self.import_adapter()
        self.assertEqual((told["rank"], told["alpha"], told["targets"], told["added"]), (6, 12, TARGETS, 0))
        self.assertLess(apart(self.start_merged(), theirs), 1e-4)

    def test_245_an_adapter_that_does_not_fit_is_refused_by_name(self):
        self.imported()
        self.made_by_peft(target_modules=["q_proj"])
        file = self.folder / "adapter/adapter_config.json"
        config = json.loads(file.read_text())
        for change, said in (({"use_dora": True}, "q_proj.lora_magnitude_vector, and use_dora is true"),
                             ({"modules_to_save": ["lm_head"]}, "modules_to_save is"), ({"bias": "all"}, "bias is"),
                             ({"rank_pattern": {"q_proj": 4}}, "rank_pattern is"), ({"peft_type": "IA3"}, "peft_type is"),
                             ({"init_lora_weights": "pissa"}, "which changes the base's weights"), ({"r": 4}, "of rank 4")):
            file.write_text(json.dumps(config | change))
            self.assertIn(said, self.troupe("import", "run", "x", "--adapter", "adapter", code=4))
        file.write_text(json.dumps(config))
        self.assertIn("is a Hugging Face folder", self.troupe("import", "base", "x", "--adapter", "adapter", code=2))
        shutil.rmtree(self.folder / "adapter")
        self.made_by_peft(target_modules=["q_proj", "lm_head"])
        said = self.troupe("import", "run", "x", "--adapter", "adapter", code=4)
        self.assertIn("base_model.model.lm_head.lora_A.weight", said)
        self.assertFalse((self.folder / "x").exists())
        self.assertIn("--dtype", self.troupe("import", "run", "x", "--adapter", "adapter", "--dtype", "float32", code=2))

    def test_245_expert_ranks_and_sharded_parameters_train_the_same(self):
        self.tuned()
        self.check_two_ranks()

    def test_245_tensor_ranks_train_the_same_and_their_checkpoints_are_of_any_layout(self):
        self.imported()
        self.write_recipe(LORA, every_steps=4, keep=0)
        self.troupe("train", "tune.yaml", "--quiet")
        want, cut = self.losses("tuned"), "parallel={tensor: 2, split_shared: on}"
        self.with_ranks("cut", cut)
        self.check_losses(self.losses("cut"), want, cut)
        # One process goes on from their step, and they from its own.
        shutil.copytree(self.folder / "cut/step-000004", self.folder / "one/step-000004")
        self.troupe("train", "tune.yaml", "--quiet", "--set", "checkpoint.dir=one")
        self.check_losses(self.losses("one"), want[4:], "one")
        shutil.copytree(self.folder / "tuned/step-000004", self.folder / "two/step-000004")
        self.with_ranks("two", cut)
        self.check_losses(self.losses("two"), want[4:], "two")
        # Factors of both are whole, and PEFT's.
        merged = []
        for run in ("tuned", "cut"):
            self.troupe("export", run, "merged", "--merge", "--dtype", "float32", "--force")
            merged.append(logits(load(self.folder / "merged")))
        self.assertLess(apart(*merged), 1e-3)

    def with_ranks(self, run, *settings):
        options = [word for setting in (f"checkpoint.dir={run}", *settings) for word in ("--set", setting)]
        self.troupe("launch", "-n", "2", "--quiet", "--", "train", "tune.yaml", "--quiet", *options)

    def check_losses(self, own, want, what):
        self.assertEqual(len(own), len(want), what)
        for a, b in zip(want, own):
            self.assertLess(abs(a - b), 1e-4 * abs(a), (what, want, own))

    def test_245_dropout_is_drawn_by_the_token_whatever_the_layout(self):
        self.imported()
        self.write_recipe(LORA | {"dropout": 0.3}, every_steps=4, keep=0)
        self.troupe("train", "tune.yaml", "--quiet")
        want = self.losses("tuned")
        # Recomputed layers draw the same, and so does a run that goes on: the same bits.
        for run, setting in (("again", "train.recompute='1'"), ("layers", "model.moe.recompute=layer")):
            self.troupe("train", "tune.yaml", "--quiet", "--set", f"checkpoint.dir={run}", "--set", setting)
            self.assertEqual(self.losses(run), want, setting)
        shutil.copytree(self.folder / "tuned/step-000004", self.folder / "further/step-000004")
        self.troupe("train", "tune.yaml", "--quiet", "--set", "checkpoint.dir=further")
        self.assertEqual(self.losses("further"), want[4:])
        for layout in ("shard: full", "pipeline: 2", "context: 2", "tensor: 2, split_shared: on"):
            run = "".join(c for c in layout if c.isalnum())
            self.with_ranks(run, f"parallel={{{layout}}}")
            self.check_losses(self.losses(run), want, layout)
        # It drops: at the first step B is zero, at those behind it is not.
        self.troupe("train", "tune.yaml", "--quiet", "--set", "checkpoint.dir=kept", "--set", "model.lora.dropout=0")
        self.assertEqual(self.losses("kept")[0], want[0])
        self.assertGreater(abs(self.losses("kept")[-1] - want[-1]), 1e-4)
        # Outside training it does not: the checkpoint's logits are those of the merged weights, and PEFT's.
        self.assertLess(apart(logits(self.with_peft()), logits(self.merged())), 1e-4)

    def test_245_dropout_goes_to_peft_and_comes_back(self):
        self.tuned(dropout=0.25, targets=["attention", "shared", "ffn"])
        self.export_adapter()
        file = self.folder / "adapter/adapter_config.json"
        self.assertEqual(json.loads(file.read_text())["lora_dropout"], 0.25)
        self.assertEqual(self.with_peft().peft_config["default"].lora_dropout, 0.25)
        self.import_adapter()
        lora = yaml.safe_load((self.folder / "start/recipe.yaml").read_text())["model"]["lora"]
        self.assertEqual((lora["rank"], lora["dropout"]), (3, 0.25))
        file.write_text(json.dumps(json.loads(file.read_text()) | {"lora_dropout": 1.0}))
        self.assertIn("lora_dropout is 1.0; it must be in [0, 1)", self.troupe("import", "run", "x", "--adapter", "adapter", code=4))
        # PEFT refuses dropout beside a parameter that it adapts by itself.
        self.write_recipe(LORA | {"dropout": 0.25}, dir="whole")
        self.troupe("train", "tune.yaml", "--quiet", "--set", "train.steps=1")
        self.troupe("export", "whole", "--adapter", "adapter", "--base", str(self.folder / "base"), "--force")
        self.assertEqual(json.loads(file.read_text())["lora_dropout"], 0)

    def test_245_what_cannot_be_is_refused_with_what_to_do(self):
        self.imported()
        for lora, said in (({"rank": 3, "targets": ["attention", "head"]}, "one of attention, experts, shared, router, ffn"),
                           ({"rank": 3, "targets": []}, "name at least one of attention, experts, shared, router, ffn"),
                           ({"rank": 3, "targets": ["router", "router"]}, "model.lora.targets: E2005 names router more than once"),
                           ({"rank": -1}, "model.lora.rank: E2005 is -1; it must be 0 (off) or more"),
                           ({"rank": 65}, "model.lora.rank: E2005 is 65 and the model's width is 64"),
                           ({"rank": 3, "alpha": 0}, "model.lora.alpha: E2005 is 0; it must be above 0"),
                           ({"rank": 3, "dropout": 1}, "model.lora.dropout: E2005 is 1; it must be in [0, 1)"),
                           ({"dropout": 0.1}, "model.lora.dropout: E2005 is 0.1 and model.lora.rank is 0"),
                           ({"frozen": {"format": "nf4"}}, "keeps weights in few bits, which cannot be trained"),
                           ({"rank": 3, "frozen": {"format": "int4"}}, "one of nf4, int8, fp8, mxfp4"),
                           ({"rank": 3, "frozen": {"targets": ["router"]}}, "model.lora.frozen.targets: E2005 names router"),
                           ({"rank": 3, "dora": True, "targets": ["router"]}, "names router, which has no magnitudes")):
            self.write_recipe(lora)
            self.assertIn(said, self.troupe("train", "tune.yaml", code=2))
        layouts = (({"dropout": 0.1}, "expert: 2", "2 ranks send rows to each other's experts, whose adapters drop by the row's token"),
                   ({"dropout": 0.1}, "tensor: 2, context: 2", "gather tokens of places that dropout of adapters"),
                   ({"frozen": {"targets": ["attention"]}}, "tensor: 2", "which model.lora.frozen keeps in few bits, whole; use 1"),
                   ({}, "expert_tensor: 2", "2 slices, which experts with lora do not take; use 1"))
        for lora, layout, said in layouts:
            self.write_recipe(LORA | lora)
            self.assertIn(said, self.troupe("check", "tune.yaml", "--ranks", "4", "--set", f"parallel={{{layout}}}", code=2))
        self.assertIn("has no adapters: it was not trained with model.lora", self.troupe("export", "run", "x", "--merge", code=4))
        self.assertIn("has no adapters", self.troupe("export", "run", "--adapter", "x", code=4))
        self.write_recipe({"rank": 2})
        self.troupe("train", "tune.yaml", "--quiet", "--set", "train.steps=1")
        said = self.troupe("export", "tuned", "x", code=4)
        self.assertIn("factors of adapters, for which the folder of a whole model has no place: --merge adds them", said)
        self.assertFalse((self.folder / "x").exists())
        self.assertIn("--merge", self.troupe("export", "tuned", "--adapter", "x", "--merge", code=2))
        self.assertIn("--peft", self.troupe("export", "tuned", "x", "--peft", "0.18", code=2))
        self.assertIn("0.18, 0.19", self.troupe("export", "tuned", "--adapter", "x", "--peft", "0.17", code=2))


if __name__ == "__main__":
    unittest.main()
