"""Disks that are full, read-only, slow or broken under a run of `troupe`, made with small file systems,
limits and strace: the exit class, what is said, what is left. Rows of docs/reference/RELIABILITY.md."""
import os
import pathlib
import shutil
import signal
import time
import unittest

from nano_run import ALONE, PATIENCE, STRACE, TROUPE, NanoRun


@unittest.skipUnless(ALONE, "needs a mount name space")
class TroupeDisks(NanoRun):
    def test_F6_a_full_disk_is_a_warning_and_the_old_step_stays(self):
        # Room for one checkpoint of 0.9 MB and no second.
        small = "mkdir -p run && mount -t tmpfs -o size=1500k t run; $TROUPE train nano.yaml --set checkpoint.keep=1"
        ran = self.shell(small + "; echo $?; ls -a run; cat run/latest")
        self.assertIn("E7001", ran.stderr)
        self.assertRegex(ran.stderr, r"run: .* checkpoints of [\d.]+ \w+ need [\d.]+ \w+, and [\d.]+ \w+ are free")
        self.assertRegex(ran.stderr, r"step 10 is not saved, the next interval tries again: run/\S+: E7001 .*bytes")
        lines = ran.stdout.split()
        self.assertIn("step-000005", lines)
        self.assertEqual([n for n in lines if n.startswith(".") and n.strip(".")], [])
        ran = self.shell(small + " --set checkpoint.on_error=stop", code=7)
        self.assertIn("E7001", ran.stderr)

    def test_F8_a_limit_on_file_sizes_names_itself(self):
        ran = self.command(["bash", "-c", f"ulimit -f 200; exec '{TROUPE}' train nano.yaml --set checkpoint.on_error=stop"], 7)
        self.assertIn("File too large", ran.stderr)
        self.assertEqual(self.steps(), [])
        self.assertEqual(self.exit_record()["code"], 7)

    def test_F9_a_run_folder_that_cannot_be_is_class_2_before_the_data_is_opened(self):
        (self.folder / "text.txt").unlink()  # would be class 3
        (self.folder / "plain").write_text("")
        self.assertIn("E2008", self.train("checkpoint.dir=plain", code=2))
        ran = self.shell("mkdir ro && mount -t tmpfs -o ro t ro && $TROUPE train nano.yaml --set checkpoint.dir=ro/run", code=2)
        self.assertIn("E2008", ran.stderr)
        self.assertIn("Read-only file system", ran.stderr)

    def test_F10_too_little_room_is_told_at_the_start(self):
        small = "mkdir -p run && mount -t tmpfs -o size=3m t run; $TROUPE train nano.yaml --set train.steps=2 --set checkpoint.keep=4"
        ran = self.shell(small)
        self.assertRegex(ran.stderr, r"warning run: 5 checkpoints of [\d.]+ KiB need [\d.]+ MiB, and [\d.]+ MiB are free")
        ran = self.shell(small + " --set checkpoint.strict=true", code=7)
        self.assertIn("E7001", ran.stderr)

    def test_F40_a_read_only_run_is_refused_at_once_and_serves_as_a_beginning(self):
        self.train("train.steps=5")
        bind = "mount --bind run run && mount -o remount,ro,bind run && $TROUPE train nano.yaml "
        ran = self.shell(bind, code=2)
        self.assertIn("E2008", ran.stderr)
        ran = self.shell(bind + "--set checkpoint.dir=new --set checkpoint.init_from=run/step-000005")
        self.assertIn("weights from run/step-000005", ran.stderr)
        self.assertIn("step-000020", self.steps("new"))

    def test_F51_an_export_is_whole_or_not_there(self):
        self.train("train.steps=2")
        (self.folder / "there").mkdir()
        self.assertIn("--force", self.troupe("export", "run", "there", code=7).stderr)
        self.assertEqual(list((self.folder / "there").iterdir()), [])
        ran = self.shell("mkdir d && mount -t tmpfs -o size=100k t d; $TROUPE export run d/hub; echo code $?; ls -A d")
        self.assertIn("code 7\n", ran.stdout)
        self.assertEqual(ran.stdout.split("code 7\n")[1].split(), [])
        self.assertIn("E7001", ran.stderr)

    def test_F132_logs_on_a_full_disk_cost_lines_and_one_warning(self):
        full = "mkdir run; for f in log.jsonl log.txt; do touch run/$f; mount --bind /dev/full run/$f; done; $TROUPE train nano.yaml"
        ran = self.shell(full)
        self.assertEqual(ran.stderr.count("run/log.jsonl: lines are lost: No space left on device"), 1)
        self.assertIn("finished 20 steps", ran.stderr)
        self.train("checkpoint.dir=whole")
        self.assertIn("tensors are equal bit for bit", self.troupe("diff", "run", "whole").stdout)

    def test_F22_F132_a_run_folder_that_is_deleted_comes_back(self):
        run = self.start(TROUPE_FAULT="batch:7=sleep:1000")
        self.wait_for_step(7)
        self.wait_for((self.folder / "run" / "latest").exists)  # the save of step 5 is done
        shutil.rmtree(self.folder / "run")
        self.assertEqual(run.wait(PATIENCE), 0)
        self.assertEqual(sorted(self.losses()), list(range(8, 21)))
        self.assertEqual(self.steps(), ["step-000010", "step-000015", "step-000020"])
        self.assertIn("already finished", self.train())

    def test_F59_a_data_file_that_is_cut_is_class_3_and_no_signal(self):
        self.troupe("data", "build", "text.txt", "-t", "bytes", "--no-eod", "-o", "set")
        recipe = "data={train: [{path: set}], sequence: 32}"
        run = self.start("--set", recipe, TROUPE_FAULT="batch:7=sleep:1000")
        self.wait_for_step(7)
        os.truncate(self.folder / "set.bin", 100)
        self.assertEqual(run.wait(PATIENCE), 3)
        self.assertRegex(self.said(), r"set\.bin: E310[14]")
        self.assertEqual(self.exit_record()["checkpoint"], "run/step-000005")

    def wait_until_asleep(self, run):
        """Until the process has used no time for a third of a second."""
        def used():
            fields = (pathlib.Path("/proc") / str(run.pid) / "stat").read_text().rsplit(")", 1)[1].split()
            return fields[0], fields[11:13]

        def still():
            before = used()
            time.sleep(0.3)
            return before[0] == "S" and before == used()
        self.wait_for(still)

    def test_F41_a_step_that_goes_while_it_is_read_is_an_error_or_an_older_step(self):
        self.train("checkpoint.dir=whole")
        # Before the steps are listed; at the first tensor; later. Files that are open are read to their end.
        for point, resumed in (("load.read#1", 5), ("load.read#2", 10), ("load.read#9", 10)):
            self.train("checkpoint.background=false", TROUPE_FAULT="batch:10=kill", code=-9)
            run = self.start(TROUPE_FAULT=point + "=sleep:3000")
            self.wait_until_asleep(run)
            shutil.rmtree(self.folder / "run" / "step-000010")
            self.assertEqual(run.wait(PATIENCE), 0, self.said())
            self.assertIn(f"resumed step {resumed} from", self.said())
            self.assert_equal_runs("whole", "run")
            shutil.rmtree(self.folder / "run")


@unittest.skipUnless(STRACE, "needs strace")
class TroupeBrokenDisks(NanoRun):
    def inject(self, what, *sets, code=0, path=None):
        words = ["strace", "-f", "-o", "trace", "-e", "trace=" + what.split(":")[0], "-e", "inject=" + what]
        if path:
            words += ["-P", path]
        words += [TROUPE, "train", "nano.yaml"]
        return self.command(words + [w for s in sets for w in ("--set", s)], code).stderr

    def test_F7_a_failing_call_is_told_and_publishes_nothing(self):
        # The calls before `when` are those of exit.json, recipe.yaml, given.yaml and env.json.
        for call, when, whole in (("fsync", 9, False), ("renameat2", 1, False), ("rename", 5, True)):
            name = "run_" + call
            said = self.inject(f"{call}:error=EIO:when={when}+", "checkpoint.dir=" + name, "train.steps=5",
                               "checkpoint.background=false", "checkpoint.on_error=stop", code=7)
            self.assertRegex(said, name + r"/\S+: E7002 cannot .*Input/output error")
            # What is published before `latest` is whole; else there is nothing.
            self.assertEqual(self.steps(name), ["step-000005"] if whole else [])
            if whole:
                self.assertIn("ok: every byte read", self.troupe("inspect", name + "/step-000005").stdout)

    def test_F39_F60_reads_are_tried_again_and_then_class_3_or_4(self):
        self.train("train.steps=5")
        shard = "run/step-000005/shard-00000-000.safetensors"
        said = self.inject("pread64:error=EIO", path=shard, code=4)
        self.assertIn(shard, said)
        self.assertIn("Input/output error", said)
        longer = ["train.steps=6", "checkpoint.waive_changed=[train.length]"]
        self.assertIn("resumed step 5", self.inject("pread64:error=EIO:when=1..2", *longer, path=shard))
        self.troupe("data", "build", "text.txt", "-t", "bytes", "--no-eod", "-o", "set")
        data = ["data={train: [{path: set}], sequence: 32}", "train.steps=3"]
        self.inject("pread64:error=EIO:when=2..3", *data, "checkpoint.dir=a", path="set.bin")
        said = self.inject("pread64:error=EIO:when=2+", *data, "checkpoint.dir=b", path="set.bin", code=3)
        self.assertRegex(said, r"set\.bin at byte \d+: E3001 cannot read: Input/output error")

    def test_F1_a_kill_at_a_call_of_a_save_leaves_a_step_to_go_on_from(self):
        self.train("checkpoint.dir=whole")
        for call, when in (("rename", 5), ("fsync", 14), ("unlink", 1)):
            name = "run_" + call
            self.inject(f"{call}:signal=SIGKILL:when={when}", "checkpoint.dir=" + name, "checkpoint.keep=1",
                        "checkpoint.background=false", code=-signal.SIGKILL)
            self.train("checkpoint.dir=" + name, "checkpoint.keep=1")
            self.assert_equal_runs("whole", name)


if __name__ == "__main__":
    unittest.main()
