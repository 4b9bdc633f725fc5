#!/usr/bin/env python3
"""Ranks that watch each other: who is the cause, what it was doing, and one message that says so. Rows F84 to F88 of
docs/reference/RELIABILITY.md, through `troupe launch` and without it."""
import concurrent.futures
import json
import re
import signal
import subprocess
import time
import unittest

from nano_run import PATIENCE, TROUPE
from ranks_run import RanksRun

STAGES = ("parallel.pipeline=2", "parallel.shard=none", "parallel.expert=1")
# Fault point of rank 1, where it then is, and the settings that lead there.
POINTS = (("load.read", "load", ()), ("forward.1", "step 6, forward 2/4 of microbatch 0", ()),
          ("dispatch", "step 6, dispatch 2/4 of microbatch 0", ("parallel.expert=2",)),
          ("combine", "step 6, combine 2/4 of microbatch 0", ("parallel.expert=2",)),
          ("backward.1", "step 6, backward 2/4 of microbatch 0", ()),
          ("send", r"step 6, stage 2/2, send [1-4]/4 of microbatch \d", STAGES),
          ("recv", r"step 6, stage 2/2, recv [1-4]/4 of microbatch \d", STAGES),
          ("reduce", "step 6, reduce [1-4]/4", ()), ("optim", "step 6, optim", ()),
          ("eval", "step 5, eval", ("eval.every=5",)), ("save.stage", "step 5, save", ("checkpoint.every_steps=5",)))
# Four ranks, two in each of two stages: fault point, rank, action, exit code, where the rank then is, and settings.
STAGED = (*STAGES, "run.hang_timeout=3s")
TENSOR, KEYS = (*STAGED, "parallel.tensor=2"), (*STAGED, "parallel.context=2")
LATE = (*TENSOR, "parallel.schedule=zb1p")
EDGES = (("tensor", 1, "kill", 6, r"stage 1/2, tensor [12]/4 of microbatch 0", TENSOR),
         ("tensor", 2, "stop", 6, r"stage 2/2, tensor [34]/4 of microbatch 0", TENSOR),
         ("tensor", 0, "sleep:20000", 6, r"stage 1/2, tensor [12]/4 of microbatch 0", TENSOR),
         ("keys", 3, "kill", 6, r"stage 2/2, keys 3/4 of microbatch 0", KEYS),
         ("keys", 0, "stop", 6, r"stage 1/2, keys 2/4 of microbatch 0", KEYS),
         ("keys", 2, "throw", 70, r"stage 2/2, keys 3/4 of microbatch 0", KEYS),
         ("late", 3, "kill", 6, r"stage 2/2, late [34]/4 of microbatch \d", LATE),
         ("late", 1, "stop", 6, r"stage 1/2, late [12]/4 of microbatch \d", LATE),
         ("late", 2, "sleep:20000", 6, r"stage 2/2, late [34]/4 of microbatch \d", LATE))
FOUND = {"kill": "E6001 rank {} of 4 exited without a message; it was in step 6, ",
         "stop": r"E6003 rank {} of 4 is stopped \(SIGSTOP\); it is in step 6, ",
         "sleep:20000": "E6003 rank {} of 4 makes no progress; it is in step 6, "}


class TroupeWatch(RanksRun):
    def launch(self, fault, code, *sets, ranks=2):
        """What all said, and the seconds from the end of the rank at fault to that of the last."""
        words = [w for s in sets for w in ("--set", s)]
        ran = subprocess.run([str(TROUPE), "launch", "-n", str(ranks), "--", "train", "nano.yaml", *words],
                             cwd=self.folder, env=self.env(TROUPE_FAULT=fault), capture_output=True, text=True,
                             timeout=PATIENCE, check=False)
        self.assertEqual(ran.returncode, code, ran.stderr)
        return ran.stderr, float(re.search(r"all were down ([0-9.]+) s later", ran.stderr)[1])

    def without_stage(self, where):
        return re.sub(r"stage \d/\d, ", "", where)

    def rule(self, point, rank, action):
        return f"{point}@{rank}{'' if point == 'load.read' else ':5'}={action}"

    def check_flight(self, run, where):
        """Row 192: what both ranks did last is kept, also of the one that was killed."""
        ranks = json.loads((self.folder / run / "flight.json").read_text())["ranks"]
        self.assertEqual([r["rank"] for r in ranks], [0, 1])
        last = ranks[1]["moments"][-1]
        self.assertRegex(f"step {last['step']}, {last['phase']}", self.without_stage(where))
        self.assertTrue(all(m["ago_s"] >= 0 for r in ranks for m in r["moments"]))
        # The operations that both came to are the same ones.
        issued = [{(m["group"], m["number"]): (m["operation"], m["bytes"]) for m in r["moments"] if m["event"] == "issue"}
                  for r in ranks]
        both = issued[0].keys() & issued[1].keys()
        self.assertGreater(len(both), 2)
        for key in both:
            self.assertEqual(issued[0][key][0], issued[1][key][0])
        table = self.troupe("inspect", f"{run}/flight.json").stdout
        self.assertRegex(table, r"\nrank +step +phase +ago +last\n0 +\d+ .*\n1 +\d+ ")
        self.assertRegex(table, r"\nago +step +collective +rank 0 +rank 1 +last to come\n")

    def test_F84_a_killed_rank_is_named_with_what_it_did(self):
        for point, where, sets in POINTS:
            with self.subTest(point):
                run = "checkpoint.dir=" + point.replace(".", "-")
                said, seconds = self.launch(self.rule(point, 1, "kill"), 6, run, "run.hang_timeout=10min", *sets)
                self.assertLess(seconds, 100)  # far below the limit of an operation
                self.assertRegex(said, f"E6001 rank 1 of 2 exited without a message; it was in {where}")
                self.assertRegex(said, rf"launch: rank 1 of 2 was ended by SIGKILL .* in {where}, \d")
                self.assertEqual(said.count("E6001 rank 1 of 2"), 1, said)
                if point != "load.read":
                    if sets is not STAGES:  # whose two ranks have several groups of the same two
                        self.check_flight(point.replace(".", "-"), where)
                    record = self.exit_record(point.replace(".", "-"))
                    self.assertEqual((record["rank"], record["code"], record["error"], record["step"]),
                                     (1, 6, "E6001", 5))
                    self.assertRegex(f"step 6, {record['phase']} step 5, {record['phase']}", self.without_stage(where))

    def test_F84_a_rank_that_takes_long_to_report_is_not_killed_meanwhile(self):
        said, _ = self.launch("forward.1@1:5=kill;report@0=sleep:13000", 6)
        self.assertEqual(said.count("E6001 rank 1 of 2 exited without a message"), 1, said)
        self.assertRegex(said, r"rank 1 of 2 was ended by SIGKILL .* all were down \d\d\.\d s later\n")  # and none hung

    def test_F84_of_several_that_are_left_one_tells(self):
        said, _ = self.launch("reduce@2:5=kill", 6, ranks=4)
        self.assertEqual(said.count("E6001 rank 2 of 4 exited without a message"), 1, said)
        self.assertEqual(said.count("E6001 caused by rank 2, reported by rank"), 2, said)

    def test_F85_a_stopped_rank_is_named_wherever_it_is(self):
        def stopped(point, where, sets):
            run, limit = "checkpoint.dir=" + point.replace(".", "-"), 5
            said, _ = self.launch(self.rule(point, 1, "stop"), 6, run, f"run.hang_timeout={limit}s",
                                  f"run.start_timeout={limit + 20}s", *sets)
            # The limit, the watch's own second, and what a slow machine adds that runs three of these at once.
            allowed = limit + (60 if point == "load.read" else 40)
            self.assertLess(float(re.search(r" since ([0-9.]+) s", said)[1]), allowed, said)
            self.assertRegex(said, rf"E6003 rank 1 of 2 is stopped \(SIGSTOP\); it is in {where} since \d", point)
            self.assertRegex(said, rf"rank 1 of 2 stood still \(SIGSTOP\) and was killed in {where}, \d", point)

        with concurrent.futures.ThreadPoolExecutor(3) as three:
            for done in [three.submit(stopped, *point) for point in POINTS]:
                done.result()

    def test_F84_F85_F87_edges_between_ranks_are_named_with_stage_and_microbatch(self):
        def ended(point, rank, action, code, where, sets):
            run = f"{point}-{rank}"
            said, seconds = self.launch(self.rule(point, rank, action), code, f"checkpoint.dir={run}", *sets, ranks=4)
            told = (FOUND[action] + where).replace("{}", str(rank)) if action in FOUND else \
                f"rank {rank} of 4 failed: .*thrown at {point}"
            self.assertRegex(said, told, run)
            self.assertLess(seconds, 40, run)
            record = self.exit_record(run)
            self.assertEqual((record["rank"], record["code"], record["step"]), (rank, code, 5), run)
            self.assertRegex(record["phase"], self.without_stage(where), run)

        with concurrent.futures.ThreadPoolExecutor(2) as two:
            for done in [two.submit(ended, *edge) for edge in EDGES]:
                done.result()

    def test_F85_a_rank_that_does_not_move_is_named(self):
        said, _ = self.launch("forward.1@1:5=sleep:120000", 6, "run.hang_timeout=5s")
        self.assertIn("E6003 rank 1 of 2 makes no progress; it is in step 6, forward 2/4 of microbatch 0 since", said)
        self.assertIn("rank 1 of 2 hung and was killed in step 6, forward 2/4 of microbatch 0", said)

    def test_F86_when_rank_0_dies_the_launcher_writes_its_record(self):
        said, _ = self.launch("optim@0:7=kill", 6)
        self.assertIn("rank 0 of 2 was ended by SIGKILL", said)
        record = self.exit_record()
        self.assertEqual((record["code"], record["error"], record["rank"], record["step"], record["phase"]),
                         (6, "E6001", 0, 7, "optim"))
        self.assertIn("was ended by SIGKILL", record["message"])
        self.assertFalse(record["resumable"])
        self.assertEqual(record["checkpoint"], "")

    def test_F86_without_a_launcher_the_others_know_that_rank_0_is_gone(self):
        runs = self.start_ranks(3, "run.hang_timeout=10min", TROUPE_FAULT=lambda r: "backward.1:5=kill" if r == 0 else "")
        self.assertEqual(runs[0].wait(PATIENCE), -signal.SIGKILL)
        begin = time.monotonic()
        for rank in (1, 2):
            self.assertEqual(runs[rank].wait(PATIENCE), 6, self.text_of(rank))
            self.assertRegex(self.text_of(rank), "E6001 (rank 0 of 3 exited|caused by rank 0)")
        self.assertLess(time.monotonic() - begin, 100)
        for rank in (1, 2):  # no launcher sees what all did: each that is left keeps its own
            kept = json.loads((self.folder / f"run/flight-rank-{rank}.json").read_text())["ranks"]
            self.assertEqual([r["rank"] for r in kept], [rank])
            self.assertIn("wait", [m["event"] for m in kept[0]["moments"]])

    def test_F87_the_words_of_the_rank_at_fault_are_what_the_others_tell(self):
        runs = self.start_ranks(2, TROUPE_FAULT=lambda r: "forward.1:5=throw" if r == 1 else "")
        for rank, code in ((1, 70), (0, 6)):
            self.assertEqual(runs[rank].wait(PATIENCE), code, self.text_of(rank))
        self.assertIn("rank 1 of 2 failed: ", self.text_of(0))
        self.assertIn("thrown at forward.1", self.exit_record()["message"])

    def test_F88_a_late_rank_is_named_and_stops_nobody(self):
        late = {"TROUPE_FAULT": lambda r: "forward.1=sleep:100" if r == 1 else ""}
        for rank, run in enumerate(self.start_ranks(3, "log.every=1", "train.global_batch=12", **late)):
            self.assertEqual(run.wait(PATIENCE), 0, self.text_of(rank))
        told = [r for r in self.records() if r.get("event") == "straggler"]
        self.assertEqual([(r["rank"], r["phase"]) for r in told], [(1, "forward")])
        self.assertGreater(told[0]["factor"], 2)
        self.assertGreater(told[0]["phase_s"], 0.1)
        self.assertRegex(self.text_of(0), r"rank 1 works \d+\.\d times as long as the others, .* most in forward, ")
        self.assertNotIn("times as long", self.text_of(1) + self.text_of(2))
        # Row 182: the least and the most of any rank, phase by phase, in the log and the report.
        for row in (r for r in self.records() if "event" not in r and r["step"] > 5):
            for phase in ("own", "batch", "forward", "backward", "reduce", "optim"):
                self.assertLessEqual(row[f"ranks/{phase}_min_s"], row[f"ranks/{phase}_max_s"])
            self.assertGreater(row["ranks/forward_max_s"], row["ranks/forward_min_s"] + 0.02)
        self.assertIn("own work in a step", (self.folder / "run/report.html").read_text())


if __name__ == "__main__":
    unittest.main()
