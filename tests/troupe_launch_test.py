"""`troupe launch`: several ranks of one run on this machine, ranks that are killed or wrong, starts
again, signals. Rows of docs/reference/RELIABILITY.md."""
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import time
import unittest

from nano_run import NANO, PATIENCE, STRACE, TROUPE, NanoRun
from ports import free_port
from troupe_strangers_test import FRAMES

SLOW = "batch=sleep:200"  # of each step, so that a test can meet it on its way


class TroupeLaunch(NanoRun):
    RECIPE = NANO.replace("global_batch: 8", "global_batch: 8, micro_batch: 2")  # the same for any number of ranks

    def words(self, *sets, options=(), ranks=2):
        return ["launch", "-n", ranks, *options, "--", "train", "nano.yaml", *(w for s in sets for w in ("--set", s))]

    def launch(self, *sets, options=(), ranks=2, code=0, **more):
        """To its end; what it said."""
        return self.troupe(*self.words(*sets, options=options, ranks=ranks), code=code, **more).stderr

    def start_launch(self, *sets, options=(), **more):
        """One in the background."""
        out = (self.folder / "said").open("w")
        self.addCleanup(out.close)
        run = subprocess.Popen([str(w) for w in (TROUPE, *self.words(*sets, options=options))], cwd=self.folder,
                               env=self.env(**more), stderr=out)
        self.addCleanup(run.wait)
        self.addCleanup(run.kill)
        return run

    def ranks_of(self, run):
        """Process ids, by rank."""
        out = {}
        for child in pathlib.Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split():
            found = re.search(rb"(?:^|\0)RANK=(\d+)", pathlib.Path(f"/proc/{child}/environ").read_bytes())
            if found:
                out[int(found[1])] = int(child)
        return out

    def assert_gone(self, pids):
        for pid in pids:
            self.assertFalse(os.path.exists(f"/proc/{pid}"), f"process {pid} is still there")

    def test_two_ranks_learn_what_one_learns(self):
        said = self.launch()
        self.assertIn("2 ranks (troupe launch)", said)
        self.assertEqual(said.count("attempt 1 of 1"), 1)
        self.assertEqual(self.exit_record()["code"], 0)
        self.train("checkpoint.dir=one")
        one, two = self.losses("one"), self.losses()
        self.assertEqual(sorted(two), list(range(1, 21)))
        for step, loss in one.items():
            self.assertAlmostEqual(float(loss), float(two[step]), delta=1e-5)

    def test_as_json_each_attempt_is_told(self):
        told = json.loads(self.troupe(*self.words(options=["--json"])).stdout)
        self.assertEqual((told["run"], told["code"], told["step"]), ("run", 0, 20))
        self.assertEqual([(a["ranks"], a["code"], a["end"]) for a in told["attempts"]], [(2, 0, "done")])
        words = self.words("checkpoint.dir=lost", options=["--json", "--max-restarts", "1"])
        told = json.loads(self.troupe(*words, code=6, TROUPE_FAULT="forward.1@1:7=kill").stdout)
        self.assertEqual((told["code"], len(told["attempts"])), (6, 2))
        for attempt in told["attempts"]:
            self.assertIn("rank 1 of 2 was ended by SIGKILL", attempt["end"])
            self.assertGreater(attempt["seconds"], 0)

    def test_F84_F87_a_killed_rank_is_named_and_ends_all(self):
        begin = time.monotonic()
        said = self.launch("run.hang_timeout=10min", code=6, TROUPE_FAULT="forward.1@1:7=kill")
        self.assertLess(time.monotonic() - begin, 100)  # far below the limit of an operation
        self.assertRegex(said, r"rank 1 of 2 was ended by SIGKILL .* s after the start; all were down \d+\.\d s later")
        self.assertNotIn("attempt 2", said)

    # A training thread that does not come back, as in a collective over NCCL with a rank that is gone.
    def test_246_F176_a_rank_that_hangs_with_a_killed_one_ends_by_itself_before_it_is_killed(self):
        said = self.launch("run.hang_timeout=30min", code=6, TROUPE_FAULT="forward.1@0:5=sleep:900000;forward.1@1:5=kill")
        self.assertIn("E6001 rank 1 of 2 exited without a message", said)
        self.assertRegex(said, r"rank 1 of 2 was ended by SIGKILL .* all were down \d\.\d s later\n")  # and none hung

    def test_F85_a_rank_that_stands_still_is_named_and_killed(self):
        said = self.launch("run.hang_timeout=5s", code=6, TROUPE_FAULT="forward.1@1:3=stop")
        self.assertIn("rank 1 of 2 stood still (SIGSTOP) and was killed in step 4, forward 2/4 of microbatch 0, ", said)

    def test_F85_a_rank_that_does_not_end_after_the_others_is_named_and_killed(self):
        for fault, words in (("stop", "stood still (SIGSTOP) and was killed"), ("sleep:900000", "hung and was killed")):
            with self.subTest(fault):
                run = f"checkpoint.dir={fault[:4]}"
                said = self.launch(run, "run.hang_timeout=5s", code=6, TROUPE_FAULT=f"exit@1={fault}")
                self.assertIn(f"rank 1 of 2 {words} in step 20, exit, ", said)
                record = self.exit_record(fault[:4])
                self.assertEqual((record["state"], record["code"], record["error"], record["rank"]), ("failed", 6, "E6003", 1))
                self.assertEqual(record["checkpoint"], f"{fault[:4]}/step-000020")

    def test_F87_the_class_is_that_of_the_rank_at_fault(self):
        for fault, code, words in (("exit:5", 5, "rank 1 of 2 ended with 5 (numbers that are not finite)"),
                                   ("exit:0", 6, "rank 1 of 2 ended with 0 and left the others"),
                                   ("throw", 70, "rank 1 of 2 ended with 70 (a fault of the program)")):
            with self.subTest(fault):
                run = "checkpoint.dir=" + fault.replace(":", "-")
                said = self.launch(run, code=code, TROUPE_FAULT=f"forward.1@1:3={fault}")
                self.assertIn(words, said)

    def test_F87_the_run_ends_with_the_class_of_its_cause_on_one_rank(self):
        (self.folder / "text.txt").write_text(self.TEXT * 300)
        self.troupe("data", "build", "text.txt", "-t", "bytes", "--no-eod", "-o", "set")
        with (self.folder / "set.bin").open("r+b") as ids:  # of 33 blocks two that the start does not look at
            for block in (1, 3):
                ids.seek(2 * 65536 * block)
                ids.write(b"\xff\x7f" * 65536)
        # With this seed rank 1 is the first that meets one of them.
        data = ("data={train: [{path: set}], sequence: 32}", "train.seed=3")
        for run, sets, fault, code, error, end in (
                ("data", data, "", 3, "E3102", r"rank 1 of 2 ended with 3 \(data\)"),
                ("numbers", ["train.max_skips=1"], "backward.0@1=nan", 5, "E5001", r"rank [01] of 2 ended with 5 "),
                ("killed", [], "forward.1@1:7=kill", 6, "E6001", r"rank 1 of 2 was ended by SIGKILL")):
            with self.subTest(run):
                said = self.launch(f"checkpoint.dir={run}", *sets, code=code, TROUPE_FAULT=fault)
                self.assertRegex(said, "launch: " + end)
                record = self.exit_record(run)
                self.assertEqual((record["code"], record["error"]), (code, error), record)
                self.assertIn("rank 1", record["message"])

    def test_F92_killed_ranks_are_started_again_and_nothing_is_lost(self):
        run = self.start_launch(options=["--max-restarts", "2"], TROUPE_FAULT=SLOW)
        for rank, step in ((1, 7), (0, 12)):
            self.wait_for_step(step)
            os.kill(self.ranks_of(run)[rank], signal.SIGKILL)
        self.assertEqual(run.wait(PATIENCE), 0, self.said())
        said = self.said()
        self.assertIn("attempt 3 of 3", said)
        self.assertIn("resumed step 5", said)
        self.assertIn("resumed step 10", said)
        record = self.exit_record()
        self.assertEqual((record["state"], record["code"], record["attempt"]), ("finished", 0, 3))
        self.launch("checkpoint.dir=whole")
        self.assert_equal_runs("whole", "run")

    def test_F92_what_checkpoint_resume_names_is_taken_by_one_attempt(self):
        restarts = ["--max-restarts", "2"]
        for keep, resume in ((1, "step 5"), (0, "step 5"), (1, "never")):
            with self.subTest(keep=keep, resume=resume):
                run = f"checkpoint.dir=run{keep}{resume[:2]}"
                self.train(run, "checkpoint.keep=0", "train.micro_batch=2")
                # Not in the background: step 10 is whole before the kill.
                said = self.launch(run, "checkpoint.background=false", f"checkpoint.keep={keep}", f"checkpoint.resume={resume}",
                                   options=restarts, code=6, TROUPE_FAULT="forward.1@1:12=kill")
                self.assertNotIn("E4002", said)
                self.assertEqual(said.count("resumed step 5 "), resume == "step 5", said)
                self.assertEqual(said.count("resumed step 10 "), 2, said)
                self.assertIn(f"checkpoint.resume: {resume} was done by an earlier attempt; this one takes the newest step", said)

    def test_F92_what_checkpoint_resume_names_is_still_to_be_done_where_no_attempt_did_it(self):
        restarts = ["--max-restarts", "1"]
        self.train("checkpoint.keep=0")
        said = self.launch("checkpoint.keep=0", "checkpoint.resume=step 5", options=restarts, code=6, TROUPE_FAULT="load.read@1=kill")
        self.assertIn("attempt 2 of 2", said)
        self.assertNotIn("was done by an earlier attempt", said)
        self.assertEqual(len(self.steps()), 4)
        # A new start that is killed before its first save; a step that cannot be resumed from stays in the folder.
        (self.folder / "run/step-000020/manifest.json").unlink()
        said = self.launch("checkpoint.resume=never", options=restarts, code=6, TROUPE_FAULT="forward.1@1:3=kill")
        self.assertNotIn("E4002", said)
        self.assertIn("checkpoint.resume: never was done by an earlier attempt; this one takes none, as there is none yet", said)

    def test_F93_a_fault_that_comes_again_at_one_step_ends_the_attempts(self):
        said = self.launch(options=["--max-restarts", "5"], code=70, TROUPE_FAULT="optim@0:7=throw")
        self.assertIn("attempt 3 of 6", said)
        self.assertIn("no progress since step 5, and 3 times the same end", said)
        self.assertNotIn("attempt 4", said)

    def test_F92_ends_that_differ_are_no_loop(self):
        run = self.start_launch("checkpoint.every_steps=100", options=["--max-restarts", "9"], TROUPE_FAULT=SLOW)
        log, lines = self.folder / "run/log.jsonl", 0
        for attempt, (rank, steps) in enumerate(((1, 3), (0, 5), (1, 7), (0, 9)), 1):
            self.wait_for(lambda a=attempt: f"attempt {a} of" in self.said())
            self.wait_for(lambda n=lines + steps: log.exists() and log.read_text().count('"loss"') >= n)
            os.kill(self.ranks_of(run)[rank], signal.SIGKILL)
            lines = log.read_text().count('"loss"')
        self.assertEqual(run.wait(PATIENCE), 0, self.said())
        self.assertIn("attempt 5 of 10", self.said())

    def test_F93_what_fails_again_goes_on_without_the_rank_that_failed(self):
        said = self.launch("parallel.expert=2", ranks=4, options=["--max-restarts", "5", "--min-ranks", "2"],
                           TROUPE_FAULT="optim@3:7=throw")
        self.assertIn("attempt 3 of 6: 4 ranks", said)
        # Three ranks cannot share experts in pairs.
        self.assertIn("no progress since step 5, and 3 times the same end: on with 2 ranks, without rank 3", said)
        self.assertIn("attempt 4 of 6: 2 ranks", said)
        self.launch("parallel.expert=2", "checkpoint.dir=whole")
        for step, loss in self.losses("whole").items():
            self.assertAlmostEqual(float(loss), float(self.losses()[step]), delta=1e-5)

    def test_a_wrong_recipe_is_told_once_and_never_tried_again(self):
        for sets, words in ((["train.stepz=3"], "E2003"), (["train.global_batch=0"], "E2005")):
            said = self.launch(*sets, options=["--max-restarts", "3"], code=2)
            self.assertEqual(said.count(words), 1, said)
            self.assertNotIn("attempt", said)
        # One that only the ranks can see.
        said = self.launch("parallel.expert=3", options=["--max-restarts", "3"], code=2)
        self.assertNotIn("attempt 2", said)
        self.assertIn("launch -n 2 -- train", self.troupe("launch", "-n", 2, "--", "eval", "run", code=2).stderr)
        self.troupe("launch", "-n", 2, "--", "train", "nano.yaml", "--fast", code=2)
        self.assertFalse((self.folder / "run" / "log.jsonl").exists())

    def test_F162_F163_what_another_start_does_not_mend_is_not_tried_again(self):
        for code in (2, 3, 4, 5, 7):
            said = self.launch(f"checkpoint.dir=class{code}", options=["--max-restarts", "3"], code=code,
                               TROUPE_FAULT=f"forward.1@1:3=exit:{code}")
            self.assertIn("attempt 1 of 4", said)
            self.assertNotIn("attempt 2", said)

    def test_F98_a_stop_of_the_launcher_is_a_saved_step_of_all_ranks(self):
        for sign in (signal.SIGTERM, signal.SIGINT):
            run = self.start_launch(TROUPE_FAULT=SLOW)
            done = 12 if self.steps() else 4
            self.wait_for_step(done)
            ranks = self.ranks_of(run)
            self.assertEqual(sorted(ranks), [0, 1])
            run.send_signal(sign)
            self.assertEqual(run.wait(PATIENCE), 0, self.said())
            self.assert_gone(ranks.values())
            self.assertEqual(self.steps()[-1], f"step-{max(self.losses()):06}")
            self.assertLess(max(self.losses()), 20)
            self.assertIn("Continue with: troupe launch -n 2 -- train nano.yaml", self.said())
        self.launch()
        self.launch("checkpoint.dir=whole")
        self.assert_equal_runs("whole", "run")

    def test_247_F190_a_machine_is_checked_before_its_ranks_start(self):
        check = ["--check-machine", "--check-bound", "disk=2MB", "--check-bound", "memory=1MiB"]
        said = self.launch(options=check)
        for line in ("check: ok    disk speed of run: ", "check: ok    free memory: ", "attempt 1 of 1"):
            self.assertIn(line, said)
        said = self.launch("checkpoint.dir=slow", options=check, code=7, TROUPE_FAULT="check.disk=sleep:2500")
        self.assertRegex(said, r"machine \S+: E7102 stays out of the run: disk speed of slow: [01]\.\d MB/s written and synced, ")
        self.assertNotIn("attempt", said)
        self.assertFalse((self.folder / "slow").exists())
        self.assertEqual(list(self.folder.glob(".machine-check*")), [])
        said = self.launch(options=[*check, "--check-bound", "time=3s"], code=7, TROUPE_FAULT="check.disk=sleep:60000")
        self.assertIn("disk speed of run: no answer; bound: 3s for all checks", said)

    def test_247_options_of_the_check_that_cannot_be_are_usage(self):
        for options, words in ((["--check-bound", "disc=2MB"], "--check-bound disc=2MB"), (["--check-bound", "gpu_speed=2"], "E2005"),
                               (["--check-against", "host0"], "is not HOST:PORT")):
            said = self.launch(options=["--check-machine", *options], code=2)
            self.assertIn(words, said)
            self.assertNotIn("attempt", said)
        self.assertIn("--ranks", self.troupe("launch", "--", "train", "nano.yaml", code=2).stderr)
        self.troupe("launch", "-n", 2, "--check-bound", "disk=2MB", "--", "train", "nano.yaml", code=2)
        ran = self.troupe("launch", "--check-machine", "--check-bound", "disk=1B", "--check-bound", "memory=1B", "--", "no-such-program",
                          code=2)
        self.assertIn("no-such-program: E2005 cannot be started", ran.stderr)

    def test_F183_too_few_open_files_for_a_launcher_are_class_7(self):
        for files in (5, 9, 12, 15, 20):
            with self.subTest(files):
                words = " ".join(map(str, self.words("checkpoint.dir=limited")))
                ran = self.command(["bash", "-c", f"ulimit -n {files}; exec '{TROUPE}' {words}"], 7)
                self.assertIn(f"Too many open files; raise the limit on open files (ulimit -n); limits of this process: ulimit -n {files} (",
                              ran.stderr)

    @unittest.skipUnless(STRACE, "needs strace")
    def test_F183_processes_and_threads_that_the_system_refuses_are_class_7(self):
        start = f"ulimit -v 90000000; ulimit -u 50000; exec '{TROUPE}' " + " ".join(map(str, self.words("checkpoint.dir=limited")))
        for call, first in (("clone3", 1), ("clone", 1), ("clone", 2)):  # the store's thread; a rank
            ran = self.command(["strace", "-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={call}:error=EAGAIN:when={first}+",
                                "bash", "-c", start], 7)
            self.assertRegex(ran.stderr, r"E7002 .*: ulimit -v 90000000 \(KiB of addresses\), ulimit -u 50000 \(processes and threads")

    def test_247_what_is_no_machine_of_the_run_is_one_line_of_the_log(self):
        port = free_port()
        check = ["--check-machine", "--check-against", f"127.0.0.1:{port}", "--check-bound", "disk=1MB", "--check-bound", "memory=1MiB"]
        run = self.start_launch("train.steps=100000", options=check)
        self.wait_for(lambda: "other machines are checked against this one" in self.said())
        for garbage in FRAMES[4:7]:
            caller = socket.create_connection(("127.0.0.1", port))
            self.addCleanup(caller.close)  # one that has closed its end is turned away before it is read
            caller.sendall(garbage)
        line = "what is no part of this run connects to its port and is turned away: Error processing client message: Invalid string size"
        self.wait_for(lambda: line in self.said() or "frame #" in self.said())
        self.wait_for_step(1)
        run.send_signal(signal.SIGTERM)
        self.assertEqual(run.wait(PATIENCE), 0, self.said())
        self.assertIn(line, self.said())
        self.assertNotIn("frame #", self.said())
        self.assertNotIn("Exception raised", self.said())

    def test_F105_no_rank_outlives_the_launcher(self):
        run = self.start_launch(TROUPE_FAULT=SLOW)
        self.wait_for_step(2)
        ranks = self.ranks_of(run).values()
        run.kill()
        run.wait()
        self.wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in ranks))


if __name__ == "__main__":
    unittest.main()
