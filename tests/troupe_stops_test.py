"""Signals and limits of time while a run does this or that: where it stops, what it leaves, how
it goes on. Rows of docs/reference/RELIABILITY.md."""
import fcntl
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import time
import unittest

from nano_run import PATIENCE, TROUPE, NanoRun


class TroupeStops(NanoRun):
    def stop_at(self, point, step, *sets, sign=signal.SIGTERM):
        """A run that gets the signal while it sleeps at the point, after that step (0: once it has begun); its exit code."""
        run = self.start(*(w for s in sets for w in ("--set", s)), TROUPE_FAULT=f"{point}=sleep:3000")
        self.wait_for_step(step) if step > 0 else self.wait_for(lambda: "TROUPE_FAULT" in self.said())
        time.sleep(0.3)
        run.send_signal(sign)
        return run.wait(PATIENCE)

    def test_F17_a_second_signal_leaves_a_slow_save_and_the_old_step(self):
        run = self.start(TROUPE_FAULT="save.shard:10=sleep:120000;batch:11=sleep:700")
        self.wait_for(lambda: self.steps() == ["step-000005"] and len(self.losses()) >= 10)
        run.send_signal(signal.SIGTERM)
        self.wait_for(lambda: "stopping" in self.said())
        time.sleep(0.2)
        begin = time.monotonic()
        run.send_signal(signal.SIGTERM)
        self.assertEqual(run.wait(PATIENCE), 128 + signal.SIGTERM)
        self.assertLess(time.monotonic() - begin, 60)  # of the two minutes that the save takes
        self.assertEqual(self.steps(), ["step-000005"])
        self.assertIn("resumed step 5", self.train())
        self.assertEqual([p.name for p in (self.folder / "run").glob(".*")], [])
        # And one signal alone lets the save end.
        run = self.start("--set", "checkpoint.dir=slow", TROUPE_FAULT="save.shard:5=sleep:1000")
        self.wait_for(lambda: (self.folder / "slow" / "log.jsonl").exists() and len(self.losses("slow")) >= 5)
        run.send_signal(signal.SIGTERM)
        self.assertEqual(run.wait(PATIENCE), 0)
        self.assertIn("step-000005", self.steps("slow"))

    def test_F98_a_stop_is_a_saved_step_exit_0_and_the_command_to_go_on(self):
        self.assertEqual(self.stop_at("batch:7", 7), 0)
        said = self.said()
        self.assertIn("SIGTERM: stopping after step 8", said)
        self.assertIn("Continue with: troupe train nano.yaml", said)
        self.assertIn("step-000008", self.steps())
        record = self.exit_record()
        self.assertEqual((record["code"], record["step"], record["resumable"]), (0, 8, True))
        self.train()
        self.train("checkpoint.dir=whole")
        self.assert_equal_runs("whole", "run")

    def test_F98_the_command_to_go_on_names_no_step_to_go_back_to(self):
        stop = ("--set", "run.time_limit=1ms")
        for recipe, sets, more in (("resume: auto", ["checkpoint.resume=step 5"], ""),
                                   ("resume: step 5", [], " --set checkpoint.resume=auto"),
                                   ("resume: must", ["checkpoint.resume=never"], "")):
            with self.subTest(recipe=recipe, sets=sets):
                shutil.rmtree(self.folder / "run", ignore_errors=True)
                self.train("checkpoint.keep=0")
                (self.folder / "own.yaml").write_text(self.RECIPE.replace("dir: run", f"dir: run, {recipe}"))
                said = self.troupe("train", "own.yaml", *(w for s in sets for w in ("--set", s)), *stop).stderr
                command = re.search(r"Continue with: (.*)", said)[1]
                self.assertEqual(command, "troupe train own.yaml --set run.time_limit=1ms" + more)
                self.assertIn("  resume: auto", (self.folder / "run/recipe.yaml").read_text())

    def test_exit_json_tells_a_run_that_runs_from_one_that_was_killed(self):
        self.assertEqual(self.stop_at("batch:7", 7), 0)
        stopped = self.exit_record()
        self.assertEqual((stopped["state"], stopped["code"], stopped["step"]), ("stopped", 0, 8))
        self.assertRegex(self.troupe("inspect", "run").stdout, "run  stopped: code 0 at step 8: ")
        run = self.start(TROUPE_FAULT="batch:12=sleep:900000")
        self.wait_for_step(12)
        record = self.exit_record()
        self.assertEqual((record["state"], record["code"], record["pid"], record["attempt"]), ("running", -1, run.pid, 1))
        self.assertEqual((record["step"], record["checkpoint"]), (8, "run/step-000008"))
        self.assertIn(f"run  running: process {run.pid} on ", self.troupe("inspect", "run").stdout)
        status = json.loads(self.troupe("status", "run", "--json").stdout)["runs"][0]
        self.assertEqual((status["state"], status["alive"], status["pid"], status["step"]), ("running", True, run.pid, 12))
        self.assertEqual((status["checkpoint"], status["loss"]), (self.steps()[-1], float(self.losses()[12])))
        run.kill()
        run.wait()
        self.assertIn(f"run  killed, process {run.pid} on ", self.troupe("status", "run", code=6).stdout)
        lines = self.troupe("inspect", "run").stdout.splitlines()
        for line, begin in zip(lines, ("run  killed: ", "  log         its last line is of step 12, ", "  last event  none",
                                       "  checkpoint  step-0000", "  next        ")):
            self.assertTrue(line.startswith(begin), line)
        self.assertIn("the same command goes on after step-0000", lines[4])
        self.assertEqual(self.exit_record(), record)
        self.assertRegex(self.troupe("inspect", "run").stdout, rf"run  killed: process {run.pid} on \S+, attempt 1, is gone")
        self.troupe("report", "run")
        self.assertIn(f"killed: process {run.pid} on ", (self.folder / "run/report.html").read_text())
        self.train("train.steps=wrong", code=2)
        self.train("data.train=[{kind: flat, path: nothing.bin}]", code=3)
        self.assertEqual(self.exit_record()["state"], "failed")
        self.assertRegex(self.troupe("status", ".", code=3).stdout, r", code 3 E3\d{3}\n")
        self.train()
        self.assertEqual(self.exit_record()["state"], "finished")

    def test_status_of_a_folder_of_runs_is_a_table(self):
        self.train("checkpoint.dir=all/a")
        self.train("checkpoint.dir=all/b", TROUPE_FAULT="batch:7=kill", code=-9)
        title, a, b = self.troupe("status", "all", code=6).stdout.splitlines()
        self.assertRegex(title, r"^run +state +code +step +loss +checkpoint +log$")
        self.assertRegex(a, r"^all/a +finished +0 +20 +\d\.\d{3} +step-000020 +\S.* ago$")
        self.assertRegex(b, r"^all/b +killed +- +\d+ +\d\.\d{3} +\S+ +\S.* ago$")
        self.assertIn("is neither a run's folder nor one that holds runs", self.troupe("status", "text.txt", code=2).stderr)

    def test_F100_a_stop_is_heard_in_load_eval_samples_and_save(self):
        sets = ["data.valid=[{kind: text, path: text.txt}]", "eval.every=4"]
        self.assertEqual(self.stop_at("eval:4", 4, *sets), 0)
        self.assertEqual(self.steps(), ["step-000004"])  # neither the evaluation nor a further step
        self.assertNotIn('"eval"', (self.folder / "run" / "log.jsonl").read_text())
        self.assertEqual(self.stop_at("load.read#1", 0), 0)
        self.assertEqual(self.steps(), ["step-000004"])
        self.assertEqual(self.stop_at("save.shard:5", 5), 0)
        self.assertIn("step-000005", self.steps())
        shutil.rmtree(self.folder / "run")  # its log has step 7 already
        prompts = [f"eval.prompts=[{', '.join(['The'] * 40)}]", "eval.sample_tokens=64", "eval.every=1"]
        self.assertEqual(self.stop_at("eval:7", 7, *prompts), 0)
        self.assertNotIn("sample step 8", self.said())

    def test_F102_control_c_stops_and_twice_leaves_at_once(self):
        for presses, want in ((1, 0), (2, 128 + signal.SIGINT)):
            folder = f"run{presses}"
            child, terminal = pty.fork()
            if child == 0:
                os.chdir(self.folder)
                os.execvpe(TROUPE, [str(TROUPE), "train", "nano.yaml", "--set", f"checkpoint.dir={folder}"],
                           self.env(TROUPE_FAULT="batch:7=sleep:4000"))
            self.wait_for(lambda f=folder: (self.folder / f / "log.jsonl").exists() and len(self.losses(f)) >= 7)
            for _ in range(presses):
                time.sleep(0.2)
                os.write(terminal, b"\x03")
            said = b""
            try:
                while part := os.read(terminal, 65536):
                    said += part
            except OSError:  # the terminal's other side is closed
                pass
            os.close(terminal)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), want, said)
            newest = "step-000008" if presses == 1 else "step-000005"
            self.assertEqual(self.steps(folder)[-1], newest)
            if presses == 1:
                self.assertIn(b"interrupt: stopping after step 8", said)
                # The line of the last step stays above it.
                self.assertRegex(said, rb"\x1b\[Kstep 8/20 [^\r\n]*\r?\n[^\n]*interrupt: stopping")

    def test_F103_signals_save_and_tell_and_change_no_loss(self):
        run = self.start(TROUPE_FAULT="batch:7=sleep:2000")
        self.wait_for_step(7)
        run.send_signal(signal.SIGUSR1)
        run.send_signal(signal.SIGUSR2)
        self.assertEqual(run.wait(PATIENCE), 0)
        self.assertIn("step-000008", self.said())
        self.assertRegex(self.said(), r"status: step 8, loss \d\.\d+, newest checkpoint run/step-00000[58]")
        # The stacks are those of the moment of the signal, when the main thread slept at that point.
        main = next(line for line in self.said().splitlines() if line.startswith(f"thread {run.pid} "))
        self.assertRegex(main, r"nanosleep.*troupe::Faults::hit.*troupe::Trainer::next_feed.*troupe::Trainer::run")
        self.assertGreater(self.said().count("\nthread "), 1)
        self.train("checkpoint.dir=whole")
        self.assertEqual(self.losses(), self.losses("whole"))

    def test_F104_a_closed_terminal_or_pipe_ends_nothing(self):
        run = self.start(TROUPE_FAULT="batch:7=sleep:2000")
        self.wait_for_step(7)
        run.send_signal(signal.SIGHUP)
        run.send_signal(signal.SIGPIPE)
        self.assertEqual(run.wait(PATIENCE), 0)
        self.assertEqual(len(self.losses()), 20)

    def test_F97_closed_outputs_end_nothing_and_spoil_no_file(self):
        script = "'%s' train nano.yaml --set checkpoint.dir=%s %s; echo $? >code"
        for name, redirection in (("head", "2>&1 | head -n 1"), ("closed", ">&- 2>&- <&-")):
            self.command(["bash", "-c", "set -o pipefail; " + script % (TROUPE, name, redirection)], 0)
            self.assertEqual(len(self.losses(name)), 20)
            self.assertEqual(self.exit_record(name)["code"], 0)
            # What goes to number 2 must be in no file of the run.
            for file in (self.folder / name).iterdir():
                if file.is_file() and file.name not in ("log.txt", "log.jsonl", "report.html"):
                    self.assertNotIn(b"/step-000005: ", file.read_bytes(), file.name)
            self.troupe("inspect", name)

    def test_F97_a_pipe_that_nobody_reads_holds_no_run(self):
        reader, writer = os.pipe()
        self.addCleanup(os.close, reader)
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
        run = subprocess.Popen([str(TROUPE), "train", "nano.yaml", "--set", "log.every=1"], cwd=self.folder,
                               env=self.env(), stderr=writer, stdout=writer)
        os.close(writer)
        self.assertEqual(run.wait(PATIENCE), 0)
        self.assertEqual(len(self.losses()), 20)
        self.assertIn("finished 20 steps", (self.folder / "run/log.txt").read_text())

    def test_F101_a_save_that_is_slower_than_the_grace_is_told(self):
        said = self.train()
        self.assertNotIn("run.grace", said)  # so little is not worth a word
        # Known from the save before, at the start of the resumed run.
        slow = {"TROUPE_FAULT": "save.shard:5=sleep:1500;batch:12=kill"}
        said = self.train("run.grace=1s", "checkpoint.dir=slow", code=-9, **slow)
        self.assertRegex(said, r"warning a checkpoint takes \d+\.\d s, longer than the 1s of run\.grace: .*checkpoint\.every")
        self.assertEqual(said.count("longer than"), 1)
        # And from the disk's speed, before the first one: 30 MiB of state, a millisecond of grace.
        said = self.train("run.grace=1ms", "checkpoint.dir=big", "train.steps=2", "model.width=256", "model.moe.hidden=256")
        self.assertRegex(said, r"a checkpoint of 0\.0\d? GiB takes about \d+\.\d s here; run\.grace is 1ms")
        self.assertEqual([p.name for p in (self.folder / "big").glob(".*")], [])

    def test_F105_nothing_outlives_the_process(self):
        run = self.start(TROUPE_FAULT="batch:7=sleep:40000")
        self.wait_for_step(7)
        run.kill()
        run.wait()
        left = subprocess.run(["ps", "-o", "pid=", "--sid", str(run.pid)], capture_output=True, text=True, check=False).stdout
        self.assertEqual(left.split(), [])

    def test_F106_a_limit_of_time_is_kept_with_a_saved_step(self):
        said = self.train("run.time_limit=4s", "train.steps=1000", TROUPE_FAULT="batch=sleep:100")  # of 100 s
        self.assertIn("time limit 4s: stopping after step", said)
        last = max(self.losses())
        self.assertTrue(0 < last < 60, last)
        self.assertEqual(self.steps()[-1], f"step-{last:06d}")
        self.assertEqual(self.exit_record()["code"], 0)


if __name__ == "__main__":
    unittest.main()
