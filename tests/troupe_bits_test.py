#!/usr/bin/env python3
"""The same bits, through the program: of two runs, for any number of threads, through stops at any step; and what a
rate of 0, decay alone and frozen parameters leave as it was."""
import json
import unittest

from nano_run import NanoRun

# All that draws random numbers, keeps a state or adds in parts, so large that three threads share it out.
NOISY = """
model: {layers: 2, width: 64, heads: 4, vocab: 256, max_positions: 64, dropout: 0.1,
        moe: {experts: 8, top_k: 2, hidden: 64, shared: {experts: 1, hidden: 32},
              router: {kind: sigmoid_bias, bias_rate: 0.01, jitter: 0.1, balance: {seq_loss: 0.01, z_loss: 0.001}}}}
data: {train: [{kind: text, path: text.txt}], valid: [{kind: text, path: text.txt}], sequence: 64, tokenizer: bytes}
train: {global_batch: 16, micro_batch: 8, steps: 50, optimizer: {lr: 3e-3}, schedule: {warmup: 5}}
checkpoint: {dir: run}
log: {tensorboard: false, every: 1}
run: {device: cpu}
"""


class TroupeBits(NanoRun):
    RECIPE = NOISY

    def scalars(self, step):
        """What a checkpoint keeps of a run beside its tensors."""
        scalars = json.loads((self.folder / step / "manifest.json").read_text())["scalars"]
        return {name: value for name, value in scalars.items() if not name.endswith("seconds")}

    def test_F119_61_fifty_steps_have_the_same_bits_for_any_number_of_threads(self):
        self.train("checkpoint.dir=one", "run.threads=1")
        self.train("checkpoint.dir=again", "run.threads=1")
        self.assertEqual(len(self.losses("one")), 50)
        self.assert_equal_runs("one", "again")
        for threads in ("2", "3"):
            self.train(f"checkpoint.dir={threads}", f"run.threads={threads}")
            self.assert_equal_runs("one", threads)
        # Another seed shows that bits that differ are seen.
        self.train("checkpoint.dir=other", "train.seed=2", "train.steps=2", "train.schedule.warmup=1")
        self.assertNotEqual(self.losses("other")[1], self.losses("one")[1])

    def test_F122_all_that_a_run_keeps_is_as_in_the_whole_run(self):
        """In the warm-up, right after an evaluation, later; in fp16, whose scale grows and is halved."""
        sets = ("train.steps=14", "train.precision=fp16", "train.loss_scale={initial: 65536, window: 3, hysteresis: 1}", "eval.every=7", "eval.batches=2",
                "checkpoint.keep=0", "checkpoint.background=false", "checkpoint.at=[1,7,10]")
        self.train(*sets, "checkpoint.dir=whole")
        for cut in (1, 7, 10):
            name = f"cut{cut}"
            self.train(*sets, f"checkpoint.dir={name}", TROUPE_FAULT=f"batch:{cut}=kill", code=-9)
            self.assertEqual(self.steps(name)[-1], f"step-{cut:06d}")
            self.train(*sets, f"checkpoint.dir={name}")
            self.assert_equal_runs("whole", name)
            self.assertEqual(self.scalars(f"whole/step-000014"), self.scalars(f"{name}/step-000014"))
        kept, before = self.scalars("whole/step-000014"), self.scalars("whole/step-000007")
        self.assertNotEqual(kept["loss_scale"]["scale"], before["loss_scale"]["scale"])
        self.assertLess(kept["skipped"], 7)
        self.assertGreater(len(kept["spike"]["losses"]), len(before["spike"]["losses"]))

    def test_F121_no_rate_decay_alone_and_frozen_parameters(self):
        """Compares the checkpoints of steps 2 and 3 of one run: nothing moved, all scaled by one factor, the frozen stayed."""
        sets = ("train.steps=3", "train.schedule={kind: constant, warmup: 0}", "checkpoint.at=[2,3]", "checkpoint.keep=0",
                "model.moe.router={kind: topk_softmax}")

        def differences(name, *more, code):
            self.train(*sets, f"checkpoint.dir={name}", *more)
            told = json.loads(self.troupe("diff", f"{name}/step-000002", f"{name}/step-000003", "--only", "model.*",
                                          "--json", code=code).stdout)
            self.assertGreater(told["tensors"], 10)
            return {d["name"] for d in told["differences"]}

        self.assertEqual(differences("still", "train.optimizer.lr=0", code=0), set())
        self.assertEqual(differences("frozen", "train.optimizer.groups=[{names: '*', frozen: true}]", code=0), set())
        # Only the experts learn.
        moved = differences("experts", "train.optimizer.groups=[{names: '*attention*', frozen: true}]", code=1)
        self.assertTrue(any("experts" in name for name in moved))
        self.assertFalse(any("attention" in name for name in moved), moved)

    def test_158_165_a_groups_rate_and_decay_are_those_that_it_asks_for(self):
        """On all parameters they equal a run with another rate, bit for bit; on the experts alone, neither run."""
        sets = ("train.steps=6", "train.schedule.warmup=2", "checkpoint.at=[6]")
        for name, *more in (("plain",), ("half", "train.optimizer.lr=1.5e-3"), ("no_decay", "train.optimizer.weight_decay=0"),
                            ("all_half", "train.optimizer.groups=[{names: '*', lr_scale: 0.5}]"),
                            ("all_no_decay", "train.optimizer.groups=[{names: '*', decay: false}]"),
                            ("experts_half", "train.optimizer.groups=[{names: '*experts*', lr_scale: 0.5}]")):
            self.train(*sets, f"checkpoint.dir={name}", *more)
        self.assert_equal_runs("half", "all_half")
        self.assert_equal_runs("no_decay", "all_no_decay")
        for other in ("plain", "half"):
            self.assertNotEqual(self.losses("experts_half")[6], self.losses(other)[6])
        self.assertNotEqual(self.losses("plain")[6], self.losses("no_decay")[6])


if __name__ == "__main__":
    unittest.main()
