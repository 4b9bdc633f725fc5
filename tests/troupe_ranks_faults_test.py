#!/usr/bin/env python3
"""What several ranks do when one of them is lost, late, asked to stop, or started otherwise."""
import itertools
import re
import signal
import time
import unittest

from ranks_run import RanksRun


class TroupeRanksFaults(RanksRun):
    def test_F84_a_killed_rank_ends_the_others_within_seconds(self):
        for fault in ("forward.1:5=kill", "backward.1:5=kill", "reduce:5=kill", "optim:5=kill"):
            runs = self.start_ranks(3, TROUPE_FAULT=lambda r, f=fault: f if r == 1 else "")
            self.assertEqual(runs[1].wait(30), -signal.SIGKILL, fault)
            begin = time.monotonic()
            for rank in (0, 2):
                self.assertEqual(runs[rank].wait(10), 6, self.text_of(rank)[-1500:])
                self.assertIn("E6001", self.text_of(rank))
            self.assertLess(time.monotonic() - begin, 10, fault)
            self.assertEqual(self.exit_record()["error"], "E6001")

    def test_F99_a_signal_to_one_rank_stops_all_at_one_step(self):
        runs = self.start_ranks(3, "train.steps=2000", "log.every=1")
        self.wait_for_step(3)
        runs[2].send_signal(signal.SIGTERM)
        for rank, run in enumerate(runs):
            self.assertEqual(run.wait(20), 0, self.text_of(rank)[-1500:])
        last = max(self.losses())
        self.assertIn(f"step-{last:06d}", self.steps())
        self.assertIn("Continue with", self.text_of(0))

    def test_F90_ranks_that_were_started_otherwise_are_named(self):
        for port, otherwise in ((21789, "train.seed=2"), (21788, "parallel.shard=none")):
            runs = [self.start_rank(r, 3, port, [otherwise] if r == 2 else []) for r in range(3)]
            value = re.escape(otherwise.rsplit(".", 1)[1].replace("=", ": "))
            for rank, run in enumerate(runs):
                self.assertEqual(run.wait(30), 2, self.text_of(rank)[-1500:])
                self.assertRegex(self.text_of(rank), rf"E2010 .*rank\(s\) 0, 1: .*rank\(s\) 2: {value}|"
                                                     rf"E2010 .*rank\(s\) 2: {value}.*rank\(s\) 0, 1: ")

    def test_F91_a_rank_that_never_comes_is_named(self):
        runs = [self.start_rank(r, 3, 21790, ["run.start_timeout=3s"]) for r in range(2)]
        for rank, run in enumerate(runs):
            self.assertEqual(run.wait(15), 6, self.text_of(rank)[-1500:])
            self.assertIn("rank(s) 2 did not arrive", self.text_of(rank))

    def test_F111_a_nan_on_one_rank_reaches_no_weight_of_any(self):
        points = (("forward.0", "gradient of"), ("forward.1", "gradient of"), ("forward.3", "gradient of"),
                  ("backward.1", r"gradient of layers\.0\."))
        for (point, first), bad in itertools.product(points, (0, 1)):
            name = f"{point}-{bad}".replace(".", "")
            self.train_ranks(2, name=name, TROUPE_FAULT=lambda r, at=point, bad=bad: f"{at}:5=nan" if r == bad else "")
            self.assertRegex(self.text_of(0, name), rf"First: rank {bad}, {first}")
            last = [r for r in self.records(name) if r.get("step") == 20 and "event" not in r]
            self.assertEqual([r["nonfinite"] for r in last], [1])

    def test_F111_a_bad_weight_is_named_by_the_rank_that_has_it(self):
        self.train_ranks(2, "model.tie_embeddings=true", code=5, TROUPE_FAULT=lambda r: "optim:5=nan" if r == 1 else "")
        self.assertRegex(self.text_of(0), "First: rank 1, weight ")

    def test_F111_a_passing_nan_is_told_as_one(self):
        self.train_ranks(2, TROUPE_FAULT=lambda r: "backward.1#1:5=nan" if r == 1 else "")
        self.assertRegex(self.text_of(0), r"First: rank [01], gradient of layers\.0\..*; replayed, it is finite: a passing fault")

    def test_F118_replicas_that_differ_are_found_before_they_are_saved(self):
        self.train_ranks(3, "parallel.shard=none", timeout=30, code=70,
                         TROUPE_FAULT=lambda r: "optim:7=flip" if r == 1 else "")
        for rank in range(3):
            self.assertRegex(self.text_of(rank), r"E9001 differs between ranks that hold the same")
        self.assertRegex(self.text_of(0), r"embed\.tokens \(dense\): E9001 .*(rank\(s\) 1: hash \w+; rank\(s\) 0, 2: hash|"
                                          r"rank\(s\) 0, 2: hash \w+; rank\(s\) 1: hash)")
        self.assertEqual(self.steps(), [])  # nor is the step saved in which it was found
        self.assertEqual(self.exit_record()["step"], 10)

    def test_F118_a_bit_of_a_master_in_halves_is_found_too(self):
        self.train_ranks(2, "parallel.shard=full", "parallel.shard_ranks=1", "train.precision=bf16", timeout=30, code=70,
                         TROUPE_FAULT=lambda r: "optim:9=flip" if r == 1 else "")
        self.assertRegex(self.text_of(0), r"embed\.tokens \((dense|master, dense.*)\): E9001 ")
        self.assertEqual(self.steps(), [])

    def test_a_layout_that_cannot_be_is_told_with_what_can(self):
        self.train_ranks(3, "parallel.expert=2", timeout=30, code=2)
        self.assertIn("parallel.expert", self.text_of(0))


if __name__ == "__main__":
    unittest.main()
