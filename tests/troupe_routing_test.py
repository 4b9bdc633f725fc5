#!/usr/bin/env python3
"""Routing traces by the program: a run keeps its routers' choices, another takes them (row 32)."""
import json
import random
import tempfile
import unittest

from layout_runs import Layout, LayoutRuns
from nano_run import NanoRun

# A bias that moves fast chooses otherwise than none, and is in no weight of an expert: with the same
# choices both runs have the same losses.
MOVES = "model.moe.router={kind: sigmoid_bias, bias_rate: 0.05}"
RESTS = "model.moe.router={kind: sigmoid_bias, bias_rate: 0}"


class Routing(NanoRun):
    def losses(self, run):
        rows = [json.loads(line) for line in (self.folder / run / "log.jsonl").read_text().split("\n")[:-1]]
        return [row["loss"] for row in rows if "event" not in row]

    def traces(self, run):
        return {path.name: path.read_bytes() for path in (self.folder / run / "routing").iterdir()}

    def test_32_a_run_takes_the_choices_of_another_bit_for_bit(self):
        self.train(MOVES, "log.routing=1", "train.micro_batch=2", "checkpoint.dir=wrote")
        told = self.train(RESTS, "run.replay=wrote/routing", "log.routing=1", "train.micro_batch=2",
                          "checkpoint.dir=replayed")
        self.assertIn("run.replay", told)
        self.train(RESTS, "train.micro_batch=2", "checkpoint.dir=own")
        self.assertEqual(self.losses("replayed"), self.losses("wrote"))
        self.assertNotEqual(self.losses("own"), self.losses("wrote"))
        self.assertEqual(len(self.traces("wrote")), 20)
        self.assertEqual(self.traces("replayed"), self.traces("wrote"))

    def test_32_steps_and_shapes_that_the_trace_lacks_are_told(self):
        self.train(MOVES, "log.routing=3", "log.routing_logits=true", "train.steps=4", "train.micro_batch=2")
        (name,) = self.traces("run")
        self.assertEqual(name, "step-000003-00000-of-00001.trace")
        shown = self.troupe("inspect", f"run/routing/{name}").stdout
        self.assertRegex(shown, r"layer 1  4 microbatches, 512 choices of 4 experts, load \d\.\d\d, \d never "
                                "chosen, with logits")
        again = ("run.replay=run/routing", "checkpoint.dir=more")
        self.assertIn("has no choices of step 1", self.train(MOVES, *again, code=3))
        (self.folder / "run" / "routing" / "step-000001-00000-of-00001.trace").write_bytes(self.traces("run")[name])
        self.assertIn("has choices for 64 tokens of microbatch 0; this run's has 128",
                      self.train(MOVES, *again, "train.micro_batch=4", code=3))
        self.assertIn("has no layer 2 of microbatch 0",
                      self.train(MOVES, *again, "train.micro_batch=2", "model.layers=3", code=3))
        self.assertIn("run.replay: the model has no experts",
                      self.train("model.moe=null", "model.ffn=64", *again, code=2))

    def test_32_the_trace_of_another_model_is_refused_with_what_differs(self):
        self.train(MOVES, "log.routing=1", "train.steps=2", "model.moe.experts=8")
        again = ("run.replay=run/routing", "checkpoint.dir=more", "train.steps=2")
        name = "run/routing/step-000001-00000-of-00001.trace: E2005 run.replay: layer "
        said = self.train(MOVES, *again, code=2)
        self.assertRegex(said, name + r"0 of microbatch 0 chooses among 8 experts, expert [4-7] of token \d+ among "
                                      r"them; the model has 4: model.moe.experts must be")
        eight = (MOVES, *again, "model.moe.experts=8")
        self.assertRegex(self.train(*eight, "model.moe.top_k=1", code=2),
                         name + r"0 of microbatch 0 has K = 2; the model's K is 1: model.moe.top_k must be")
        self.assertRegex(self.train(*eight, "model.moe.router={kind: expert_choice}", code=2), "has K = 2; the model's K is 8")
        self.assertRegex(self.train(*eight, "model.layers=1", code=2), name + "1 of microbatch 0 is here, and the model has no such")
        self.assertRegex(self.train(*eight, "model.moe.layers='[0]*1+[1]*1'", "model.ffn=64", code=2), name + "0 of microbatch 0 is here")
        self.train(*eight)

    def test_32_ranks_write_what_one_process_takes(self):
        with tempfile.TemporaryDirectory() as folder:
            runs = LayoutRuns(folder)
            few = ("train.steps=4", "log.every=1")
            runs.train(Layout(4, "ZeRO-1", expert=2, batch=8), "four", MOVES, "log.routing=1", *few)
            self.assertEqual(len(list((runs.folder / "four" / "routing").iterdir())), 16)
            replay = ("run.replay=four/routing", *few)
            runs.train(Layout(batch=8), "one", RESTS, *replay)
            runs.train(Layout(batch=8), "own", RESTS, *few)
            losses = {name: [r["loss"] for r in runs.records(name) if "event" not in r]
                      for name in ("four", "one", "own")}
            for a, b in zip(losses["four"], losses["one"], strict=True):
                self.assertLess(abs(a - b), 1e-5 * a)
            self.assertGreater(abs(losses["own"][-1] - losses["four"][-1]), 1e-4)


class Experts(NanoRun):
    """troupe inspect experts: sources that were planted are found (row 237)."""

    def use(self, run, *more):
        return json.loads(self.troupe("inspect", "experts", run, "--json", "--samples", 64, *more).stdout)

    def test_237_planted_sources_and_their_tokens_are_found(self):
        draw = random.Random(1)
        for name, letters in (("small.txt", "abcdefgh"), ("digits.txt", "01234567")):
            (self.folder / name).write_text("".join(draw.choices(letters, k=12000)))
        data = "data={{train: [{{kind: text, path: {}}}, {{kind: text, path: {}}}], sequence: 32, tokenizer: bytes}}"
        self.train(data.format("small.txt", "digits.txt"), "train.steps=120")
        use = self.use("run")
        self.assertEqual([source["name"] for source in use["sources"]], ["small.txt", "digits.txt"])
        self.assertEqual(sum(source["tokens"] for source in use["sources"]), 64 * 32)
        self.assertEqual(use["step"], 120)
        self.assertEqual([layer["layer"] for layer in use["layers"]], [0, 1])
        best = max(use["layers"], key=lambda layer: layer["bits"])
        self.assertGreater(best["bits"], 0.3)
        for expert in best["experts"]:
            small, digits = expert["shares"]
            self.assertAlmostEqual(expert["share"], (small + digits) / 2, delta=0.2)
            if max(small, digits) < 3 * min(small, digits):
                continue
            # The tokens that an expert of one source has are of that source.
            for token in expert["tokens"][:2]:
                self.assertIn(token["text"], "abcdefgh" if small > digits else "01234567")
                self.assertGreaterEqual(token["seen"], 10)
        told = self.troupe("inspect", "experts", "run", "--samples", 16).stdout
        self.assertRegex(told, r"layer 0  an expert's number tells \d\.\d+ bits of a token's source")
        self.assertRegex(told, r"expert   0  small\.txt \d\.\d\d  digits\.txt \d\.\d\d")
        self.troupe("report", "run")
        page = (self.folder / "run" / "report.html").read_text()
        self.assertIn("Who goes to which expert", page)
        self.assertIn("<th>digits.txt</th>", page)
        self.assertRegex(page, r"&quot;[a-h0-7]&quot; \d+(\.\d+)?%")
        # Where two sources are alike, an expert's number tells nothing.
        (self.folder / "more.txt").write_text("".join(draw.choices("abcdefgh", k=12000)))
        same = self.use("run", "--set", data.format("small.txt", "more.txt"))
        self.assertLess(max(layer["bits"] for layer in same["layers"]), 0.05)

    def test_237_what_has_no_experts_is_told(self):
        self.train("model.moe=null", "model.ffn=64", "train.steps=2")
        self.assertIn("is a dense model", self.troupe("inspect", "experts", "run", code=2).stderr)


if __name__ == "__main__":
    unittest.main()
