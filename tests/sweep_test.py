"""`troupe sweep` from outside: a grid and a sample of it, its table and report, a kill and a stop on the way, runs that
fail, and what it refuses before it starts anything."""
import json
import os
import pathlib
import signal
import subprocess
import unittest

from nano_run import NANO, PATIENCE, TROUPE, NanoRun

RATES = "--set", "train.optimizer.lr=1e-3,1e-2"
SLOW = "batch=sleep:150"  # of each step, so that a test can meet it on its way


class Sweep(NanoRun):
    RECIPE = NANO.replace("steps: 20", "steps: 12") + "eval: {every: 6}\n"
    RECIPE = RECIPE.replace("sequence: 32", "valid: [{kind: text, path: text.txt}], sequence: 32")

    def sweep(self, *words, code=0, **more):
        return self.troupe("sweep", "nano.yaml", *words, code=code, **more)

    def table(self, *words, code=0, **more):
        return json.loads(self.sweep(*words, "--json", code=code, **more).stdout)

    def start_sweep(self, *words, **more):
        """One in the background."""
        out = (self.folder / "said").open("w")
        self.addCleanup(out.close)
        run = subprocess.Popen([str(TROUPE), "sweep", "nano.yaml", *words], cwd=self.folder, env=self.env(**more), stdout=out,
                               stderr=out, start_new_session=True)
        self.addCleanup(run.wait)
        self.addCleanup(run.kill)
        return run

    @staticmethod
    def children_of(run):
        return [int(child) for child in pathlib.Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()]

    def wait_until_gone(self, pids):
        def gone(pid):
            try:
                return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
            except OSError:
                return True
        self.wait_for(lambda: all(gone(pid) for pid in pids))

    def starts(self, run):
        return sum(row.get("event") in ("start", "resume") for row in self.records(run))

    def test_a_grid_is_trained_and_ranked_by_validation_loss(self):
        words = *RATES, "--set", "model.moe.top_k=1,2", "--set", "train.seed=7", "--jobs", "2", "--out", "grid"
        said = self.sweep(*words)
        names = [f"lr={lr},top_k={k}" for lr in ("1e-3", "1e-2") for k in (1, 2)]
        last = {name: [row["val/loss"] for row in self.records(f"grid/{name}") if row.get("event") == "eval"][-1] for name in names}
        ranked = sorted(names, key=last.get)
        rows = [line.split() for line in said.stdout.splitlines() if line[:4].strip().isdigit()]
        self.assertEqual([row[1] for row in rows], ranked)
        self.assertEqual([row[0] for row in rows], ["1", "2", "3", "4"])
        for row in rows:
            self.assertAlmostEqual(float(row[2]), last[row[1]], delta=1e-4)
            self.assertEqual(row[3:5], ["valid", "12"])
            self.assertEqual(row[6], "grid/" + row[1])
            recipe = (self.folder / "grid" / row[1] / "recipe.yaml").read_text()
            self.assertIn(f"top_k: {row[1][-1]}  # --set model.moe.top_k={row[1][-1]}", recipe)
            self.assertIn("seed: 7", recipe)
        page = (self.folder / "grid/report.html").read_text()
        for name in names:
            self.assertIn(f"grid/{name}", page)
        # Its facts, and nothing done again.
        facts = json.loads((self.folder / "grid/sweep.json").read_text())
        self.assertEqual(facts["grid"], [{"path": "train.optimizer.lr", "values": ["1e-3", "1e-2"]},
                                         {"path": "model.moe.top_k", "values": ["1", "2"]}])
        self.assertRegex(facts["recipe_hash"], "^[0-9a-f]{16}$")
        told = self.table(*words)
        self.assertEqual([run["name"] for run in told["runs"]], ranked)
        self.assertEqual({run["state"] for run in told["runs"]}, {"finished"})
        self.assertEqual(told["runs"][0]["set"], [f"train.optimizer.lr={ranked[0].split(',')[0][3:]}", f"model.moe.top_k={ranked[0][-1]}"])
        self.assertEqual((told["report"], told["stopped"]), ("grid/report.html", False))
        for run in told["runs"]:
            self.assertGreater(run["tokens_per_second"], 0)
            self.assertEqual(self.starts(run["folder"]), 1)
        # Each is what `troupe train` makes of the same recipe.
        self.train("train.optimizer.lr=1e-2", "model.moe.top_k=1", "train.seed=7", "checkpoint.dir=alone")
        self.assertEqual(self.losses("alone"), self.losses("grid/lr=1e-2,top_k=1"))

    def test_without_validation_the_mean_of_the_last_training_losses_ranks(self):
        told = self.table(*RATES, "--set", "data.valid=[]", "--set", "eval.every=0", "--out", "plain")
        means = {}
        for run in told["runs"]:
            losses = list(map(float, self.losses(run["folder"]).values()))
            means[run["name"]] = sum(losses[-10:]) / 10
            self.assertAlmostEqual(run["loss"], means[run["name"]], places=6)
            self.assertEqual(run["of"], "train")
        self.assertEqual([run["name"] for run in told["runs"]], sorted(means, key=means.get))

    def test_a_sample_is_the_same_for_a_seed_and_within_the_grid(self):
        axes = "--set", "train.optimizer.lr=1e-3,2e-3,3e-3,4e-3", "--set", "train.seed=1,2,3,4", "--set", "train.steps=3"
        picks = {}
        for seed, out in ((5, "a"), (5, "b"), (6, "c")):
            told = self.table(*axes, "--sample", "3", "--seed", str(seed), "--out", out)
            picks[out] = {run["name"] for run in told["runs"]}
            self.assertEqual(len(picks[out]), 3)
            self.assertTrue(picks[out] <= {f"lr={lr}e-3,seed={seed}" for lr in range(1, 5) for seed in range(1, 5)})
        self.assertEqual(picks["a"], picks["b"])
        self.assertNotEqual(picks["a"], picks["c"])
        said = self.sweep(*axes, "--sample", "3", "--seed", "6", "--out", "a", code=2).stderr
        self.assertIn("--seed: 5 there, 6 here", said)
        self.assertIn("--sample: E2005 17 is more than the 16 combinations", self.sweep(*axes, "--sample", "17", "--out", "d", code=2).stderr)

    def test_killed_on_the_way_the_same_command_continues(self):
        words = *RATES, "--set", "train.seed=1,2", "--jobs", "2", "--out", "kill"
        whole = self.table(*words[:-1], "whole")
        first, second = "kill/lr=1e-3,seed=1", "kill/lr=1e-3,seed=2"
        run = self.start_sweep(*words, TROUPE_FAULT=SLOW)
        self.wait_for_step(6, first)  # one past a save
        self.wait_for(lambda: self.steps(first) and self.steps(second))
        children = self.children_of(run)
        self.assertEqual(len(children), 2)
        run.kill()
        run.wait()
        self.wait_until_gone(children)  # no run goes on without its sweep
        self.assertEqual(self.exit_record(first)["state"], "running")  # it could not tell
        told = self.table(*words)
        self.assertEqual({r["state"] for r in told["runs"]}, {"finished"})
        for name in (first, second):
            self.assertEqual(self.starts(name), 2, name)
            self.assertTrue(any(row.get("event") == "resume" for row in self.records(name)), name)
        self.assertEqual([r["name"] for r in told["runs"]], [r["name"] for r in whole["runs"]])
        self.assertEqual([r["loss"] for r in told["runs"]], [r["loss"] for r in whole["runs"]])
        with self.subTest("finished runs are kept"):
            before = {r["name"]: (self.folder / r["folder"] / "log.jsonl").read_bytes() for r in told["runs"]}
            self.assertIn("4 runs, 4 of them finished before", self.sweep(*words).stderr)
            after = {r["name"]: (self.folder / r["folder"] / "log.jsonl").read_bytes() for r in told["runs"]}
            self.assertEqual(after, before)

    def test_a_signal_stops_runs_with_a_saved_step_and_begins_no_other(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            words = *RATES, "--out", f"stop{int(number)}"
            first, second = (f"stop{int(number)}/lr={lr}" for lr in ("1e-3", "1e-2"))
            run = self.start_sweep(*words, TROUPE_FAULT=SLOW)
            self.wait_for_step(2, first)
            run.send_signal(number)
            self.assertEqual(run.wait(PATIENCE), 0, self.said())
            self.assertEqual(self.exit_record(first)["state"], "stopped")
            self.assertTrue(self.steps(first))
            self.assertFalse((self.folder / second).exists())
            said = self.said()
            self.assertIn("asked to stop", said)
            self.assertRegex(said, r"- +lr=1e-2 +- +- +0 +- +\S+/lr=1e-2  waiting")
            self.assertIn("2 of 2 runs are not finished, 0 of them failed. The same command continues", said)
            told = self.table(*words)
            self.assertEqual({r["state"] for r in told["runs"]}, {"finished"})
            self.assertEqual(self.starts(first), 2)

    def test_a_failed_run_is_named_the_others_go_on_and_it_is_tried_again(self):
        fault = {"TROUPE_FAULT": "backward.0:8=nan"}  # which the short run does not come to
        words = "--set", "train.steps=4,12", "--set", "train.max_skips=0", "--out", "bad"
        told = self.table(*words, code=5, **fault)
        good, bad = told["runs"]
        self.assertEqual((good["name"], good["state"], bad["name"], bad["state"]), ("steps=4", "finished", "steps=12", "failed"))
        self.assertEqual(bad["code"], 5)
        self.assertIn("E5001", bad["why"])
        said = self.sweep(*words, code=5, **fault)
        self.assertIn("2 runs, 1 of them finished before", said.stderr)
        self.assertEqual(said.stderr.count("sweep: steps=12: begins"), 1)
        self.assertIn("sweep: steps=12: failed: code 5 E5001", said.stderr)
        self.assertRegex(said.stdout, r"(?m)^   1  steps=4 .*\n   -  steps=12 .*  failed$")
        self.assertIn("1 of 2 runs are not finished, 1 of them failed", said.stderr)
        self.assertEqual({run["state"] for run in self.table(*words)["runs"]}, {"finished"})
        self.assertEqual(self.starts("bad/steps=4"), 1)

    def test_a_run_that_is_killed_is_told_apart_and_continued(self):
        words = *RATES, "--out", "shot"
        run = self.start_sweep(*words, TROUPE_FAULT=SLOW)
        self.wait_for_step(6, "shot/lr=1e-3")
        (child,) = self.children_of(run)
        os.kill(child, signal.SIGKILL)
        self.assertEqual(run.wait(PATIENCE), 6, self.said())
        self.assertIn("lr=1e-3: killed: process", self.said())
        self.assertEqual(self.exit_record("shot/lr=1e-2")["state"], "finished")
        self.assertEqual({r["state"] for r in self.table(*words)["runs"]}, {"finished"})

    def test_bad_values_are_refused_all_at_once_and_nothing_starts(self):
        said = self.sweep("--set", "train.optimizer.lr=1e-3,fast", "--set", "model.moe.top_k=2,9", "--out", "none", code=2).stderr
        self.assertIn('"fast"', said)
        self.assertIn("(in lr=fast,top_k=2 and 1 more)", said)
        self.assertRegex(said, r"top_k.*\(in lr=1e-3,top_k=9\)")
        self.assertFalse((self.folder / "none").exists())
        said = self.sweep(*RATES, "--set", "model.widht=64", "--out", "none", code=2).stderr
        self.assertEqual(said.count("E2003"), 1, said)  # once for all runs
        self.assertNotIn("(in ", said)
        said = self.sweep("--set", "data.train=[{kind: text, path: text.txt}],[{kind: text, path: gone.txt}]", "--out", "none",
                          code=3).stderr
        self.assertIn("gone.txt", said)
        for sets, what in ((["train.seed=1"], "lists several values nowhere"),
                           (["train.seed=1,1"], "has the value 1 twice"),
                           (["train.seed=1,,2"], "has an empty value"),
                           (["train.seed=1,2", "train.seed=3"], "is given twice"),
                           (["train.seed"], "E2006"),
                           (["train.seed=1,2", "checkpoint.dir=x"], "is the folder of each run"),
                           (["train.seed=1,2", "checkpoint.resume=never"], "checkpoint.resume: E2005 must be auto"),
                           (["train.seed=1,2", "parallel.tensor=2"], "parallel.tensor: E2005")):
            words = [w for one in sets for w in ("--set", one)]
            self.assertIn(what, self.sweep(*words, "--out", "none", code=2).stderr, sets)
        both = self.sweep("--set", "train.seed=1,1", "--set", "model.width", "--out", "none", code=2).stderr
        self.assertIn("has the value 1 twice", both)
        self.assertIn("E2006", both)
        self.assertFalse((self.folder / "none").exists())

    def test_a_value_with_commas_is_one_in_brackets_or_quotes(self):
        told = self.table("--set", "train.optimizer.betas=[0.9,0.95],[0.8, 0.99]", "--set", "train.steps=3", "--set",
                          "eval.prompts=['a,b',\"c\"]", "--out", "lists")
        self.assertEqual({run["name"] for run in told["runs"]}, {"betas=_0.9_0.95_", "betas=_0.8__0.99_"})
        recipe = (self.folder / "lists/betas=_0.8__0.99_/recipe.yaml").read_text()
        self.assertRegex(recipe, r"betas:.*\n\s+- 0\.8.*\n\s+- 0\.99")
        self.assertIn('"a,b"', recipe)

    def test_another_grid_or_recipe_in_the_folder_is_refused_with_what_differs(self):
        few = "--set", "train.steps=3"
        self.sweep(*RATES, *few, "--out", "own/")
        said = self.sweep("--set", "train.optimizer.lr=1e-3,2e-2", *few, "--out", "own", code=2).stderr
        self.assertIn("own/sweep.json: E2008 --set train.optimizer.lr: 1e-3,1e-2 there, 1e-3,2e-2 here", said)
        self.assertIn("own: E2008 has another sweep", said)
        said = self.sweep(*RATES, *few, "--set", "train.seed=1,2", "--out", "own", code=2).stderr
        self.assertIn("--set train.seed: one value there, 1,2 here", said)
        said = self.sweep(*RATES, "--set", "train.steps=4", "--out", "own", code=2).stderr
        self.assertIn("own/sweep.json: E2008 train.steps: 3 there, 4 here", said)
        (self.folder / "nano.yaml").write_text(self.RECIPE.replace("steps: 12", "steps: 3"))  # written elsewhere, the same
        self.sweep(*RATES, "--out", "own")
        self.train("train.steps=3", "checkpoint.dir=one")
        self.assertIn("one: E2008 is the folder of a run", self.sweep(*RATES, "--out", "one", code=2).stderr)
        (self.folder / "own/sweep.json").unlink()
        self.assertIn("no sweep.json tells", self.sweep(*RATES, "--out", "own", code=2).stderr)

    def test_one_sweep_at_a_time_has_a_folder(self):
        words = *RATES, "--out", "held"
        run = self.start_sweep(*words, TROUPE_FAULT=SLOW)
        self.wait_for_step(1, "held/lr=1e-3")
        self.assertIn("held: E7005 is in use by", self.sweep(*words, code=7).stderr)
        run.send_signal(signal.SIGTERM)
        self.assertEqual(run.wait(PATIENCE), 0, self.said())


if __name__ == "__main__":
    unittest.main()
