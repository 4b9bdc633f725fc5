"""tools/follow_log.py: what it sends where, with a stand-in for the package of the other side, and to the packages themselves
in their offline modes, where they are installed. TRACKERS_SITE=folder takes those of pip install --target folder wandb
mlflow-skinny trackio."""
import importlib.machinery
import json
import os
import pathlib
import sqlite3
import subprocess
import sys
import tempfile
import unittest

TOOL = pathlib.Path(__file__).resolve().parents[1] / "tools/follow_log.py"
STAND_IN = """
import json
def say(*what): print(json.dumps(what), flush=True)
class Run:
    def log(self, values, step): say("log", step, values)
    def finish(self): say("finish")
def init(**how): say("init", how); return Run()
set_experiment = lambda name: say("experiment", name)
start_run = lambda run_name: say("start", run_name)
log_metrics = lambda values, step: say("log", step, values)
end_run = lambda: say("finish")
"""
LINES = [{"event": "start", "samples": 0, "step": 0}, {"step": 1, "time": 5.5, "loss": 5.25, "moe/load_layers": [1, 2]},
         {"event": "eval", "set": "books", "val/loss": 5, "val/ppl": 148.4, "step": 1}, {"step": 2, "loss": None}]
END = {"event": "end", "step": 2}


class FollowLog(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        (self.folder / "small").mkdir()
        self.log = self.folder / "small/log.jsonl"
        for name in ("wandb", "mlflow", "trackio"):
            (self.folder / f"{name}.py").write_text(STAND_IN)

    def follow(self, *words, lines=(*LINES, END)):
        self.log.write_text("".join(json.dumps(line) + "\n" for line in lines))
        out = subprocess.run([sys.executable, TOOL, "small", *words], cwd=self.folder, env={"PYTHONPATH": str(self.folder)},
                             capture_output=True, text=True, timeout=300, check=True).stdout
        return [json.loads(line) for line in out.splitlines()] if "--to" in words else out

    def test_steps_and_evaluations_go_to_wandb_under_one_name(self):
        said = self.follow("--to", "wandb", "--project", "p")
        self.assertEqual(said, [["init", {"project": "p", "entity": None, "dir": None, "name": "small", "id": "small",
                                           "resume": "allow"}],
                                ["log", 1, {"loss": 5.25}], ["log", 1, {"val/books/loss": 5, "val/books/ppl": 148.4}], ["finish"]])

    def test_wandb_gets_the_names_that_are_given(self):
        said = self.follow("--to", "wandb", "--name", "n", "--entity", "e", "--folder", "f")
        self.assertEqual(said[0], ["init", {"project": "troupe", "entity": "e", "dir": "f", "name": "n", "id": "small",
                                            "resume": "allow"}])

    def test_mlflow_gets_the_same(self):
        said = self.follow("--to", "mlflow")
        self.assertEqual(said[:3], [["experiment", "troupe"], ["start", "small"], ["log", 1, {"loss": 5.25}]])
        self.assertEqual(said[-1], ["finish"])

    def test_trackio_gets_the_same(self):
        said = self.follow("--to", "trackio", "--project", "p", "--name", "n")
        self.assertEqual(said, [["init", {"project": "p", "name": "n", "resume": "allow", "embed": False}],
                                ["log", 1, {"loss": 5.25}], ["log", 1, {"val/books/loss": 5, "val/books/ppl": 148.4}], ["finish"]])

    def test_it_waits_for_lines_and_for_the_rest_of_one(self):
        self.log.write_text(json.dumps(LINES[1]) + '\n{"step": 2, "lo')
        with subprocess.Popen([sys.executable, TOOL, "small"], cwd=self.folder, stdout=subprocess.PIPE, text=True) as tool:
            self.assertEqual(tool.stdout.readline(), '1 {"loss": 5.25}\n')
            with open(self.log, "a", encoding="utf-8") as log:
                log.write('ss": 4}\n' + json.dumps(END) + "\n")
            self.assertEqual(tool.communicate(timeout=300)[0], '2 {"loss": 4}\n')
        self.assertEqual(tool.returncode, 0)

    def test_once_ends_with_what_is_there(self):
        self.assertEqual(self.follow("--once", lines=LINES).splitlines()[0], '1 {"loss": 5.25}')

    def test_F166_a_torn_line_is_told_and_passed_over(self):
        text = "".join(json.dumps(line) + "\n" for line in (*LINES, END))
        self.log.write_text(text.replace('{"event": "eval"', '{"step": 7, "lo\n{"event": "eval"'))
        tool = subprocess.run([sys.executable, TOOL, "small"], cwd=self.folder, capture_output=True, text=True, timeout=300, check=True)
        self.assertEqual(len(tool.stdout.splitlines()), 2)
        self.assertIn("a line is torn", tool.stderr)


SITE = os.environ.get("TRACKERS_SITE", "")


def has(package):
    found = importlib.machinery.PathFinder.find_spec(package, [*SITE.split(":"), *sys.path] if SITE else None)
    return unittest.skipUnless(found, f"{package} is not installed: see the head of this file")


class Packages(unittest.TestCase):
    """The tool with the package itself, offline: nothing is sent anywhere, and what the package keeps is read back."""

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        (self.folder / "small").mkdir()
        (self.folder / "small/log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (*LINES, END)))

    def follow(self, *words, **variables):
        env = {**os.environ, "HOME": str(self.folder), "PYTHONPATH": SITE, **variables}
        done = subprocess.run([sys.executable, TOOL, "small", "--project", "p", *words], cwd=self.folder, env=env, capture_output=True,
                              text=True, timeout=300, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)

    @has("wandb")
    def test_wandb_keeps_the_run_offline(self):
        self.follow("--to", "wandb", "--folder", str(self.folder), WANDB_MODE="offline")
        (kept,) = self.folder.glob("wandb/offline-run-*-small/run-small.wandb")
        for part in (b"5.25", b"val/books/ppl", b"148.4"):
            self.assertIn(part, kept.read_bytes())

    @has("mlflow")
    def test_mlflow_keeps_the_run_in_a_folder(self):
        self.follow("--to", "mlflow", MLFLOW_TRACKING_URI=f"file://{self.folder}/ml", MLFLOW_ALLOW_FILE_STORE="true")
        (loss,) = self.folder.glob("ml/*/*/metrics/loss")
        self.assertEqual(loss.read_text().split()[1:], ["5.25", "1"])
        (ppl,) = self.folder.glob("ml/*/*/metrics/val/books/ppl")
        self.assertEqual(ppl.read_text().split()[1:], ["148.4", "1"])

    @has("trackio")
    def test_trackio_keeps_the_run_in_a_file(self):
        self.follow("--to", "trackio", TRACKIO_DIR=str(self.folder / "kept"))
        with sqlite3.connect(self.folder / "kept/p.db") as kept:
            rows = kept.execute("select run_name, step, metrics from metrics order by id").fetchall()
        self.assertEqual([(name, step, json.loads(values)) for name, step, values in rows],
                         [("small", 1, {"loss": 5.25}), ("small", 1, {"val/books/loss": 5, "val/books/ppl": 148.4})])


if __name__ == "__main__":
    unittest.main()
