"""`troupe launch --spares`: processes that wait for the places of ranks, and a run whose ranks are killed at random moments.
Rows of docs/reference/RELIABILITY.md."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import unittest

from nano_run import NANO, PATIENCE, TROUPE, NanoRun

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "bench"))
import recovery  # noqa: E402

SLOW = "batch=sleep:200"  # of each step, so that a test can meet it on its way


class TroupeSpares(NanoRun):
    RECIPE = NANO.replace("global_batch: 8, steps: 20", "global_batch: 8, micro_batch: 2, steps: 40")

    def words(self, *sets, options=(), restarts=9):
        return ["launch", "-n", 2, "--max-restarts", restarts, *options, "--", "train", "nano.yaml", *(w for s in sets for w in ("--set", s))]

    def start_launch(self, *sets, options=(), **more):
        """One in the background."""
        out = (self.folder / "said").open("w")
        self.addCleanup(out.close)
        run = subprocess.Popen([str(w) for w in (TROUPE, *self.words(*sets, options=options))], cwd=self.folder, env=self.env(**more),
                               stderr=out)
        self.addCleanup(run.wait)
        self.addCleanup(run.kill)
        return run

    def spares(self, run, count):
        """Process ids by rank, once so many wait."""
        self.wait_for(lambda: len(recovery.spares_of(run.pid)) == count)
        return recovery.spares_of(run.pid)

    def assert_gone(self, pids):
        self.wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))

    def test_246_F207_spares_take_the_places_of_all_ranks_and_no_bit_changes(self):
        run = self.start_launch(options=["--spares", "2"], TROUPE_FAULT=SLOW)
        for rank, step in ((1, 7), (0, 12)):
            spares = self.spares(run, 2)
            self.wait_for_step(step)
            os.kill(recovery.ranks_of(run.pid)[rank], signal.SIGKILL)
            self.wait_for(lambda s=spares: recovery.ranks_of(run.pid) == s)
        self.assertEqual(run.wait(PATIENCE), 0, self.said())
        self.assertEqual(self.said().count("2 ranks (spares: 2)"), 2, self.said())
        record = self.exit_record()
        self.assertEqual((record["state"], record["code"], record["attempt"]), ("finished", 0, 3))
        self.troupe("launch", "-n", 2, "--", "train", "nano.yaml", "--set", "checkpoint.dir=whole")
        self.assert_equal_runs("whole", "run")

    def test_F207_fewer_spares_than_ranks_take_the_first_places(self):
        told = json.loads(self.troupe(*self.words(options=["--spares", "1", "--json"], restarts=1), code=6,
                                      TROUPE_FAULT=SLOW + ";forward.1@1:9=kill").stdout)
        self.assertEqual([(a["ranks"], a["spares"]) for a in told["attempts"]], [(2, 0), (2, 1)])

    def test_F207_a_spare_that_dies_is_replaced_and_said_and_one_that_stands_still_is_not_taken(self):
        run = self.start_launch("train.steps=100000", options=["--spares", "2"], TROUPE_FAULT=SLOW)
        spares = self.spares(run, 2)
        os.kill(spares[1], signal.SIGTERM)
        self.wait_for(lambda: "the spare of rank 1 was ended by SIGTERM: another is started" in self.said())
        self.wait_for(lambda: recovery.spares_of(run.pid).get(1, spares[1]) != spares[1])
        self.assertEqual(recovery.spares_of(run.pid)[0], spares[0])
        status = self.troupe("status", "run").stdout
        self.assertIn(", 2 spares", status)
        os.kill(spares[0], signal.SIGSTOP)
        before = recovery.ranks_of(run.pid)
        os.kill(before[0], signal.SIGKILL)
        self.wait_for(lambda: "attempt 2 of 10: 2 ranks (spares: 1)" in self.said())
        self.assert_gone([spares[0]])
        spares = self.spares(run, 2)
        ranks = recovery.ranks_of(run.pid)
        run.send_signal(signal.SIGTERM)
        self.assertEqual(run.wait(PATIENCE), 0, self.said())
        self.assert_gone([*spares.values(), *ranks.values()])
        self.assertIn("Continue with: troupe launch -n 2 --max-restarts 9 --spares 2 -- train nano.yaml", self.said())

    def test_F207_spares_that_cannot_live_are_given_up(self):
        run = self.start_launch("train.steps=100000", options=["--spares", "1"], TROUPE_FAULT=SLOW)
        for _ in range(3):
            os.kill(self.spares(run, 1)[0], signal.SIGKILL)
            self.wait_for(lambda: not recovery.spares_of(run.pid) or "no more are started" in self.said())
        self.wait_for(lambda: "SIGKILL, the third in a row soon after its start: no more are started" in self.said())
        done = len(self.losses())
        self.wait_for_step(done + 3)  # the run does not mind
        self.assertEqual(recovery.spares_of(run.pid), {})
        run.send_signal(signal.SIGTERM)
        self.assertEqual(run.wait(PATIENCE), 0, self.said())

    def test_F105_no_spare_outlives_the_launcher(self):
        run = self.start_launch("train.steps=100000", options=["--spares", "2"], TROUPE_FAULT=SLOW)
        pids = [*self.spares(run, 2).values(), *recovery.ranks_of(run.pid).values()]
        run.kill()
        run.wait()
        self.assert_gone(pids)

    def test_spares_that_nothing_would_use_are_usage(self):
        train = ["--", "train", "nano.yaml"]
        for words, said in ((["-n", 2, "--spares", 2, *train], "--max-restarts is 0"),
                            (["-n", 2, "--max-restarts", 1, "--spares", 3, *train], "3 is larger than the 2 of --ranks"),
                            (["-n", 2, "--max-restarts", 1, "--spares", 1, "--", "bench", "machine"], "is for ranks of train"),
                            (["--spares", 1, "--max-restarts", 1, *train], "is for ranks of train")):
            with self.subTest(said):
                self.assertIn(said, self.troupe("launch", *words, code=2).stderr)

    def drill(self, *layout):
        return recovery.drill(TROUPE, self.folder / "drill", ranks=4, spares=4, kills=3, layout=layout, seed=1)

    def test_246_F208_random_kills_among_four_ranks_with_sharded_experts(self):
        self.assert_recovered(self.drill("parallel.expert=2", "parallel.shard=full"))

    def test_246_F208_random_kills_in_a_pipeline(self):
        self.assert_recovered(self.drill("parallel.pipeline=2"))

    def assert_recovered(self, told):
        self.assertEqual((told.equal, len(told.seconds), told.left), (True, 3, []), told)
        self.assertLess(sorted(told.seconds)[1], 60, told)  # a bound that a busy machine keeps; bench/recovery.py measures
        print("seconds to the next step:", " ".join(f"{s:.1f}" for s in told.seconds), flush=True)


if __name__ == "__main__":
    unittest.main()
