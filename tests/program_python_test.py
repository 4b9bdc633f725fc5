#!/usr/bin/env python3
"""troupe.run: the program's verbs from Python."""
import contextlib
import io
import json
import os
import pathlib
import signal
import tempfile
import time
import unittest

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
from troupe_package import troupe  # noqa: E402

SMALL = {"model.layers": 2, "model.width": 32, "model.heads": 4, "model.vocab": 256, "model.moe.experts": 4, "model.moe.hidden": 32,
         "data.sequence": 32, "train.global_batch": 4, "train.steps": 3, "run.device": "cpu"}


class Program(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "text.txt").write_text("The cat sat on the mat. " * 200)
        self.recipe = self.folder / "small.yaml"
        self.recipe.write_text(f"data: {{train: [{{kind: text, path: {self.folder / 'text.txt'}}}]}}\n")
        self.run = self.folder / "a run"

    def train(self, quiet=True, **more):
        return troupe.run("train", self.recipe, set={**SMALL, "checkpoint.dir": self.run, **more}, quiet=quiet)

    def test_a_training_has_steps_a_checkpoint_and_a_report(self):
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            run = self.train(quiet=False).wait()
        self.assertIn("finished 3 steps", said.getvalue())
        self.assertEqual(run.folder, self.run)
        self.assertEqual([row["step"] for row in run.steps], [1, 2, 3])
        self.assertGreater(run.steps[0]["loss"], 5)
        self.assertEqual(run.checkpoint.step, 3)
        self.assertTrue(run.report.read_text().startswith("<!"))
        again = self.train(**{"train.steps": 5, "checkpoint.waive_changed": ["train.length"]}).wait()  # a list, as a recipe has it
        self.assertEqual(again.checkpoint.step, 5)

    def test_an_export_is_a_model_of_transformers(self):
        import torch
        run = self.train().wait()
        model = run.to_hf(self.folder / "out", dtype="float32")
        self.assertEqual({row.path for row in troupe.report(model)}, {"fused"})
        with torch.no_grad():
            self.assertEqual(model(torch.randint(0, 200, (1, 9))).logits.shape[:2], (1, 9))

    def test_other_verbs_give_their_output(self):
        self.assertRegex(troupe.run("plan", self.recipe, set={**SMALL, "checkpoint.dir": "x"}, quiet=True).wait().out, r"(?i)memory")
        said = troupe.run("config", "explain", "train.steps", quiet=True).wait().out
        self.assertIn("train.steps", said)

    def test_options_and_words_behind_two_dashes(self):
        run = troupe.run("launch", "--", "train", self.recipe, set={**SMALL, "checkpoint.dir": self.run}, quiet=True, ranks=2).wait()
        self.assertEqual(run.folder, self.run)
        self.assertEqual(len(run.steps), 3)

    def test_a_failure_has_class_code_and_text(self):
        with self.assertRaises(troupe.RunError) as caught:
            self.train(**{"train.stepz": 3}).wait()
        self.assertEqual((caught.exception.exit, caught.exception.kind, caught.exception.code), (2, "usage or recipe", "E2003"))
        self.assertIn('did you mean "steps"', str(caught.exception))
        with self.assertRaisesRegex(AttributeError, "`troupe doctor` has no run folder"):
            _ = troupe.run("doctor", quiet=True).wait().folder
        with self.assertRaisesRegex(TypeError, "which verb"):
            troupe.run()

    def test_b15_steps_end_at_line_feeds_alone_and_a_torn_one_is_left(self):
        run = self.train().wait()
        whole = [row["step"] for row in run.steps]
        log = self.run / "log.jsonl"
        more = [{"step": 4, "loss": 5.0}, {"event": "sample", "step": 4, "text": "a\u2028b\u2029c\x85d\u00e9"}, {"step": 5, "loss": 4.0}]
        lines = [json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in more]
        with log.open("ab") as out:
            out.write(lines[0] + lines[1][:9] + b"\n" + lines[1] + lines[2] + lines[1][:-5])  # torn in its last letter's bytes
        self.assertEqual([row["step"] for row in run.steps], [*whole, 4, 5])
        with log.open("ab") as out:
            out.write(lines[1][-5:] + b'{"step": 6}\n')
        self.assertEqual([row["step"] for row in run.steps], [*whole, 4, 5, 6])

    def test_stop_ends_it_with_a_checkpoint(self):
        run = self.train(**{"train.steps": 100000})
        end = time.monotonic() + 300
        while not (run.folder / "log.jsonl").exists() or len(run.steps) < 3:
            self.assertLess(time.monotonic(), end)
            self.assertIsNone(run.process.poll(), run.log)
            time.sleep(0.05)
        run.stop()
        run.wait()
        self.assertGreaterEqual(run.checkpoint.step, 3)
        self.assertEqual(run.process.returncode, 0)
        self.assertEqual(run.exit["state"], "stopped")
        run.stop()  # does nothing once the run has ended

    def test_a_run_that_was_killed_is_told_from_one_that_runs(self):
        run = self.train(**{"train.steps": 100000})
        end = time.monotonic() + 300
        while run.exit is None:
            self.assertLess(time.monotonic(), end)
            self.assertIsNone(run.process.poll(), run.log)
            time.sleep(0.05)
        self.assertEqual((run.exit["state"], run.exit["pid"]), ("running", run.process.pid))
        run.process.kill()
        with self.assertRaises(troupe.RunError):
            run.wait()
        self.assertEqual(run.exit["state"], "killed")

    def test_an_interrupt_stops_the_program_first(self):
        run = self.train(**{"train.steps": 100000})
        while not (run.folder / "log.jsonl").exists():
            time.sleep(0.05)
        signal.signal(signal.SIGALRM, signal.default_int_handler)  # which raises KeyboardInterrupt
        signal.alarm(1)
        with self.assertRaises(KeyboardInterrupt):
            run.wait()
        self.assertEqual(run.process.returncode, 0)


if __name__ == "__main__":
    unittest.main()
