#!/usr/bin/env python3
"""train.teacher: a run that learns from another model's probabilities beside its targets."""
import json
import unittest

import torch
import yaml
from transformers import AutoConfig

from layout_runs import write_chats
from ranks_run import RanksRun
from tiny_hub import random_model

PATTERN = "The cat sat on the mat and ran. "  # as long as a row
FAMILIES = {"teacher_hub": ("mixtral", dict(num_hidden_layers=2, num_local_experts=4, num_experts_per_tok=2)),
            "student_hub": ("llama", dict(num_hidden_layers=1))}


def taught(path="teacher", weight=0.5, temperature=1, top=0):
    return f"train.teacher={{path: {path}, weight: {weight}, temperature: {temperature}, top: {top}}}"


class Teacher(RanksRun):
    def make_teacher(self, *sets):
        self.train("checkpoint.dir=teacher", "model.width=48", "model.layers=1", "train.seed=7", *sets)

    def rows(self, run):
        return [r for r in self.records(run) if "event" not in r]

    def test_the_divergence_falls_and_the_loss_is_of_both(self):
        self.make_teacher()
        said = self.train(taught(weight=0.75, temperature=2))
        self.assertRegex(said, r"teacher: teacher/step-000020, \d+ parameters; weight 0.75, temperature 2")
        rows = self.rows("run")
        self.assertLess(rows[-1]["kl"], 0.5 * rows[0]["kl"])
        for r in rows:
            self.assertAlmostEqual(r["loss"], 0.25 * r["ce"] + 0.75 * 4 * r["kl"], delta=1e-5 * abs(r["loss"]))
        # The checkpoint is that of a run without a teacher but for its values.
        self.train("checkpoint.dir=plain")
        self.assertGreater(self.tensors_apart("plain", "run"), 0)
        self.assertNotIn("kl", self.rows("plain")[0])
        # It is evaluated, continued and told of without the teacher.
        (self.folder / "teacher").rename(self.folder / "gone")
        self.troupe("generate", "run", "-p", "The cat", "-n", 4)

    def test_weight_0_measures_and_changes_no_bit(self):
        self.make_teacher()
        self.train("checkpoint.dir=plain")
        self.train(taught(weight=0, temperature=2), "checkpoint.dir=zero")
        self.assert_equal_runs("plain", "zero")
        self.assertGreater(self.rows("zero")[0]["kl"], 0)

    def test_the_first_loss_is_that_of_transformers(self):
        (self.folder / "text.txt").write_text(PATTERN * 300)
        models = {}
        for name, (family, more) in FAMILIES.items():
            config = AutoConfig.for_model(family, vocab_size=256, hidden_size=64, num_attention_heads=4,
                                          num_key_value_heads=2, max_position_embeddings=64, intermediate_size=48, **more)
            models[name] = random_model(config, torch.float32, std=0.2, seed=len(name) + len(models))
            models[name].save_pretrained(self.folder / name)
        self.troupe("import", "student_hub", "student")
        self.troupe("import", "teacher_hub", "teacher")
        recipe = yaml.safe_load(self.RECIPE)
        recipe["model"] = yaml.safe_load((self.folder / "student/recipe.yaml").read_text())["model"]
        (self.folder / "nano.yaml").write_text(yaml.safe_dump(recipe))
        self.train("checkpoint.init_from=student", "checkpoint.cast=true", "train.steps=3", "checkpoint.dir=plain")
        loss = self.rows("plain")[0]["loss"]
        # Rows follow each other from a place that the seed draws: each begins at the same letter of the pattern.
        found = []
        for first in range(len(PATTERN)):
            ids = torch.tensor([list((PATTERN * 3).encode()[first:first + len(PATTERN) + 1])])
            with torch.no_grad():
                student, teacher = (models[n](ids[:, :-1]).logits[0].double() for n in ("student_hub", "teacher_hub"))
            ce = torch.nn.functional.cross_entropy(student, ids[0, 1:]).item()
            if abs(ce - loss) < 1e-5:
                found.append((student, teacher, ce))
        self.assertEqual(len(found), 1)
        (student, teacher, ce), = found
        for path, temperature, top in (("teacher_hub", 2, 0), ("teacher", 1, 0), ("teacher/step-000000", 1.5, 5)):
            shown = teacher
            if top:
                shown = teacher.masked_fill(teacher < teacher.topk(top, -1).values[:, -1:], -1e30)
            kl = torch.nn.functional.kl_div((student / temperature).log_softmax(-1), (shown / temperature).log_softmax(-1),
                                            reduction="batchmean", log_target=True).item()
            self.train("checkpoint.init_from=student", "checkpoint.cast=true", "train.steps=3",
                       f"checkpoint.dir=of_{top}_{temperature}", taught(path, 0.25, temperature, top))
            first = self.rows(f"of_{top}_{temperature}")[0]
            for key, want in (("ce", ce), ("kl", kl), ("loss", 0.75 * ce + 0.25 * temperature**2 * kl)):
                self.assertAlmostEqual(first[key], want, delta=1e-5 * max(1, want), msg=f"{path} {key}")

    def test_mtp_modules_learn_from_targets_alone(self):
        self.make_teacher()
        for name, sets in (("plain", ()), ("mtp", ("model.mtp.depth=1",))):
            self.train("train.steps=3", f"checkpoint.dir={name}", taught(), *sets)
        plain, mtp = self.rows("plain")[0], self.rows("mtp")[0]
        self.assertGreater(mtp["mtp_loss"], 0)
        for key in ("ce", "kl", "loss"):
            self.assertAlmostEqual(plain[key], mtp[key], delta=1e-5 * abs(plain[key]))

    def test_ranks_learn_as_one_process(self):
        self.make_teacher()
        learn = (taught(temperature=2), "train.steps=10")
        self.train_ranks(1, *learn, name="one")
        for name, sets in (("zero1", ["parallel.shard=zero1"]), ("full", ["parallel.shard=full"]),
                           ("expert", ["parallel.expert=2"]), ("stages", ["parallel.pipeline=2"])):
            self.train_ranks(2, *learn, *sets, name=name)
            self.assertLess(self.apart("one", name), 1e-5, name)
            for one, many in zip(self.rows("one"), self.rows(name)):
                for key in ("ce", "kl"):
                    self.assertLess(abs(one[key] - many[key]), 1e-5 * abs(one[key]), name)

    def test_a_killed_run_goes_on_with_the_same_bits(self):
        self.make_teacher()
        self.train(taught(), "checkpoint.dir=whole")
        self.train(taught(), "checkpoint.background=false", TROUPE_FAULT="batch:12=kill", code=-9)
        self.assertIn("resumed step 10", self.train(taught()))
        self.assert_equal_runs("whole", "run")

    def test_documents_and_padding_are_the_teachers_too(self):
        """A model that learns from itself diverges by nothing, whatever the rows hold."""
        write_chats(self.folder / "chats.jsonl")
        self.troupe("data", "build", "chats.jsonl", "-t", "bytes", "--format", "chat", "--key", "messages", "--open",
                    "{role}: ", "--close", ".", "--eod", "0", "-o", "chats")
        data = ("data.train=[{path: chats}]", "train.steps=5")
        self.train(*data, "checkpoint.dir=teacher")
        self.train(*data, "checkpoint.init_from=teacher", "train.optimizer.lr=0", taught())
        for r in self.rows("run"):
            self.assertLess(abs(r["kl"]), 1e-6)
            self.assertGreater(r["ce"], 0.1)

    def test_plan_and_check_count_it(self):
        weights = lambda *words: json.loads(self.troupe("plan", "nano.yaml", "--json", *words).stdout)["parts"]["weights"]
        self.make_teacher()
        params = next(r for r in self.records("teacher") if r.get("event") == "start")["params"]
        more = weights("--set", taught()) - weights()
        self.assertGreaterEqual(more, 4 * params)
        self.assertLess(more, 4 * params + 4096)  # what routers keep besides
        self.assertIn("ok", self.troupe("check", "nano.yaml", "--set", taught()).stdout)

    def test_what_does_not_fit_is_refused_before_the_start(self):
        self.make_teacher("model.vocab=300")
        self.troupe("tokenizer", "train", "text.txt", "--output", "tokenizer.json", "--vocab", 270)
        fits = "model.vocab=300"
        for sets, code, what in (
                ((fits, taught("nowhere")), 4, r"E4002.* is not there"),
                ((taught(),), 2, r"E2005.* has a vocabulary of 300 words, and model.vocab is 256"),
                ((fits, taught(), "model.max_positions=128", "data.sequence=128"), 2, r"E2005.* has 64 positions"),
                ((fits, taught(), "data.tokenizer=tokenizer.json"), 3, r"E3108.* tokenizer.json.* other ids"),
                ((fits, taught(weight=1.5)), 2, r"E2005 train.teacher.weight: 1.5 is not between 0 and 1"),
                ((fits, taught(weight=-0.5)), 2, r"E2005 train.teacher.weight: -0.5"),
                ((fits, taught(temperature=0)), 2, r"E2005 train.teacher.temperature: 0 must be positive"),
                ((fits, taught(path="''")), 2, r"E2005 train.teacher.path: is empty"),
                ((fits, taught(), "train.cuda_graph=true"), 2, r"does not go with train.teacher")):
            with self.subTest(what):
                self.assertRegex(self.train(*sets, code=code), what)
                words = [w for s in sets for w in ("--set", s)]
                self.assertRegex(self.troupe("check", "nano.yaml", *words, code=code).stderr, what)
        for axis in ("tensor", "context"):
            said = self.troupe("check", "nano.yaml", "--ranks", 2, "--set", fits, "--set", taught(), "--set",
                               f"parallel.{axis}=2", code=2).stderr
            self.assertRegex(said, rf"parallel.{axis}: E2005 2 ranks .* or leave train.teacher out")


if __name__ == "__main__":
    unittest.main()
