"""Runs that resume: with something changed, missing or newer than what they resume from, and with numbers
that are not what they should be. Rows of docs/reference/RELIABILITY.md."""
import json
import pathlib
import random
import re
import shutil
import signal
import unittest

from nano_run import PATIENCE, NanoRun


class TroupeResume(NanoRun):
    def test_F14_F23_a_later_branch_is_set_aside_and_never_taken(self):
        whole = self.train("checkpoint.dir=whole", "checkpoint.keep=0")
        self.assertNotIn("aside", whole)
        self.train("checkpoint.keep=0")
        # Back to step 10: what came later is another branch.
        said = self.train("checkpoint.keep=0", "checkpoint.resume=step 10")
        self.assertIn("resumed step 10", said)
        self.assertIn("step-000015.aside", self.steps())
        self.assertIn("step-000020.aside", self.steps())
        self.assert_equal_runs("whole", "run")
        # A damaged newest step: the one before, and the damaged one out of the way.
        shard = self.folder / "run" / "step-000020" / "shard-00000-000.safetensors"
        data = bytearray(shard.read_bytes())
        data[-9] ^= 1
        shard.write_bytes(data)
        said = self.train("checkpoint.keep=0")
        self.assertIn("passed over", said)
        self.assertIn("resumed step 15", said)
        self.assert_equal_runs("whole", "run")

    def test_F18_what_was_set_aside_goes_once_the_run_has_passed_it(self):
        self.train()  # keeps 10, 15 and 20
        said = self.train("checkpoint.keep=1", "checkpoint.resume=step 10")
        self.assertIn("removed run/step-000015.aside, which the run has passed: good steps after it: 1, checkpoint.keep: 1", said)
        self.assertNotIn("removed run/step-000020.aside", said)
        self.assertEqual(sorted(self.steps()), ["step-000020", "step-000020.aside"])

    def test_F134_a_run_keeps_as_many_older_logs_as_it_is_asked_to(self):
        full = 64 << 20  # where a log is begun anew; a file of no blocks
        for keep, before, after in ((0, ["log.txt"], ["log.txt"]),
                                    (1, ["log.1.txt", "log.txt"], ["log.1.txt", "log.txt"]),
                                    (2, ["log.1.txt", "log.txt"], ["log.1.txt", "log.2.txt", "log.txt"])):
            run = self.folder / f"keep{keep}"
            run.mkdir()
            for name in before:
                with open(run / name, "wb") as file:
                    file.truncate(full)
            self.train(f"checkpoint.dir={run.name}", f"log.keep={keep}")
            self.assertEqual(sorted(p.name for p in run.glob("log*.txt")), after)
            self.assertEqual([(run / name).stat().st_size for name in after[:-1]], [full] * keep)
            self.assertIn("finished 20 steps", (run / "log.txt").read_text())
        self.assertIn("log.keep", self.train("log.keep=-1", code=2))

    def test_F23_each_damaged_step_is_told_where_all_are(self):
        self.train("checkpoint.keep=0")
        self.assertEqual(self.exit_record()["code"], 0)
        for shard in (self.folder / "run").glob("step-*/shard-00000-000.safetensors"):
            data = bytearray(shard.read_bytes())
            data[-9] ^= 1
            shard.write_bytes(data)
        said = self.train("train.steps=30", "checkpoint.waive_changed=[train.length]", code=4)
        self.assertIn("every checkpoint of run is damaged:", said)
        for step in self.steps():
            self.assertRegex(said, rf"\n  step {int(step[5:])}: .*E4004")
        record = self.exit_record()
        self.assertEqual((record["code"], record["phase"], record["resumable"]), (4, "load", False))

    def test_a_start_that_fails_is_what_exit_json_tells(self):
        self.train()
        self.train("data.train=[{kind: flat, path: nothing.bin}]", code=3)
        record = self.exit_record()
        self.assertEqual((record["code"], record["phase"]), (3, "data"))
        self.assertEqual(record["checkpoint"], f"run/{self.steps()[-1]}")
        # Not where the folder is another's.
        run = self.start("--set", "train.steps=5000", "--set", "checkpoint.dir=busy")
        self.wait_for(lambda: (self.folder / "busy/log.jsonl").exists())
        self.train("checkpoint.dir=busy", "data.train=[{kind: flat, path: nothing.bin}]", code=3)
        record = self.exit_record("busy")
        self.assertEqual((record["state"], record["pid"]), ("running", run.pid))
        run.kill()

    def test_F165_a_refused_start_keeps_what_the_run_had_before(self):
        self.train("train.steps=10")
        done = self.exit_record()
        self.assertEqual((done["state"], done["step"], done["checkpoint"]), ("finished", 10, "run/step-000010"))
        self.train("train.steps=wrong", code=2)  # without a recipe there is no folder to write in
        self.assertEqual(self.exit_record(), done)
        self.train("train.steps=20", "train.seed=9", code=4)
        record = self.exit_record()
        self.assertEqual((record["state"], record["code"], record["resumable"]), ("failed", 4, False))
        self.assertEqual((record["step"], record["checkpoint"]), (10, "run/step-000010"))
        # So lost steps are missed by each later start, and not by the first alone.
        self.lose_steps()
        (self.folder / "run/latest").unlink()
        for _ in range(2):
            self.assertIn("E4002 has no checkpoint, and exit.json names run/step-000010", self.train("train.steps=20", code=4))
        self.train("train.steps=20", "data.train=[{kind: flat, path: nothing.bin}]", code=3)
        self.assertIn("exit.json names run/step-000010", self.train("train.steps=20", code=4))
        self.assertFalse(self.exit_record()["resumable"])

    def test_F14_weights_with_nan_are_never_gone_on_from(self):
        self.train("train.max_skips=9", "checkpoint.background=false", TROUPE_FAULT="optim:7=nan;batch:12=kill", code=-9)
        self.assertTrue(json.loads((self.folder / "run/step-000010/manifest.json").read_text())["bad"])
        self.assertEqual((self.folder / "run/latest").read_text(), "step-000005\n")
        said = self.train()
        self.assertIn("resumed step 5", said)
        self.train("checkpoint.dir=whole")
        self.assert_equal_runs("whole", "run")

    def test_F31_what_older_versions_wrote_is_gone_on_from(self):
        """tests/ckpt/vN: a run of format N that was stopped at step 8, and the losses that followed there."""
        stored = sorted((pathlib.Path(__file__).parent / "ckpt").iterdir())
        self.assertGreaterEqual(len(stored), 1)
        for folder in stored:
            with self.subTest(folder.name):
                shutil.copy(folder / "recipe.yaml", self.folder / "nano.yaml")
                shutil.copytree(folder / "step-000008", self.folder / "run" / "step-000008")
                # Formats 1 and on say which program wrote them; the first of them was 0.1.0.
                wrote = json.loads((folder / "step-000008/manifest.json").read_text())["version"]
                self.assertRegex(self.troupe("inspect", "run/step-000008").stdout, rf"step 8 of run .*, written by {re.escape(wrote)}\b")
                self.assertIn("resumed step 8 from run/step-000008, at sample 32", self.train())
                want = json.loads((folder / "losses.json").read_text())
                got = self.losses()
                self.assertEqual(sorted(got), sorted(map(int, want)))
                for step, loss in want.items():
                    self.assertAlmostEqual(float(got[int(step)]), loss, delta=1e-4)
                # What goes on from it is this version's.
                now = self.troupe("--version").stdout.split()[1]
                self.assertNotEqual(now, wrote)
                newest = json.loads((self.folder / "run" / self.steps()[-1] / "manifest.json").read_text())
                self.assertEqual(newest["version"], now)
                shutil.rmtree(self.folder / "run")

    def test_F32_a_finished_run_says_so_and_writes_nothing(self):
        self.train("train.steps=5")
        before = {p: p.read_bytes() for p in (self.folder / "run").rglob("*") if p.is_file() and p.name != "log.txt"}
        self.assertIn("already finished at step 5", self.train("train.steps=5"))
        self.assertIn("already finished at step 5", self.train("train.steps=4"))
        self.assertEqual(before, {p: p.read_bytes() for p in before})

    def test_F33_what_changes_the_samples_is_refused_by_name(self):
        self.train("train.steps=5")
        (self.folder / "other.txt").write_text("The dog ran after it. " * 300)
        for sets, what in ((["train.seed=9"], "train.seed"), (["data.sequence=16"], "data.sequence"),
                           (["data.train=[{kind: text, path: other.txt}]"], "data other.txt"),
                           (["model.moe.top_k=1"], "model.moe.top_k")):
            said = self.train(*sets, code=4)
            self.assertIn("E4006", said)
            self.assertIn(what, said)
        (self.folder / "text.txt").write_text("The hat sat on the mat. " * 300)  # the same name and size
        self.assertIn("data text.txt", self.train(code=4))
        self.assertIn("resumed step 5", self.train("--force"))

    def test_another_optimizer_or_rate_is_told_once_with_old_and_new(self):
        same = ("train.steps=10", "checkpoint.background=false")
        self.train(*same, TROUPE_FAULT="batch:7=kill", code=-9)
        said = self.train(*same, TROUPE_FAULT="batch:8=kill", code=-9)
        self.assertIn("resumed step 5", said)
        self.assertNotIn("other settings", said)  # none has changed
        new = (*same, "train.optimizer={lr: 1e-4, weight_decay: 0.5}", "train.clip=0.25")
        said = self.train(*new, TROUPE_FAULT="batch:9=kill", code=-9)
        line = next(text for text in said.splitlines() if "other settings" in text)
        self.assertRegex(line, r"train\.clip 1 -> 0\.25, train\.optimizer\.lr \S+ -> (0\.0001|1e-0?4)\b")
        self.assertRegex(line, r"train\.optimizer\.weight_decay \S+ -> 0\.5")
        self.assertEqual(said.count("other settings"), 1)
        said = self.train(*new)  # it is the recipe of the run now
        self.assertIn("resumed step 5", said)
        self.assertNotIn("other settings", said)

    def test_F38_weights_without_an_optimizer_are_a_beginning_alone(self):
        self.train("train.steps=5", "checkpoint.dir=first")
        self.troupe("export", "first", "hub", "--dtype", "float32")
        self.troupe("import", "hub", "run")
        self.assertEqual(self.steps(), ["step-000000"])
        said = self.train(code=4)
        self.assertIn("without an optimizer", said)
        self.assertIn("checkpoint.init_from=run/step-000000", said)
        self.train("train.steps=5", "checkpoint.dir=sgd", "train.optimizer.kind=sgd")
        said = self.train("checkpoint.dir=sgd", code=4)  # moments of another optimizer are missing too
        self.assertRegex(said, r"E4005 .*\n  missing: optimizer\.\w+\.embed.tokens")
        self.assertIn("weights alone: checkpoint.init_from", said)
        said = self.train("checkpoint.init_from=run/step-000000", "checkpoint.dir=new", "train.steps=5")
        self.assertIn("weights from run/step-000000; step 0", said)
        self.assertEqual(sorted(self.losses("new")), [1, 2, 3, 4, 5])

    def test_F52_through_a_hubs_folder_the_next_losses_are_the_same(self):
        self.train("train.steps=5", "checkpoint.dir=first", "train.optimizer.kind=sgd")
        self.troupe("export", "first", "hub", "--dtype", "float32")
        self.troupe("import", "hub", "there")
        sets = ["train.steps=5", "train.seed=4", "model.moe.router.balance.aux_loss=0"]
        self.train("checkpoint.dir=a", "checkpoint.init_from=first/step-000005", *sets)
        self.train("checkpoint.dir=b", "checkpoint.init_from=there/step-000000", *sets)
        self.assertEqual(len(self.losses("a")), 5)
        self.assertEqual(self.losses("a"), self.losses("b"))

    def test_F69_a_batch_without_a_target_is_a_step_without_nan(self):
        self.troupe("data", "build", "text.txt", "-t", "bytes", "--no-eod", "-o", "set")
        (self.folder / "set.weights").write_bytes(bytes((self.folder / "set.bin").stat().st_size // 2))
        said = self.train("data={train: [{path: set}], sequence: 32}", "train.steps=3")
        self.assertNotRegex(said.lower(), r"\bnan\b")
        self.assertEqual(sorted(self.losses()), [1, 2, 3])

    def test_D2_a_loss_is_the_mean_over_all_targets_however_the_batch_is_cut(self):
        """A sequence with one target in 32 counts a thirty-second of one that has all."""
        self.troupe("data", "build", "text.txt", "-t", "bytes", "--no-eod", "-o", "set")
        size = (self.folder / "set.bin").stat().st_size // 2
        (self.folder / "set.weights").write_bytes(bytes((i // 32) % 3 == 1 or i % 32 == 5 for i in range(size)))
        sets = ["data={train: [{path: set}], sequence: 32}", "train.steps=6", "train.optimizer={kind: sgd, lr: 0.3}",
                "model.moe.router.balance.aux_loss=0"]
        losses = []
        for micro in (1, 2, 8):
            self.train(*sets, f"train.micro_batch={micro}", f"checkpoint.dir=run{micro}")
            losses.append([float(v) for v in self.losses(f"run{micro}").values()])
        self.assertLess(losses[0][-1], losses[0][0] - 0.5)
        for other in losses[1:]:
            for a, b in zip(losses[0], other):
                self.assertAlmostEqual(a, b, delta=2e-5)

    def test_F70_waiting_for_data_is_told_and_alarms_nobody(self):
        said = self.train(TROUPE_FAULT="batch=sleep:300")
        rows = [r for r in self.records() if "data_wait" in r]
        self.assertGreater(min(r["data_wait"] for r in rows), 0.5)
        self.assertIn("data", said)
        self.assertEqual(len(self.losses()), 20)

    def test_F112_one_batch_of_noise_is_told_and_left_out_if_asked(self):
        noise = random.Random(5).randbytes(32)
        (self.folder / "text.txt").write_bytes(b"The cat sat on the mat. " * 400 + noise + b"The cat sat on the mat. " * 80)
        sets = ["train.steps=360", "train.global_batch=1", "train.spike.window=64", "data.train=[{kind: text, path: text.txt}]"]
        said = self.train(*sets)
        spikes = [r for r in self.records() if r.get("event") == "spike"]
        self.assertTrue(spikes, "the noise was in no sample")
        self.assertRegex(said, r"step \d+: loss [\d.]+ is [\d.]+ sigma above the last \d+ steps")
        said = self.train(*sets, "train.spike.skip=true", "checkpoint.dir=skipped")
        self.assertIn("; skipped", said)
        rows = [r for r in self.records("skipped") if "event" not in r]
        self.assertGreaterEqual(rows[-1]["skipped"], 1)

    def test_F127_another_batch_is_refused_and_goes_on_at_its_sample_if_waived(self):
        self.train("train.steps=10")
        said = self.train("train.global_batch=16", code=4)
        self.assertRegex(said, r"train.batch.*8.*16")
        # What is printed is pasted, until nothing is left to waive.
        paste = re.search(r"add: --set '(checkpoint\.waive_changed=\[train\.batch\])'", said)[1]
        said = self.train("train.global_batch=16", paste, code=4)
        paste = re.search(r"add: --set '(checkpoint\.waive_changed=\[train\.batch,train\.length\])'", said)[1]
        self.train("train.global_batch=16", paste)
        rows = {r["step"]: r["samples"] for r in self.records() if "event" not in r}
        self.assertEqual((rows[10], rows[11], rows[20]), (80, 96, 240))

    def test_F127_another_length_is_refused_where_the_rates_so_far_would_have_been_others(self):
        self.train("train.steps=10")
        said = self.train(code=4)  # 20 steps: the cosine was one of 10
        self.assertIn("E4006 the run was to be 10 steps long and is now 20: of that length, the 10 steps so far would "
                      "have had another learning rate", said)
        self.assertIn("checkpoint.waive_changed=[train.length]", said)
        self.assertEqual(max(self.losses()), 10)
        said = self.train("checkpoint.waive_changed=[train.length]")
        self.assertIn("continuing from sample 80", said)
        rows = {r["step"]: r["samples"] for r in self.records() if "event" not in r}
        self.assertEqual((rows[10], rows[11], rows[20]), (80, 88, 160))
        # A constant rate, a tail that has not begun, an end of its own: no step would have been another.
        for name, schedule in (("constant", "{kind: constant}"), ("wsd", "{kind: wsd, decay: 5}"),
                               ("cosine", "{kind: cosine, end: 30}")):
            sets = [f"checkpoint.dir={name}", f"train.schedule={schedule}"]
            self.train(*sets, "train.steps=30", TROUPE_FAULT="batch:12=kill", code=-9)
            self.train(*sets, "train.steps=40")
            self.assertEqual(max(self.losses(name)), 40)
        # After the tail has begun it is another run.
        self.train("checkpoint.dir=wsd", "train.schedule={kind: wsd, decay: 5}", "train.steps=50", code=4)

    def lose_steps(self):
        lost = self.steps()
        for name in lost:
            shutil.rmtree(self.folder / "run" / name, ignore_errors=True)  # a save may remove it too
        return lost

    def test_F165_steps_that_are_deleted_between_starts_are_missed(self):
        self.train("train.steps=10")
        self.train("train.steps=20", "checkpoint.dir=whole")
        self.assertEqual(self.lose_steps()[-1], "step-000010")
        said = self.train("train.steps=20", code=4)
        self.assertIn("E4002 has no checkpoint, and the file latest says step-000010. Bring the steps back", said)
        self.assertEqual(self.steps(), [])  # a refused start leaves what it found
        said = self.train("train.steps=20", "checkpoint.resume=never")
        self.assertEqual(self.steps()[-1], "step-000020")
        self.assertIn("tensors are equal bit for bit", self.troupe("diff", "run", "whole").stdout)

    def test_F165_steps_that_are_deleted_under_a_run_do_not_end_it(self):
        constant = "train.schedule={kind: constant}"
        run = self.start("--set", "train.steps=100000", "--set", constant, "--set", "checkpoint.keep=2")
        self.wait_for(lambda: len(self.steps()) >= 2)
        lost = self.lose_steps()
        self.wait_for(lambda: len(self.steps()) >= 2 and not set(lost) & set(self.steps()))
        run.send_signal(signal.SIGTERM)
        self.assertEqual(run.wait(timeout=PATIENCE), 0, self.said())
        last = self.steps()[-1]
        self.assertEqual(self.exit_record()["checkpoint"], "run/" + last)
        done = int(last.removeprefix("step-"))
        self.train(f"train.steps={done + 2}", constant)
        self.assertEqual(self.steps()[-1], f"step-{done + 2:06d}")

    def test_F133_the_log_marks_where_a_run_goes_on(self):
        self.train("checkpoint.background=false", TROUPE_FAULT="batch:8=kill", code=-9)
        self.train()
        rows = self.records()
        marks = [i for i, r in enumerate(rows) if r.get("event") in ("start", "resume")]
        self.assertEqual([rows[i]["event"] for i in marks], ["start", "resume"])
        self.assertEqual((rows[marks[1]]["step"], rows[marks[1]]["samples"]), (5, 40))
        for part in (rows[:marks[1]], rows[marks[1]:]):
            numbers = [r["step"] for r in part]
            self.assertEqual(numbers, sorted(numbers))

    def test_F130_a_run_goes_on_in_another_precision(self):
        kept = ("checkpoint.background=false", "checkpoint.every_steps=10")
        self.train("checkpoint.dir=whole", *kept)
        for first, then in (("fp32", "bf16"), ("bf16", "fp32")):
            run = f"checkpoint.dir={first}"
            self.train(run, f"train.precision={first}", *kept, code=-9, TROUPE_FAULT="batch:10=kill")
            said = self.train(run, f"train.precision={then}", *kept)
            self.assertIn(f"resumed step 10 from {first}/step-000010", said)
            self.assertRegex(said, rf"device cpu, \d+ threads, {then}")
            # The weights that are learned from are fp32 in both.
            self.assertNotEqual(self.losses(first), self.losses("whole"))
            for step, loss in self.losses("whole").items():
                self.assertAlmostEqual(float(self.losses(first)[step]) / float(loss), 1, delta=0.01)


if __name__ == "__main__":
    unittest.main()
