"""What a user meets between runs: a run folder that is moved, a disk that is full, limits of the system,
a log that somebody made up, and the lines that say what to do. Rows of docs/reference/RELIABILITY.md."""
import os
import pathlib
import signal
import subprocess
import unittest

from nano_run import ALONE, PATIENCE, STRACE, TROUPE, NanoRun


class TroupeRunFolders(NanoRun):
    def test_F181_a_folder_that_is_moved_while_it_trains_stops_the_run(self):
        run = self.start(TROUPE_FAULT="batch:7=sleep:1500")
        self.wait_for_step(7)
        self.wait_for((self.folder / "run" / "latest").exists)  # the save of step 5 is done
        (self.folder / "run").rename(self.folder / "moved")
        self.assertEqual(run.wait(PATIENCE), 7)
        self.assertRegex(self.said(), r"run: E7005 was moved to \S*/moved while this run wrote to it.*checkpoint\.dir")
        self.assertFalse((self.folder / "run" / "lock").exists())  # the name is free, and nothing was begun there
        self.assertEqual(self.steps(), [])
        self.assertIn("resumed step 5", self.train("checkpoint.dir=moved"))
        self.train("checkpoint.dir=whole")
        self.assert_equal_runs("whole", "moved")

    def test_F181_a_lock_that_is_deleted_is_made_anew_and_another_runs_is_not_taken(self):
        run = self.start("--set", "train.steps=40", TROUPE_FAULT="batch:7=sleep:1500;batch:12=sleep:3000")
        self.wait_for_step(7)
        (self.folder / "run" / "lock").unlink()
        self.wait_for_step(12)
        self.assertIn("run: the folder's lock was deleted; it is made anew", self.said())
        self.assertIn("E7005", self.train("train.steps=40", code=7))  # a second run finds it
        self.assertEqual(run.wait(PATIENCE), 0)
        self.assertEqual(len(self.losses()), 40)

    @unittest.skipUnless(ALONE, "needs a mount name space")
    def test_F182_a_full_disk_leaves_the_reason_of_the_end(self):
        ran = self.shell(
            "mkdir run && mount -t tmpfs -o size=4m t run\n"
            "TROUPE_FAULT=batch:3=sleep:2000 $TROUPE train nano.yaml --set checkpoint.on_error=stop & train=$!\n"
            "until grep -q '\"step\":3' run/log.jsonl 2>/dev/null; do sleep 0.05; done\n"
            "cat /dev/zero >run/full 2>/dev/null; wait $train; echo code $?; echo left $(ls -A run) .; cat run/exit.json")
        self.assertIn("code 7\n", ran.stdout)
        self.assertRegex(ran.stdout, r'"code":7,"error":"E7001",.*"message":"[^"]*No space left on device')
        self.assertNotRegex(ran.stdout, r"(?m)^left .*\.staging")


class TroupeLimits(NanoRun):
    @unittest.skipUnless(STRACE, "needs strace")
    def test_F183_threads_that_the_system_refuses_are_class_7(self):
        for first in (1, 2):  # the thread of signals; those that compute
            ran = self.command(["strace", "-f", "-o", "/dev/null", "-e", "trace=clone,clone3", "-e",
                                f"inject=clone,clone3:error=EAGAIN:when={first}+", TROUPE, "train", "nano.yaml",
                                "--set", "run.threads=3"], 7)
            self.assertIn("threads: E7002 the system starts no more of them: raise the limit (ulimit -u", ran.stderr)
        self.assertEqual(self.exit_record()["error"], "E7002")

    @unittest.skipUnless(STRACE, "needs strace")
    def test_F183_workers_that_the_system_refuses_leave_the_work_to_the_others(self):
        words = ["data", "build", "text.txt", "-t", "bytes", "--no-eod", "--format", "lines", "-o"]
        self.troupe(*words, "all", "-w", 1)
        for first in (1, 3):
            ran = self.command(["strace", "-f", "-o", "/dev/null", "-e", "trace=clone,clone3", "-e",
                                f"inject=clone,clone3:error=EAGAIN:when={first}+", TROUPE, *words, f"few{first}",
                                "-w", 40], 0)
            self.assertIn(f"the system started {first - 1} of 40 threads", ran.stderr)
            for end in ("bin", "idx"):
                self.assertEqual((self.folder / f"few{first}.{end}").read_bytes(), (self.folder / f"all.{end}").read_bytes())
        said = self.troupe(*words, "many", "-w", 40000, code=2).stderr
        self.assertIn("workers: E2005 40000 is not between 0, one for each core, and 1024", said)
        self.assertEqual(list(self.folder.glob("*.building")), [])

    def test_F183_too_few_open_files_are_class_7(self):
        for files in (4, 6, 9):
            ran = subprocess.run(["bash", "-c", f"ulimit -n {files}; exec '{TROUPE}' train nano.yaml"], cwd=self.folder,
                                 env=self.env(), capture_output=True, text=True, timeout=PATIENCE, check=False)
            if ran.returncode == 127:  # the program's own libraries were not found
                continue
            self.assertEqual(ran.returncode, 7, (files, ran.stderr))
            self.assertIn("Too many open files; raise the limit on open files (ulimit -n)", ran.stderr)

    def test_F184_the_limit_of_processor_time_is_a_stop(self):
        run = self.start(TROUPE_FAULT="batch:7=sleep:2000")
        self.wait_for_step(7)
        for _ in range(2):  # as the kernel does it, once a second
            run.send_signal(signal.SIGXCPU)
        self.assertEqual(run.wait(PATIENCE), 0)
        self.assertIn("the limit of processor time (ulimit -S -t): stopping after step 8", self.said())
        self.assertEqual(self.steps()[-1], "step-000008")

    def at_the_first_call_of_main(self, sign):
        """A run to which this signal comes when its program has done nothing yet: strace stops it there. The signal is the
        process's, as the kernel's and a terminal's are; one that strace injects is a thread's."""
        said = self.command(["strace", "-e", "trace=fcntl", TROUPE, "--version"], 0).stderr.splitlines()
        first = next(i for i, line in enumerate(said) if line.startswith("fcntl(0, F_GETFD"))
        calls = sum(line.startswith("fcntl(") for line in said[:first]) + 1
        trace = self.folder / "trace"
        trace.write_text("")
        words = ["strace", "-o", trace, "-e", "trace=fcntl", "-e", f"inject=fcntl:signal=SIGSTOP:when={calls}",
                 TROUPE, "train", "nano.yaml"]
        with subprocess.Popen([str(w) for w in words], cwd=self.folder, env=self.env(), stderr=subprocess.PIPE, text=True) as run:
            self.wait_for(lambda: "stopped by SIGSTOP" in trace.read_text())
            program = int(pathlib.Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()[0])
            os.kill(program, sign)
            os.kill(program, signal.SIGCONT)
            said = run.communicate(timeout=PATIENCE)[1]
        self.assertEqual(run.returncode, 0, said)
        return said

    @unittest.skipUnless(STRACE, "needs strace")
    def test_F187_a_signal_in_the_first_moment_is_handled(self):
        said = self.at_the_first_call_of_main(signal.SIGXCPU)
        self.assertRegex(said, r"the limit of processor time \(ulimit -S -t\): stopping after step \d+|asked to stop")
        self.assertEqual(self.exit_record()["code"], 0)
        said = self.at_the_first_call_of_main(signal.SIGHUP)  # the same command goes on, F104
        self.assertIn("step 20/20", said)
        self.assertEqual(len(self.losses()), 20)

    def test_F187_the_limit_on_file_sizes_is_a_write_that_fails(self):
        # The first has a line to write before anything else, to a file that takes none.
        for kib, words, said in ((0, "train nano.yaml 2>said", ""),
                                 (0, "train nano.yaml", "run/lock: E7002 cannot write: File too large; raise the limit"),
                                 (1, "train nano.yaml", r"run/\w+\.\w+: E7002 cannot write: File too large; raise the limit"),
                                 (0, "data build text.txt -t bytes --no-eod -o built", r"built.*: E7002 .*File too large; raise the limit"),
                                 (0, "tokenizer train text.txt --vocab 260 -o words.json", "words.json: E7002 .*File too large; raise the limit"),
                                 (0, "config print nano.yaml >said", "standard output: E7002 cannot write: File too large")):
            ran = self.command(["bash", "-c", f"ulimit -f {kib}; TROUPE_WRONG=1 exec '{TROUPE}' {words}"], 7)
            self.assertRegex(ran.stderr, said or "^$")
            if words.startswith("tr") and kib:
                self.assertEqual(self.exit_record()["error"], "E7002")
        self.assertFalse((self.folder / "words.json").exists())


class TroupeMadeUpLogs(NanoRun):
    def report(self, log):
        """Peak memory in MiB and seconds of the processor that the report of a log takes."""
        (self.folder / "made").mkdir(exist_ok=True)
        (self.folder / "made" / "log.jsonl").write_text(log)
        child = subprocess.Popen([TROUPE, "report", "made"], cwd=self.folder, env=self.env(),
                                 stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        said = child.stderr.read()
        child.stderr.close()
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        self.assertEqual(child.returncode, 0, said)
        return used.ru_maxrss / 1024, used.ru_utime + used.ru_stime

    def test_F185_the_report_of_a_made_up_log_takes_linear_time_and_bounded_memory(self):
        step = '{"step":%d,"loss":%d.5,"lr":1e-3,"tokens_s":9,"time":%d}\n'
        least, _ = self.report(step % (1, 1, 1))
        lines = 60_000
        for log in ("".join(step % (i, i % 7, i % 100) for i in range(5 * lines)),
                    "".join('{"event":"resume","step":%d,"time":%d}\n' % (i % 50, i % 9) +
                            '{"event":"eval","set":"s%d","val/loss":2,"step":%d}\n' % (i, i % 60) for i in range(lines)),
                    "".join('{"x%d":1,"step":%d}\n' % (i, i) for i in range(2 * lines)),
                    "".join('{"event":"experts","layers":{"0":[1,1,1,1,1,1,1,1]},"step":%d}\n' % i for i in range(lines))):
            memory, seconds = self.report(log)
            self.assertLess(memory - least, 130)
            self.assertLess(seconds, 12)
        page = (self.folder / "made" / "report.html").read_text()
        self.assertLess(len(page), 4 << 20)


class TroupeMessages(NanoRun):
    def test_a_recipe_in_utf16_is_called_so(self):
        for name, encoding in (("marked.yaml", "utf-16"), ("plain.yaml", "utf-16-be")):
            (self.folder / name).write_text(self.RECIPE, encoding=encoding)
            said = self.troupe("check", name, code=2).stderr
            self.assertEqual(said.strip(), name + ": E2001 is UTF-16, and UTF-8 is expected: save it as UTF-8, "
                             "or iconv -f UTF-16 -t UTF-8")

    def test_check_says_all_at_once(self):
        (self.folder / "plain").write_text("")
        said = self.troupe("check", "nano.yaml", "--set", "data.tokenizer=none/here", "--set", "checkpoint.dir=plain/run",
                           "--set", "data.train=[{path: first}, {path: second}]", "--ranks", "3",
                           "--set", "parallel.tensor=2", code=2).stderr
        for line in ("parallel", "none/here", "first", "second", "checkpoint.dir plain/run: E2008 plain is not a folder"):
            self.assertIn(line, said)
        self.assertEqual(len(said.strip().splitlines()), 5, said)

    @unittest.skipUnless(ALONE, "needs a mount name space")
    def test_doctor_says_where_a_run_cannot_write(self):
        ran = self.shell("mkdir ro && mount -t tmpfs -o ro t ro && $TROUPE doctor ro/run", code=7)
        self.assertIn("fail  folder ro/run: ro cannot be written to: Read-only file system. choose another checkpoint.dir",
                      ran.stdout)
        self.assertIn("ok    folder run: can be written to", self.troupe("doctor", "run").stdout)
        self.assertFalse((self.folder / "run").exists())

    def test_the_folders_of_an_output_are_made(self):
        self.troupe("data", "build", "text.txt", "-t", "bytes", "--no-eod", "-o", "new/data/train")
        self.troupe("tokenizer", "train", "text.txt", "--vocab", "260", "-o", "new/words/tokenizer.json")
        self.train("train.steps=2", "data.train=[{path: new/data/train}]")
        self.troupe("export", "run", "new/hub/model")
        for made in ("data/train.idx", "words/tokenizer.json", "hub/model/config.json"):
            self.assertTrue((self.folder / "new" / made).exists(), made)
        (self.folder / "plain").write_text("")
        self.assertIn("plain: E7002 cannot make the folder: Not a directory",
                      self.troupe("export", "run", "plain/model", code=7).stderr)

    def test_to_train_on_sets_each_key_once(self):
        said = self.train("train.steps=5", "run.threads=1")
        self.assertTrue(said.strip().endswith(
            "To train on: troupe train nano.yaml --set run.threads=1 --set train.steps=10 "
            "--set 'checkpoint.waive_changed=[train.length]'"), said)


if __name__ == "__main__":
    unittest.main()
