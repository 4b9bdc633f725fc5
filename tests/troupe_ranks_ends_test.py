#!/usr/bin/env python3
"""Several ranks at the two ends of a run: one that cannot read or write a checkpoint, is killed in a save, comes late,
leaves late, or hangs when another is gone."""
import re
import shutil
import signal
import time
import unittest

from ports import free_port
from nano_run import PATIENCE
from ranks_run import RanksRun

# Each rank holds, writes and reads a part.
PARTS = "parallel.shard=full"
SAVES = (PARTS, "checkpoint.every_steps=5")


def on_rank(rank, fault):
    return {"TROUPE_FAULT": lambda r: fault if r == rank else ""}


class TroupeRanksEnds(RanksRun):
    def test_F15_a_shard_that_cannot_be_written_is_told_by_all_and_published_by_none(self):
        self.train_ranks(2, *SAVES, "checkpoint.keep=0", **on_rank(1, "save.shard@1:10=eio"))
        for rank in range(2):
            self.assertRegex(self.text_of(rank), r"step 10 is not saved, the next interval tries again: rank 1: "
                                                 r"run/\S+/shard-00001-000\S*: E7002 cannot write: Input/output error")
        self.assertEqual(self.steps(), ["step-000005", "step-000015", "step-000020"])

    def test_F16_a_rank_killed_in_a_save_leaves_the_old_step_to_go_on_from(self):
        runs = self.start_ranks(2, *SAVES, **on_rank(1, "save.shard@1:10=kill"))
        self.assertEqual(runs[1].wait(PATIENCE), -signal.SIGKILL)
        self.assertEqual(runs[0].wait(PATIENCE), 6, self.text_of(0))
        self.assertIn("E6001 rank 1 of 2 exited without a message", self.text_of(0))
        self.assertEqual(self.steps(), ["step-000005"])
        self.train_ranks(2, *SAVES)
        self.assertIn("resumed step 5 from", self.text_of(0))
        self.train("checkpoint.dir=whole")
        self.assertLess(self.apart("whole", "run"), 1e-5)

    def test_F42_a_rank_that_cannot_read_ends_all_and_each_names_it(self):
        self.train_ranks(3, PARTS, "train.steps=10")
        begin = time.monotonic()
        self.train_ranks(3, PARTS, "run.start_timeout=10min", code=4, **on_rank(2, "load.read@2=eio"))
        self.assertLess(time.monotonic() - begin, 200)
        for rank in range(3):
            self.assertRegex(self.text_of(rank), r"step 10: rank 2: run/step-000010/shard-\S+: E4001 cannot read: Input/output error")
        self.assertEqual(self.exit_record()["code"], 4)

    def test_F89_a_rank_that_is_late_at_the_start_is_waited_for(self):
        self.train_ranks(2, "run.hang_timeout=4s", "run.start_timeout=120s", **on_rank(1, "load.read@1=sleep:10000"))
        self.assertEqual(max(self.losses()), 20)

    def test_F90_a_rank_with_a_file_of_other_content_is_named(self):
        away = self.folder / "away"
        away.mkdir()
        shutil.copy(self.folder / "nano.yaml", away)
        (away / "text.txt").write_text(self.TEXT.replace("cat", "dog"))
        runs = self.start_apart(away)
        for rank, run in enumerate(runs):
            self.assertEqual(run.wait(PATIENCE), 2, self.text_of(rank))
            self.assertRegex(self.text_of(rank), r"(?m)^data text\.txt: E2010 differs between ranks - "
                                                 r"rank\(s\) 0, 1: 7200 tokens, \w+; rank\(s\) 2: 7200 tokens, \w+$|"
                                                 r"^data text\.txt: E2010 differs between ranks - "
                                                 r"rank\(s\) 2: 7200 tokens, \w+; rank\(s\) 0, 1: 7200 tokens, \w+$")

    def test_F90_a_rank_without_the_step_that_rank_0_goes_on_from_ends_all(self):
        self.train_ranks(3, "train.steps=10")
        away = self.folder / "away"
        away.mkdir()
        for name in ("nano.yaml", "text.txt"):
            shutil.copy(self.folder / name, away)
        for rank, run in enumerate(self.start_apart(away)):
            self.assertEqual(run.wait(PATIENCE), 4, self.text_of(rank))
            self.assertRegex(self.text_of(rank), r"(?m)^rank 2: run/step-000010/manifest\.json: E4002 cannot open")

    def test_F90_ranks_with_other_run_folders_are_named(self):
        port = free_port()
        runs = [self.start_rank(r, 3, port, ["checkpoint.dir=other"] if r == 1 else []) for r in range(3)]
        for rank, run in enumerate(runs):
            self.assertEqual(run.wait(PATIENCE), 2, self.text_of(rank))
            said = re.search(r"(?m)^recipe: E2010 differs between ranks - (.*)$", self.text_of(rank))[1]
            self.assertEqual(sorted(said.split("; ")), ['rank(s) 0, 2: dir: "run"', 'rank(s) 1: dir: "other"'])

    def start_apart(self, away):
        """Three ranks, the last of them on a machine of its own as far as files go."""
        port, here, runs = free_port(), self.folder, []
        for rank in range(3):
            self.folder = away if rank == 2 else here
            runs.append(self.start_rank(rank, 3, port, []))
        self.folder = here
        (here / "run.2.txt").unlink(missing_ok=True)
        (here / "run.2.txt").symlink_to(away / "run.2.txt")
        return runs

    # A training thread that does not come back, as in a collective over NCCL with a rank that is gone: Gloo's throw.
    HANGS = "forward.1:5=sleep:900000"

    def test_F176_a_rank_that_hangs_with_a_killed_one_ends_by_itself(self):
        for hangs, killed, left in ((0, 1, 2), (2, 0, 1)):
            name = f"hangs-{hangs}"
            runs = self.start_ranks(3, "run.hang_timeout=30min", "log.every=1", name=name, **on_rank(hangs, self.HANGS))
            self.wait_for_step(5, name)
            runs[killed].send_signal(signal.SIGKILL)
            for rank in (left, hangs):
                self.assertEqual(runs[rank].wait(PATIENCE), 6, self.text_of(rank, name))
                self.assertEqual(len(re.findall(f"E6001 (rank {killed} of 3 exited|caused by rank {killed})",
                                                self.text_of(rank, name))), 1, self.text_of(rank, name))
            if killed != 0:
                record = self.exit_record(name)
                self.assertEqual((record["code"], record["error"], record["rank"]), (6, "E6001", killed))
                self.assertIn(f"rank {killed} of 3 exited without a message", record["message"])
            self.assertTrue((self.folder / name / f"flight-rank-{hangs}.json").exists())

    def test_F176_a_rank_that_hangs_writes_its_checkpoint_first(self):
        faults = {0: f"save.shard@0:5=sleep:20000;{self.HANGS}"}
        runs = self.start_ranks(2, "run.hang_timeout=30min", "log.every=1", *SAVES, TROUPE_FAULT=lambda r: faults.get(r, ""))
        self.wait_for_step(5)
        self.wait_for(lambda: list((self.folder / "run").glob("*/shard-00001*")))  # rank 1 has written its part
        runs[1].send_signal(signal.SIGKILL)
        self.assertEqual(runs[0].wait(PATIENCE), 6, self.text_of(0))
        self.assertIn("E6001 rank 1 of 2 exited without a message", self.text_of(0))
        # Published, unless rank 1 was killed before it said that it had written.
        self.assertTrue(self.steps() == ["step-000005"] or "step 5 is not saved" in self.text_of(0), self.text_of(0))

    def test_F176_a_slow_rank_and_one_that_leaves_late_are_no_fault(self):
        faults = {0: "forward.1#1:5=sleep:15000;save.shard@0:10=sleep:15000", 1: "exit=sleep:15000"}
        runs = self.start_ranks(2, "checkpoint.background=false", "run.hang_timeout=30min", TROUPE_FAULT=lambda r: faults[r])
        for rank, run in enumerate(runs):
            self.assertEqual(run.wait(PATIENCE), 0, self.text_of(rank))
            self.assertNotRegex(self.text_of(rank), r"\bE\d{4} ")
        self.assertEqual(self.exit_record()["code"], 0)

    def test_F94_a_rank_that_leaves_late_is_no_fault(self):
        runs = self.start_ranks(3, "run.hang_timeout=4s", **on_rank(2, "exit@2=sleep:8000"))
        for rank, run in enumerate(runs):
            self.assertEqual(run.wait(PATIENCE), 0, self.text_of(rank))
            self.assertNotRegex(self.text_of(rank), r"\bE\d{4} ")
        self.assertEqual(self.exit_record()["code"], 0)


if __name__ == "__main__":
    unittest.main()
