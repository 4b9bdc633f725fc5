"""`./dev quickstart` in small: its text is made here, its model is narrow and its steps are few. And the
recipes: all can run."""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[1]
TROUPE = pathlib.Path(os.environ["TROUPE_BUILD"], "troupe").resolve()
SMALL = ["model.layers=2", "model.width=32", "model.heads=2", "model.moe.hidden=16", "data.sequence=64", "train.steps=12",
         "train.schedule.warmup=2", "eval.every=6", "eval.sample_tokens=8", "checkpoint.every_steps=4", "run.device=cpu"]


def verses():
    """Lines as the program `bible` prints them: five books of 40 chapters of 30 verses."""
    words = re.findall(r"[A-Za-z,.]+", "".join(f.read_text() for f in sorted(ROOT.glob("docs/**/*.md"))))
    lines = [" ".join(words[i:i + 12]) for i in range(0, len(words), 12)]
    places = [f"{book}{chapter}:{verse}" for book in ("Ge", "1Sa", "Ps", "Mt", "Rev") for chapter in range(1, 41)
              for verse in range(1, 31)]
    return [f"{place} {lines[i % len(lines)]}" for i, place in enumerate(places)]


class Folder(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.folder = pathlib.Path(temporary.name)
        (cls.folder / "verses").write_text("\n".join(verses()) + "\n")
        program = cls.folder / "bin/bible"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\nexec cat {cls.folder}/verses\n")
        program.chmod(0o755)
        cls.env = dict(os.environ, OMP_NUM_THREADS="1", PATH=f"{program.parent}:{os.environ['PATH']}")

    def words(self, *words, sets=SMALL):
        more = [w for one in sets for w in ("--set", one)]
        return [sys.executable, str(ROOT / "tools/quickstart.py"), str(TROUPE), *words, *more]

    def start(self, *words, sets=SMALL, **more):
        return subprocess.run(self.words(*words, sets=sets), cwd=self.folder, env=dict(self.env, **more),
                              capture_output=True, text=True, timeout=300, check=False)

    def rows(self, run):
        return [json.loads(line) for line in (self.folder / run / "log.jsonl").read_text().split("\n")[:-1]]


class QuickStart(Folder):
    def test_from_text_to_a_model_that_writes(self):
        out = self.start()
        self.assertEqual(out.returncode, 0, out.stdout + out.stderr)
        rows = self.rows("runs/quickstart")
        losses = [r["val/loss"] for r in rows if r.get("event") == "eval"]
        self.assertLess(losses[-1], losses[0] - .2)
        samples = [r["text"] for r in rows if r.get("event") == "sample"]
        self.assertTrue(all(text.startswith("And the king said") for text in samples))
        said = out.stdout.replace("\n         ", "\n")
        self.assertIn(f"before   {samples[0].strip()}", said)
        self.assertIn(f"after    {samples[-1].strip()}", said)
        report = self.folder / re.search(r"report   (\S+)", out.stdout)[1]
        self.assertIn("<html", report.read_text())
        again = self.start()
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertIn("data/quickstart is there", again.stdout)
        self.assertIn("runs/quickstart is done", again.stdout)
        self.assertNotIn("$ troupe", again.stdout)
        self.assertEqual(len(self.rows("runs/quickstart")), len(rows))

    def test_a_text_of_ones_own(self):
        (self.folder / "notes.txt").write_text("\n\n".join(line.split(" ", 1)[1] * 3 for line in verses()))
        out = self.start("--text", "notes.txt", PATH=os.environ["PATH"])
        self.assertEqual(out.returncode, 0, out.stdout + out.stderr)
        self.assertTrue((self.folder / "runs/notes/report.html").exists())
        with open(self.folder / "notes.txt", "a", encoding="utf-8") as notes:
            notes.write("One more.\n")
        self.assertIn("notes.txt has changed since runs/notes began", self.start("--text", "notes.txt").stderr)
        (self.folder / "short.txt").write_text("Too short.\n")
        out = self.start("--text", "short.txt")
        self.assertEqual(out.returncode, 1)
        self.assertIn("short.txt: 11 characters make 1 documents, and 80 are needed", out.stderr)
        self.assertIn("missing.txt: No such file", self.start("--text", "missing.txt").stderr)

    def test_without_its_text_it_names_the_package(self):
        out = self.start(PATH=str(self.folder))
        self.assertEqual(out.returncode, 1)
        self.assertIn("apt-get install bible-kjv", out.stderr)

    def test_a_stop_goes_on(self):
        sets = [*SMALL, "checkpoint.dir=runs/stopped"]
        slow = dict(self.env, TROUPE_FAULT="batch=sleep:200")
        (self.folder / "stopped.txt").write_text("\n\n".join(line.split(" ", 1)[1] * 3 for line in verses()))
        with subprocess.Popen(self.words("--text", "stopped.txt", sets=sets), cwd=self.folder, env=slow, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True) as process:
            log, deadline = self.folder / "runs/stopped/log.jsonl", time.time() + 300
            while time.time() < deadline and not (log.exists() and '"step":3' in log.read_text().replace(" ", "")):
                time.sleep(.05)
            os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does
            said = process.communicate(timeout=300)[0]
        self.assertEqual(process.returncode, 0, said)
        self.assertIn("Stopped. ./dev quickstart --text stopped.txt resumes.", said)
        out = self.start("--text", "stopped.txt", sets=sets)
        self.assertEqual(out.returncode, 0, out.stderr)
        self.assertIn("resumes", out.stdout)
        self.assertEqual([r["step"] for r in self.rows("runs/stopped") if "event" not in r], list(range(1, 13)))

    def test_F123_a_kill_loses_nothing(self):
        out = self.start("--kill")
        self.assertEqual(out.returncode, 0, out.stdout + out.stderr)
        self.assertIn("resumed step 20", out.stderr)
        self.assertIn("All 60 losses are equal, to the last bit.", out.stdout)


class Recipes(Folder):
    def check(self, path):
        # As on a machine that holds them all: the machine of a test may be small.
        out = subprocess.run([TROUPE, "check", path, "--assume-memory", "4TiB"], cwd=self.folder, env=self.env, capture_output=True, text=True, check=False)
        self.assertEqual(out.returncode, 0, out.stderr)
        self.assertTrue(out.stdout.endswith("ok\n"), out.stdout)
        return out.stdout

    def test_every_recipe_can_run(self):
        out = self.start(sets=[*SMALL, "train.steps=4"])  # makes the data
        self.assertEqual(out.returncode, 0, out.stdout + out.stderr)
        paths = sorted((ROOT / "recipes").glob("*.yaml"))
        self.assertGreaterEqual(len(paths), 3)
        said = {path.stem: self.check(path) for path in paths}
        work = {name: float(re.search(r"([\d.]+)M FLOPs a token", text)[1]) for name, text in said.items()}
        self.assertAlmostEqual(work["quickstart_dense"] / work["quickstart"], 1, 2)
        self.assertRegex(said["quickstart"], r"420 steps, 860160 tokens")
        # The published ones are as large as published.
        for name, tokens in (("megablocks_dmoe", 20000 * 512 * 1024), ("megablocks_moe", 20000 * 512 * 1024),
                             ("megablocks_dense", 100000 * 512 * 1024), ("mixtral_8x7b", 500000 * 128 * 2048)):
            self.assertIn(f" {tokens} tokens", said[name])
        for name, parameters in (("megablocks_dmoe", 838561792), ("mixtral_8x7b", 46702792704), ("dbrx", 131596523520)):
            self.assertIn(f"model  {parameters} parameters", said[name])

    def test_published_recipes_train_when_cut_down(self):
        sets = ["model.layers=2", "model.width=64", "model.heads=8", "model.vocab=256", "model.max_positions=64",
                "data.sequence=32", "train.global_batch=4", "train.micro_batch=2", "train.steps=3", "run.device=cpu",
                "train.precision=fp32"]
        for name, more in (("mixtral_8x7b", ["model.moe.hidden=32"]), ("dbrx", ["model.moe.hidden=32", "train.tokens=0"]),
                           ("megablocks_dmoe", ["model.moe.hidden=32"]), ("megablocks_moe", ["model.moe.hidden=32"]),
                           ("megablocks_dense", ["model.ffn=64"])):
            losses = self.run_on(ROOT / f"recipes/{name}.yaml", 1, name, *sets, *more)
            self.assertEqual(len(losses), 3)
            self.assertAlmostEqual(losses[0], 5.5, delta=.5)  # ln 256: nothing is known

    def run_on(self, recipe, ranks, name, *sets):
        """The steps' losses of a run, of so many ranks."""
        words = [w for one in [*sets, f"checkpoint.dir=runs/{name}"] for w in ("--set", one)]
        launch = ["launch", "-n", str(ranks), "--"] if ranks > 1 else []
        out = subprocess.run([TROUPE, *launch, "train", recipe, *words], cwd=self.folder, env=self.env, timeout=300,
                             capture_output=True, text=True, check=False)
        self.assertEqual(out.returncode, 0, out.stderr)
        if ranks > 1:
            self.assertIn(f"experts over {ranks}", out.stderr)
        return [r["loss"] for r in self.rows(f"runs/{name}") if "event" not in r]

    def test_129_mixtral_cut_down_trains_on_eight_ranks(self):
        sets = ["model.layers=2", "model.width=64", "model.heads=8", "model.vocab=256", "model.max_positions=64",
                "model.moe.hidden=32", "data.sequence=32", "train.global_batch=8", "train.micro_batch=1", "train.steps=3",
                "run.device=cpu", "run.threads=1", "train.precision=fp32"]
        one, eight = (self.run_on(ROOT / "recipes/mixtral_8x7b.yaml", n, f"mixtral{n}", f"parallel.expert={n}", *sets) for n in (1, 8))
        self.assertEqual(len(eight), 3)
        for a, b in zip(one, eight):
            self.assertAlmostEqual(a, b, delta=1e-5 * a)

    def test_120_a_converted_script_has_its_experts_over_ranks(self):
        flags = ("--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --vocab-size 256 --swiglu "
                 "--num-experts 8 --moe-router-topk 2 --moe-aux-loss-coeff 1e-2 --hidden-dropout 0 --attention-dropout 0 "
                 "--expert-model-parallel-size 4 --use-distributed-optimizer --micro-batch-size 1 --global-batch-size 8 "
                 "--train-iters 3 --lr 1e-3 --mock-data --save runs/script")
        (self.folder / "script.sh").write_text(f"torchrun --nproc_per_node 4 pretrain_gpt.py {flags}\n")
        told = subprocess.run([TROUPE, "convert", "recipe", "script.sh", "-o", "script.yaml"], cwd=self.folder, env=self.env,
                              capture_output=True, text=True, check=False)
        self.assertEqual(told.returncode, 0, told.stdout + told.stderr)
        sets = ["run.device=cpu", "run.threads=1"]
        four = self.run_on("script.yaml", 4, "script4", *sets)
        one = self.run_on("script.yaml", 1, "script1", "parallel.expert=1", "parallel.shard=auto", *sets)
        self.assertEqual(len(four), 3)
        for a, b in zip(one, four):
            self.assertAlmostEqual(a, b, delta=1e-5 * a)

    def test_made_up_data_needs_no_file_and_is_learned(self):
        """Each id is the one before it and one, so a benchmark's loss falls as a real one's does."""
        sets = [*SMALL, "data.train=[{kind: mock}]", "data.valid=[]", 'data.tokenizer=""', "eval.prompts=[]", "model.vocab=64",
                "train.steps=40"]
        losses = self.run_on(ROOT / "recipes/quickstart.yaml", 1, "mock", *sets)
        self.assertLess(losses[-1], losses[0] - .5)


if __name__ == "__main__":
    unittest.main()
