"""Preference pairs and train.loss: dpo. A tiny Qwen2-MoE with adapters on every target is trained on pairs, beside torch: the
published formulas (DPO, IPO, SLiC) over transformers' model in PEFT, whose reference is the same model with its adapter disabled,
as TRL's DPOTrainer computes them, and that trainer's own loss."""
import json
import unittest

import peft
import torch
import yaml
from torch.nn.functional import logsigmoid
from transformers import AutoConfig, AutoModelForCausalLM

import trl_dpo
from tiny_hub import FolderTest, random_model

MODEL = dict(vocab_size=256, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=64, rms_norm_eps=1e-5, intermediate_size=48, moe_intermediate_size=32, num_experts=4,
             num_experts_per_tok=2, shared_expert_intermediate_size=40, mlp_only_layers=[1], router_aux_loss_coef=0.0)
LORA = {"rank": 3, "alpha": 6, "targets": ["attention", "experts", "shared", "router", "ffn"]}
PAIRS = [{"prompt": "1 + 2 =", "chosen": " 3.", "rejected": " 4, or so"}, {"prompt": "Say hi: ", "chosen": "hi", "rejected": "no"},
         {"prompt": "a b c ", "chosen": "d e f", "rejected": "z"}, {"prompt": "Who sat? ", "chosen": "The cat.", "rejected": "A d\u00f6g"}]
RATE, BETA = 0.01, 0.2


def rows_of(pairs):
    """ids, labels' mask and length of each row, chosen and rejected in turns, padded behind."""
    rows = [(pair["prompt"].encode(), pair[name].encode()) for pair in pairs for name in ("chosen", "rejected")]
    width = max(len(prompt + answer) for prompt, answer in rows)
    ids, mask = torch.zeros(len(rows), width, dtype=torch.long), torch.zeros(len(rows), width - 1)
    for i, (prompt, answer) in enumerate(rows):
        ids[i, :len(prompt + answer)] = torch.tensor(list(prompt + answer))
        mask[i, len(prompt) - 1:len(prompt + answer) - 1] = 1
    return ids, mask


def log_probs(model, ids, mask):
    words = model(ids).logits[:, :-1].log_softmax(-1).gather(2, ids[:, 1:].unsqueeze(2)).squeeze(2)
    return (words * mask).sum(1)


def loss_of(ratio, mask, kind, smoothing):
    if kind == "ipo":
        mean = ratio / mask.sum(1)
        return (mean[0::2] - mean[1::2] - 1 / (2 * BETA)).square().mean()
    logits = BETA * (ratio[0::2] - ratio[1::2])
    if kind == "hinge":
        return (1 - logits).relu().mean()
    return (-logsigmoid(logits) * (1 - smoothing) - logsigmoid(-logits) * smoothing).mean()


class Dpo(FolderTest):
    def setUp(self):
        super().setUp()
        random_model(AutoConfig.for_model("qwen2_moe", **MODEL), torch.float32, std=0.15).save_pretrained(self.folder / "base")
        self.troupe("import", "base", "run")
        self.build("pairs", PAIRS)

    def build(self, name, rows):
        (self.folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return self.troupe("data", "build", f"{name}.jsonl", "--format", "chat", "-t", "bytes", "-o", name, "--template", "none")

    def write_recipe(self, name, start, **train):
        recipe = {"model": yaml.safe_load((self.folder / "run/recipe.yaml").read_text())["model"] | {"lora": LORA},
                  "data": {"train": [{"path": "pairs"}], "sequence": 32, "tokenizer": "bytes"},
                  "train": {"loss": "dpo", "dpo": {"beta": BETA}, "global_batch": 8, "micro_batch": 4, "steps": 3, "precision": "fp32",
                            "clip": 0, "optimizer": {"lr": RATE, "weight_decay": 0},
                            "schedule": {"kind": "constant", "warmup": 0}} | train,
                  "checkpoint": {"dir": name, "init_from": start}, "run": {"device": "cpu"}}
        (self.folder / f"{name}.yaml").write_text(json.dumps(recipe))

    def step_of(self, name):
        return f"{name}/{max(path.name for path in (self.folder / name).glob('step-*'))}"

    def train(self, name, start, **train):
        self.write_recipe(name, start, **train)
        self.troupe("train", f"{name}.yaml", "--quiet")
        return self.records(name)

    def records(self, name):
        records = map(json.loads, (self.folder / name / "log.jsonl").read_text().splitlines())
        return [r for r in records if "event" not in r]

    def with_peft(self):
        """The adapters of the run `first`, to be trained on."""
        self.troupe("export", "first", "--adapter", "adapter", "--base", str(self.folder / "base"), "--force")
        base = AutoModelForCausalLM.from_pretrained(self.folder / "base", dtype=torch.float32).eval()
        return peft.PeftModel.from_pretrained(base, str(self.folder / "adapter"), is_trainable=True).eval()

    def torch_steps(self, kind="sigmoid", smoothing=0.0):
        model = self.with_peft()
        ids, mask = rows_of(PAIRS)
        with torch.no_grad(), model.disable_adapter():
            reference = log_probs(model, ids, mask)
        factors = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(factors, lr=RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=0)
        out = []
        for _ in range(3):
            ratio = log_probs(model, ids, mask) - reference
            loss = loss_of(ratio, mask, kind, smoothing)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            reward = BETA * ratio.detach()
            out.append({"loss": loss.item(), "rewards/chosen": reward[0::2].mean().item(),
                        "rewards/rejected": reward[1::2].mean().item(),
                        "rewards/accuracies": (reward[0::2] > reward[1::2]).float().mean().item(),
                        "rewards/margins": (reward[0::2] - reward[1::2]).mean().item()})
        return out

    def test_the_losses_of_three_steps_are_those_of_torch(self):
        first = self.train("first", "run/step-000000", steps=2)
        self.assertAlmostEqual(first[0]["loss"], 0.693147, places=5)  # adapters begin at the reference
        self.assertAlmostEqual(first[0]["rewards/margins"], 0, places=5)
        start = self.step_of("first")
        for kind, smoothing in (("sigmoid", 0.0), ("sigmoid", 0.1), ("ipo", 0.0), ("hinge", 0.0)):
            with self.subTest(kind, smoothing=smoothing):
                name = f"{kind}-{smoothing}"
                own = self.train(name, start, dpo={"beta": BETA, "loss": kind, "label_smoothing": smoothing})
                theirs = self.torch_steps(kind, smoothing)
                self.assertEqual(len(own), 3)
                self.assertGreater(abs(theirs[0]["rewards/margins"]), 1e-3)  # not the reference itself
                for step, (a, b) in enumerate(zip(own, theirs), 1):
                    # AdamW's first update is a sign: of gradients that round to either side of 0 it makes a whole step.
                    bound = 1e-5 if step == 1 else 1e-4
                    self.assertLess(abs(a["loss"] - b["loss"]), bound * abs(b["loss"]), (own, theirs))
                    for key in ("rewards/chosen", "rewards/rejected", "rewards/margins"):
                        self.assertLess(abs(a[key] - b[key]), 1e-4, key)
                    self.assertEqual(a["rewards/accuracies"], b["rewards/accuracies"])

    @unittest.skipUnless(trl_dpo.installed(), "the PyPI package trl is not installed")
    def test_the_losses_are_those_of_trls_trainer(self):
        self.train("first", "run/step-000000", steps=2)
        model, (ids, mask) = self.with_peft(), rows_of(PAIRS)
        for kind in ("sigmoid", "ipo", "hinge"):
            with self.subTest(kind):
                own = self.train(kind, self.step_of("first"), steps=1, dpo={"beta": BETA, "loss": kind})[0]
                theirs = trl_dpo.loss(model, ids, mask, kind, BETA)
                self.assertLess(abs(own["loss"] - theirs["loss"]), 1e-5 * abs(theirs["loss"]), (own, theirs))
                for key in ("rewards/chosen", "rewards/rejected", "rewards/margins"):
                    self.assertLess(abs(own[key] - theirs[key]), 1e-5, key)
                self.assertEqual(own["rewards/accuracies"], theirs["rewards/accuracies"])

    def test_microbatches_and_ranks_change_nothing(self):
        one = self.train("one", "run/step-000000")
        self.write_recipe("small", "run/step-000000", micro_batch=2)
        self.troupe("train", "small.yaml", "--quiet")
        for layout in ("{data: 2}", "{expert: 2}", "{shard: full}"):
            name = "ranks-" + layout.strip("{}").replace(": ", "-")
            self.troupe("launch", "-n", "2", "--quiet", "--", "train", "small.yaml", "--quiet", "--set", f"checkpoint.dir={name}",
                        "--set", f"parallel={layout}")
            for a, b in zip(one, self.records(name), strict=True):
                self.assertLess(abs(a["loss"] - b["loss"]), 1e-4 * abs(a["loss"]), layout)
                self.assertLess(abs(a["rewards/margins"] - b["rewards/margins"]), 1e-4, layout)
        for a, b in zip(one, self.records("small"), strict=True):
            self.assertLess(abs(a["loss"] - b["loss"]), 1e-5 * abs(a["loss"]))
        said = self.troupe("check", "small.yaml", "--ranks", "2", "--set", "parallel={tensor: 2}", code=2)
        self.assertIn("preference pairs, which train.loss dpo does not do yet", said)

    def test_a_set_of_pairs_is_evaluated_as_such(self):
        self.build("other", PAIRS[:3])
        self.write_recipe("scored", "run/step-000000", steps=20)
        said = self.troupe("train", "scored.yaml", "--set", "data.valid=[{path: other}]", "--set", "eval.every=20", "--set",
                           "eval.batch=2")
        self.assertRegex(said + (self.folder / "scored/log.txt").read_text(), r"eval step 20  other  loss [\d.]+  acc [\d.]+  margin")
        told = json.loads(self.troupe("eval", "scored", "--json").splitlines()[0])
        self.assertEqual(told["targets"], 3)
        self.assertEqual(told["rewards/accuracies"], 1)
        last = self.records("scored")[-1]
        self.assertGreater(last["rewards/margins"], 0.1)
        self.assertLess(last["loss"], 0.69)

    def test_pairs_that_are_too_long_are_left_out(self):
        self.build("pairs-long", [*PAIRS, {"prompt": "x" * 31, "chosen": "yes", "rejected": "no"}])
        self.write_recipe("long", "run/step-000000")
        self.troupe("train", "long.yaml", "--quiet", "--set", "data.train=[{path: pairs-long}]")
        self.assertIn("1 of 5 preference pairs are longer than data.sequence, 32, and left out",
                      (self.folder / "long/log.txt").read_text())

    def test_sets_of_pairs_are_merged_and_mixed(self):
        self.build("other", PAIRS[:2])
        self.troupe("data", "merge", "pairs", "other", "-o", "both")
        told = json.loads((self.folder / "both.json").read_text())
        self.assertEqual((told["pairs"], told["documents"]), (True, 12))
        self.write_recipe("mixed", "run/step-000000", steps=20)
        self.troupe("train", "mixed.yaml", "--quiet", "--set", "data.train=[{path: both, weight: 2}, {path: other}]")
        records = self.records("mixed")
        self.assertAlmostEqual(records[0]["loss"], 0.693147, places=5)
        # Were chosen and rejected rows of different pairs compared, the model could not tell which is which.
        self.assertEqual(records[-1]["rewards/accuracies"], 1)

    def test_what_does_not_go_together_is_refused(self):
        self.build("chats", [{"prompt": "a", "completion": "b" * 99}])
        for sets in (("pairs", "chats"), ("chats", "pairs")):
            self.assertIn("merge them apart", self.troupe("data", "merge", *sets, "-o", "both", code=3))
        self.write_recipe("none", "run/step-000000")
        for settings, said in ((["data.train=[{path: chats}]"], "holds no preference pairs, which train.loss: dpo learns from"),
                               (["data.train=[{kind: mock}]"], "holds no preference pairs"),
                               (["train.loss=cross_entropy", "train.dpo={beta: 0.1}"], "holds preference pairs, half of which are rejected"),
                               (["train.loss=cross_entropy"], "E2005 train.dpo: is of train.loss dpo alone"),
                               (["model.lora.rank=0"], "E2005 model.lora: is off: the reference of train.loss dpo is the model without"),
                               (["train.micro_batch=1"], "E2005 train.micro_batch: must be even with train.loss dpo"),
                               (["train.dpo.beta=0"], "E2005 train.dpo.beta: must be above 0"),
                               (["train.dpo={loss: ipo, label_smoothing: 0.1}"], "is of loss sigmoid alone"),
                               (["data.packing=best_fit", "data.documents=sequences"], "a row of train.loss dpo is one answer")):
            with self.subTest(settings):
                words = [word for setting in settings for word in ("--set", setting)]
                self.assertIn(said, self.troupe("train", "none.yaml", *words, code=2))


if __name__ == "__main__":
    unittest.main()
