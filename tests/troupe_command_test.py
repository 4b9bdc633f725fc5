"""The program `troupe` from outside: help, exit classes, a run, a stop, a crash, and going on."""
import json
import signal
import subprocess
import time
import unittest

from nano_run import TROUPE, NanoRun

NANO = """
model: {layers: 2, width: 32, heads: 4, vocab: 256, max_positions: 64,
        moe: {experts: 4, top_k: 2, hidden: 64}}
data: {train: [{kind: text, path: text.txt}], sequence: 32, tokenizer: bytes}
train: {global_batch: 8, steps: 30, optimizer: {lr: 3e-3}, schedule: {warmup: 2}}
eval: {every: 10, prompts: ["The "], sample_tokens: 8}
checkpoint: {dir: run, every_steps: 5}
run: {device: cpu}
"""


class TroupeCommand(NanoRun):
    RECIPE = NANO

    def ran(self, *words, **more):
        """The program with these words, whatever its exit code."""
        return subprocess.run([str(TROUPE), *words], cwd=self.folder, env=self.env(**more),
                              capture_output=True, text=True, timeout=120)

    def test_help_and_version_teach(self):
        self.assertRegex(self.ran("--version").stdout, r"^troupe \d+\.\d+\.\d+ \(")
        self.assertIn("troupe train", self.ran("--help").stdout)
        for verb in ("train", "check", "generate", "report", "config"):
            out = self.ran(verb, "--help")
            self.assertEqual(out.returncode, 0)
            self.assertIn("Example: troupe " + verb, out.stdout)

    def test_F77_usage_faults_are_class_2_and_guess(self):
        out = self.ran("trian")
        self.assertEqual(out.returncode, 2)
        self.assertIn("Did you mean train?", out.stderr)
        out = self.ran("train", "nano.yaml", "--set", "train.globl_batch=3")
        self.assertEqual(out.returncode, 2)
        self.assertIn('"global_batch"', out.stderr)
        self.assertEqual(self.ran("check", "missing.yaml").returncode, 2)
        self.assertEqual(self.ran("train").returncode, 2)

    def test_check_finds_all_and_starts_nothing(self):
        out = self.ran("check", "nano.yaml", "--set", "train.micro_batch=3", "--set",
                       "parallel.tensor=2")
        self.assertEqual(out.returncode, 2)
        self.assertIn("train.micro_batch", out.stderr)
        self.assertIn("parallel.tensor", out.stderr)
        out = self.ran("check", "nano.yaml")
        self.assertEqual(out.returncode, 0, out.stderr)
        self.assertIn("30 steps, 7680 tokens", out.stdout)
        self.assertFalse((self.folder / "run").exists())
        (self.folder / "text.txt").unlink()
        self.assertEqual(self.ran("check", "nano.yaml").returncode, 3)

    def test_F83_the_printed_recipe_is_a_recipe(self):
        first = self.ran("config", "print", "nano.yaml").stdout
        (self.folder / "printed.yaml").write_text(first)
        strip = lambda text: [line.split("  #")[0] for line in text.splitlines()]
        self.assertEqual(strip(self.ran("config", "print", "printed.yaml").stdout), strip(first))

    def test_a_run_leaves_what_the_docs_say(self):
        out = self.ran("train", "nano.yaml")
        self.assertEqual(out.returncode, 0, out.stderr)
        for name in ("recipe.yaml", "given.yaml", "env.json", "log.txt", "log.jsonl",
                     "report.html", "exit.json", "step-000030", "latest", "tb"):
            self.assertTrue((self.folder / "run" / name).exists(), name)
        losses = self.losses()
        self.assertEqual(list(losses), list(range(1, 31)))
        self.assertLess(float(losses[30]), float(losses[1]) - 1)
        self.assertEqual(self.exit_record()["code"], 0)
        self.assertRegex(out.stderr, r"step 30/30  loss \d\.\d+  lr \d\.\d\de-\d\d  gnorm")
        self.assertIn("moe: ", out.stderr)
        again = self.ran("train", "nano.yaml")
        self.assertEqual(again.returncode, 0)
        self.assertIn("already finished at step 30", again.stderr)
        text = self.ran("generate", "run", "-p", "The ", "-n", "5", "--temperature", "0")
        self.assertEqual(text.returncode, 0, text.stderr)
        self.assertTrue(text.stdout.startswith("The "))

    def test_F123_kill_and_term_go_on_with_the_same_losses(self):
        whole = self.ran("train", "nano.yaml", "--set", "checkpoint.dir=whole")
        self.assertEqual(whole.returncode, 0, whole.stderr)
        killed = self.ran("train", "nano.yaml", TROUPE_FAULT="batch:17=kill")
        self.assertEqual(killed.returncode, -signal.SIGKILL)
        run = subprocess.Popen([str(TROUPE), "train", "nano.yaml"], cwd=self.folder,
                               env=self.env(TROUPE_FAULT="batch=sleep:100"),
                               stderr=subprocess.PIPE, text=True)
        time.sleep(1.5)
        run.send_signal(signal.SIGTERM)
        stderr = run.communicate(timeout=60)[1]
        self.assertEqual(run.returncode, 0, stderr)
        if "finished" not in stderr:
            self.assertIn("Continue with: troupe train nano.yaml", stderr)
        self.assertEqual(self.ran("train", "nano.yaml").returncode, 0)
        self.assertEqual(self.losses(), self.losses("whole"))

    def test_F111_numeric_faults_are_class_5(self):
        out = self.ran("train", "nano.yaml", "--set", "train.max_skips=1",
                       TROUPE_FAULT="forward.1=nan", TORCHELASTIC_ERROR_FILE="error.json")
        self.assertEqual(out.returncode, 5)
        self.assertIn("E5001", out.stderr)
        record = self.exit_record()
        self.assertEqual((record["code"], record["error"], record["step"]), (5, "E5001", 2))
        told = json.loads((self.folder / "error.json").read_text())["message"]["extraInfo"]
        self.assertIn("E5001", told["py_callstack"])

    def test_F11_a_second_run_in_one_folder_is_refused(self):
        first = subprocess.Popen([str(TROUPE), "train", "nano.yaml"], cwd=self.folder,
                                 env=self.env(TROUPE_FAULT="batch=sleep:200"),
                                 stderr=subprocess.DEVNULL)
        self.addCleanup(first.wait)
        self.addCleanup(first.kill)
        self.wait_for((self.folder / "run" / "env.json").exists)
        out = self.ran("train", "nano.yaml")
        self.assertEqual(out.returncode, 7)
        self.assertIn(str(first.pid), out.stderr)


if __name__ == "__main__":
    unittest.main()
