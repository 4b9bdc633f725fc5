#!/usr/bin/env python3
"""train.offload_state on a CPU: losses and checkpoints are those of a run without it, also where it is switched between starts."""
import json
import unittest

from nano_run import NanoRun

OFFLOAD = "train.offload_state=true"
FORMS = (("train.precision=bf16",), ("train.precision=bf16", "train.optimizer.moments=int8"),
         ("train.optimizer.moments=bf16",), ("train.precision=bf16", "train.optimizer.kind=muon"))


class StateOffload(NanoRun):
    def test_115_offloaded_state_changes_no_bit(self):
        for number, form in enumerate(FORMS):
            with self.subTest(form):
                self.train(*form, f"checkpoint.dir=plain{number}")
                said = self.train(*form, OFFLOAD, f"checkpoint.dir=offloaded{number}")
                self.assertIn("state offload: on a cpu it copies masters and moments within host memory", said)
                self.assert_equal_runs(f"plain{number}", f"offloaded{number}")

    def test_115_a_killed_run_resumes_with_it_and_without(self):
        bf16 = FORMS[1]
        self.train(*bf16, "checkpoint.dir=whole")
        for first, then in ((OFFLOAD, "train.offload_state=false"), ("train.offload_state=false", OFFLOAD),
                            (OFFLOAD, OFFLOAD)):
            with self.subTest(first=first, then=then):
                name = f"checkpoint.dir={first[-4:]}-{then[-4:]}"
                self.train(*bf16, first, name, "checkpoint.background=false", code=-9, TROUPE_FAULT="optim:12=kill")
                said = self.train(*bf16, then, name)
                self.assertIn("resumed step 10", said)
                self.assert_equal_runs("whole", name.split("=")[1])

    # A save that is written beside the next steps holds the state of its own step.
    def test_115_a_save_beside_later_steps_has_its_own_state(self):
        bf16 = FORMS[0]
        self.train(*bf16, "checkpoint.dir=whole", "checkpoint.keep=0")
        self.train(*bf16, OFFLOAD, "checkpoint.dir=slow", "checkpoint.keep=0",
                   TROUPE_FAULT="save.shard:5=sleep:1000")
        self.assertIn("tensors are equal bit for bit",
                      self.troupe("diff", "whole/step-000005", "slow/step-000005").stdout)

    def test_115_a_graph_of_kernels_excludes_it(self):
        said = self.train(OFFLOAD, "train.cuda_graph=true", "run.device=cuda", code=2)
        self.assertRegex(said, r"train\.cuda_graph: .*does not go with train\.offload_state")

    def test_115_updates_in_backward_resume_with_the_last_norm(self):
        form = ("train.precision=bf16", "train.optimizer.moments=int8", OFFLOAD, "train.micro_batch=8",
                "train.clip=0.5", "train.clip_by=last_step")
        self.train(*form, "checkpoint.dir=whole")
        early = (*form, "train.update=in_backward", "checkpoint.dir=early")
        self.train(*early, "checkpoint.background=false", code=-9, TROUPE_FAULT="optim:12=kill")
        said = self.train(*early)
        self.assertIn("resumed step 10", said)
        self.assertIn("update in backward: each layer's as soon as its gradient is whole", said)
        self.assert_equal_runs("whole", "early")

    def test_115_what_updates_in_backward_exclude_is_said_with_a_way_out(self):
        early = "train.update=in_backward"
        for sets, says in (((early,), r"train\.update: in_backward .* set train\.clip to 0, or train\.clip_by"),
                           ((early, "train.clip=0", "parallel.pipeline=2"), r"train\.update: .*parallel\.pipeline.*set it to 1"),
                           ((early, "train.clip=0", "train.cuda_graph=true", "run.device=cuda"),
                            r"train\.cuda_graph: .*train\.update")):
            with self.subTest(sets):
                self.assertRegex(self.train(*sets, code=2), says)

    def test_115_plan_tells_both_sides(self):
        words = ("plan", "nano.yaml", "--set", "run.device=cuda", "--set", "train.optimizer.moments=f32")
        plain = json.loads(self.troupe(*words, "--json").stdout)
        offloaded = json.loads(self.troupe(*words, "--json", "--set", OFFLOAD).stdout)
        self.assertEqual((plain["host"], plain["copies"]), (0, 0))
        kept = offloaded["parts"]["masters"] + offloaded["parts"]["moments"]  # the routers' biases
        self.assertEqual(kept, 2 * 4 * 4)
        self.assertEqual(offloaded["host"] + kept, plain["parts"]["masters"] + plain["parts"]["moments"])
        self.assertEqual(offloaded["copies"], offloaded["host"] / 5e10)
        self.assertEqual(offloaded["checkpoint"], plain["checkpoint"])
        self.assertIn("GB/s (assumed)", self.troupe(*words, "--set", OFFLOAD).stdout)


if __name__ == "__main__":
    unittest.main()
