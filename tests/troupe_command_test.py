"""The program `troupe` from outside: help, exit classes, a run, a stop, a crash, and a resumed run."""
import json
import re
import shutil
import signal
import subprocess
import unittest

from nano_run import PATIENCE, TROUPE, NanoRun

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
                              capture_output=True, text=True, timeout=300)

    def test_help_and_version_teach(self):
        self.assertRegex(self.ran("--version").stdout, r"^troupe \d+\.\d+\.\d+ \(")
        self.assertIn("troupe train", self.ran("--help").stdout)
        for verb in ("train", "check", "generate", "report", "config"):
            out = self.ran(verb, "--help")
            self.assertEqual(out.returncode, 0)
            self.assertIn("Example: troupe " + verb, out.stdout)

    def test_help_is_a_verb_too(self):
        self.assertEqual(self.ran("help").stdout, self.ran("--help").stdout)
        self.assertEqual(self.ran("help", "data", "build").stdout, self.ran("data", "build", "--help").stdout)
        self.assertIn("--valid", self.ran("help", "data", "build").stdout)
        wrong = self.ran("help", "trian")
        self.assertEqual((wrong.returncode, wrong.stdout), (2, ""))
        self.assertIn("Did you mean train?", wrong.stderr)

    def test_239_threads_spin_for_a_bounded_time_unless_the_user_says_otherwise(self):
        spins = lambda text: re.findall(r"GOMP_SPINCOUNT = '(\d+)'", text)
        show = {"OMP_DISPLAY_ENV": "verbose"}  # libgomp says what it read
        (bound,) = spins(self.ran("--version", **show).stderr)
        self.assertLess(int(bound), 300_000)  # its default
        self.assertEqual(spins(self.ran("--version", GOMP_SPINCOUNT="7", **show).stderr), ["7"])
        self.assertEqual(spins(self.ran("--version", OMP_WAIT_POLICY="active", **show).stderr), ["30000000000"])
        ranks = self.ran("launch", "-n", "2", "--", "train", "nano.yaml", "--quiet", "--set", "train.steps=3", **show)
        self.assertEqual(ranks.returncode, 0, ranks.stderr)
        self.assertEqual(spins(ranks.stderr), [bound] * 3)  # the launcher and both ranks

    def test_output_that_a_full_disk_does_not_take_is_an_error(self):
        verbs = (["config", "print", "nano.yaml"], ["check", "nano.yaml"], ["tokenizer", "encode", "bytes", "cat"],
                 ["train", "nano.yaml", "--print-config"], ["completion", "bash"], ["doctor"], ["--help"], ["--version"],
                 ["train", "--help"], ["config", "schema"])
        for words in verbs:
            self.assertEqual(self.ran(*words).returncode, 0, words)
            with open("/dev/full", "wb") as full:
                out = subprocess.run([str(TROUPE), *words], cwd=self.folder, env=self.env(), stdout=full,
                                     stderr=subprocess.PIPE, text=True, timeout=PATIENCE, check=False)
            self.assertEqual(out.returncode, 7, (words, out.stderr))
            self.assertIn("standard output: E7001 cannot write: No space left on device", out.stderr, words)
            # Started with `>&-` nobody asked for output: it goes nowhere, and into no file that is opened.
            self.command(["sh", "-c", 'exec "$0" "$@" >&-', TROUPE, *words], 0)

    def test_output_that_is_no_output_is_an_error_and_one_that_is_left_is_none(self):
        said = self.command(["sh", "-c", 'exec "$0" config schema 1</dev/null', TROUPE], 7).stderr
        self.assertIn("standard output: E7002 cannot write: Bad file descriptor", said)
        self.command(["bash", "-c", '"$0" train nano.yaml --print-config | head -n 1', TROUPE], 0)

    def test_a_rank_without_a_number_does_not_train_alone(self):
        for name, value in (("WORLD_SIZE", "2"), ("LOCAL_RANK", "1")):
            out = self.ran("train", "nano.yaml", **{name: value})
            self.assertEqual(out.returncode, 2, out.stderr)
            self.assertIn(f"RANK: E2005 is not set, although {name}={value} is", out.stderr)
            self.assertFalse((self.folder / "run").exists())
        self.assertIn("WORLD_SIZE: E2005 is not set", self.ran("train", "nano.yaml", RANK="1").stderr)

    def test_messages_tell_what_was_meant(self):
        def told(*sets):
            out = self.ran("check", "nano.yaml", *(w for s in sets for w in ("--set", s)))
            self.assertEqual(out.returncode, 2, out.stderr)
            return out.stderr
        self.assertIn('not "gpu"; did you mean "cuda"?', told("run.device=gpu"))
        self.assertIn("train.steps: -5 is below 1", told("train.steps=-5"))
        self.assertIn("train.global_batch: -8 is below 1", told("train.global_batch=-8"))
        self.assertIn('not "1e3"; did you mean "1000"?', told("train.steps=1e3"))
        self.assertIn('not "2.5e6"; did you mean "2500000"?', told("train.tokens=2.5e6"))
        self.assertIn('must be an integer, not "2k"; did you mean "2000"?', told("model.vocab=2k"))
        self.assertIn('did you mean "topk_softmax"?', told("model.moe.router.kind=topk"))
        self.assertNotIn("model.norm", told("eval.sets=3"))
        self.assertNotIn("did you mean", told("train.steps=many"))
        for text, what in (("train:\n\tsteps: 30\n", "tabs.yaml:2:1: E2001 the line is indented with a tab, and YAML takes spaces alone"),
                           ("# nothing yet\n", "tabs.yaml: E2005 is empty. A recipe has the sections model, data")):
            (self.folder / "tabs.yaml").write_text(text)
            out = self.ran("check", "tabs.yaml")
            self.assertEqual(out.returncode, 2)
            self.assertIn(what, out.stderr)

    def test_recipes_with_a_keys_old_name_are_read_and_printed_with_the_new_one(self):
        for old, new, sets in (("router.centre", "center", ("model.moe.router.kind=sigmoid_bias",)),
                               ("router.normalise", "normalize", ("model.moe.router.kind=expert_choice",)),
                               ("capacity.renormalise", "renormalize", ("model.moe.capacity.factor=1.5",))):
            words = [w for s in (*sets, f"model.moe.{old}=true") for w in ("--set", s)]
            self.assertEqual(self.ran("check", "nano.yaml", *words).returncode, 0, old)
            printed = self.ran("config", "print", "nano.yaml", *words).stdout
            self.assertRegex(printed, rf"\b{new}: true  # --set model.moe.{old}=true")
            self.assertNotIn(old.split(".")[1] + ":", printed)

    def test_names_that_are_none_are_answered_with_those_that_are(self):
        out = self.ran("inspect", "model", "olmoe-1b-7")
        self.assertEqual(out.returncode, 2)
        self.assertRegex(out.stderr, r"is neither a preset nor a folder with config.json. Did you mean olmoe-1b-7b\? The presets are .*mixtral-8x7b")
        found = self.ran("config", "explain", "aux").stdout
        self.assertIn("model.moe.router.balance.aux_loss\n", found)
        self.assertRegex(self.ran("config", "explain", "when_bu").stdout, "checkpoint.when_busy\n(.*\n)*  default")
        out = self.ran("import", "allenai/OLMoE-1B-7B-0924", "my runs/olmoe")
        self.assertEqual(out.returncode, 2)
        self.assertIn("hf download allenai/OLMoE-1B-7B-0924 --local-dir OLMoE-1B-7B-0924; "
                      "troupe import OLMoE-1B-7B-0924 'my runs/olmoe'", out.stderr)

    def test_the_forecast_has_the_disk_and_a_run_takes_it(self):
        said = self.ran("check", "nano.yaml", "--set", "checkpoint.keep=2").stdout
        one = float(re.search(r"disk   .* for 2 checkpoints of ([\d.]+) KiB and one that is being written; .* are free", said)[1])
        plan = json.loads(self.ran("plan", "nano.yaml", "--json").stdout)
        self.assertAlmostEqual(plan["checkpoint"] / 1024, one, delta=0.1)
        self.assertEqual(self.ran("train", "nano.yaml", "--quiet", "--set", "train.steps=5").returncode, 0)
        (saved,) = {row["bytes"] for row in self.records() if row.get("event") == "save"}
        self.assertAlmostEqual(plan["checkpoint"] / saved, 1, delta=0.05)

    def test_a_finished_run_tells_the_command_that_goes_on_and_each_save_once(self):
        (self.folder / "my recipe.yaml").write_text(NANO)
        out = self.ran("train", "my recipe.yaml", "--set", "train.steps=10", "--set", "eval={every: 0}")
        self.assertEqual(out.returncode, 0, out.stderr)
        for step in ("run/step-000005", "run/step-000010"):
            self.assertEqual(out.stderr.count(step), 1, out.stderr)
            self.assertRegex(out.stderr, rf"info saved {step}: [\d.]+ KiB in [\d.]+ s")
        command = re.search(r"To train on: (.*)", out.stderr)[1]
        self.assertTrue(command.startswith("troupe train 'my recipe.yaml' --set 'eval={every: 0}' --set train.steps="), command)
        again = self.ran("train", "my recipe.yaml", "--set", "train.steps=10", "--set", "eval={every: 0}")
        self.assertIn("already finished at step 10. To train on: " + command, again.stderr)
        on = subprocess.run(["sh", "-c", command], cwd=self.folder, capture_output=True, text=True, timeout=300,
                            env=self.env(PATH=f"{TROUPE.parent}:/usr/bin:/bin"))
        self.assertEqual(on.returncode, 0, on.stderr)
        self.assertEqual(list(self.losses()), list(range(1, 21)))

    def test_F98_the_command_that_goes_on_is_one_whatever_the_names_in_it(self):
        recipe, folder = "it's `mine`.yaml", "o'run $(touch planted)"
        (self.folder / recipe).write_text(NANO)
        out = self.ran("train", recipe, "--set", f"checkpoint.dir={folder}", "--set", "run.time_limit=1ms")
        self.assertEqual(out.returncode, 0, out.stderr)
        command = re.search(r"Continue with: (.*)", out.stderr)[1]
        on = subprocess.run(["sh", "-c", command], cwd=self.folder, capture_output=True, text=True, timeout=300,
                            env=self.env(PATH=f"{TROUPE.parent}:/usr/bin:/bin"), check=False)
        self.assertEqual(on.returncode, 0, on.stderr)
        self.assertEqual(len([r for r in self.records(folder) if r.get("event") in ("start", "resume")]), 2)
        self.assertFalse((self.folder / "planted").exists())

    def log_on_terminal(self, columns, *words, term="xterm"):
        """What the program's log writes to a terminal of so many columns, without colors."""
        out = self.on_terminal(*words, streams=("stderr",), columns=columns, TERM=term)
        return re.sub(r"\x1b\[[\d;]*m", "", out.decode())

    def test_a_terminal_has_one_line_of_progress_that_is_rewritten(self):
        for columns in (200, 60):
            shutil.rmtree(self.folder / "run", ignore_errors=True)
            said = self.log_on_terminal(columns, "train", "nano.yaml")
            shown = re.findall(r"\x1b\[K(step [^\r\n]*)", said)
            self.assertGreaterEqual(len(shown), 10)
            self.assertLess(max(map(len, shown)), min(columns, 101))
            self.assertRegex(shown[0], r"^step 1/30 .*loss \d\.\d+ .*eta \w+$")
            self.assertEqual(columns == 200, "gnorm" in shown[0] and "3%" in shown[0])
            # What stays, once each line has been rewritten for the last time.
            stays = [line.split("\x1b[K")[-1].strip("\r") for line in said.split("\n")]
            self.assertEqual([line for line in stays if line.startswith("step ")], [])
            (last,) = [line for line in stays if "info step" in line]
            self.assertIn("step 30/30  loss", last)
            self.assertTrue(any("info saved run/step-000030" in line for line in stays))
            logged = re.findall(r"info step (\d+)/30  loss", (self.folder / "run/log.txt").read_text())
            self.assertEqual(logged[:10] + logged[-1:], [*map(str, range(1, 11)), "30"])

    def test_a_terminal_breaks_no_word_of_the_log(self):
        said = self.log_on_terminal(60, "train", "nano.yaml", "--set", "train.steps=4", "--set", "eval.prompts=[]")
        lines = [line.split("\x1b[K")[-1].strip("\r") for line in said.split("\n")]
        self.assertEqual([line for line in lines if len(line) >= 60 and not line.lstrip().startswith("troupe train ")], [])
        self.assertRegex(said, r"\n {18}troupe train nano.yaml .*train.steps=8")  # a command stays whole
        logged = (self.folder / "run/log.txt").read_text()
        (batch,) = [line for line in logged.splitlines() if "info batch" in line]
        self.assertGreater(len(batch), 60)
        self.assertIn(" ".join(batch.split()[2:]), " ".join(said.split()))

    def test_no_line_is_rewritten_where_nobody_would_see_it(self):
        for said in (self.log_on_terminal(80, "train", "nano.yaml", term="dumb"),
                     self.ran("train", "nano.yaml", "--set", "checkpoint.dir=other", TERM="xterm").stderr):
            self.assertNotIn("\x1b", said)
            self.assertIn("info step 1/30  loss", said)

    def test_a_batch_with_no_target_is_told(self):
        (self.folder / "chats.jsonl").write_text('{"messages": [{"role": "user", "content": "%s"}]}\n' % ("Hi. " * 200))
        built = self.ran("data", "build", "chats.jsonl", "--format", "chat", "-t", "bytes", "--no-eod", "-o", "chats")
        self.assertEqual(built.returncode, 0, built.stderr)
        self.assertIn('nothing is learned: no message has the role "assistant"', built.stderr)
        self.assertIn("0 tokens are learned", built.stdout)
        out = self.ran("train", "nano.yaml", "--set", "data.train=[{path: chats}]", "--set", "train.steps=3")
        self.assertEqual(out.stderr.count("all targets are masked, so nothing is learned"), 1, out.stderr)

    def test_a_part_of_the_documents_becomes_validation_data(self):
        (self.folder / "lines.txt").write_text("".join(f"line {i} of the text\n" for i in range(500)))
        words = ("data", "build", "lines.txt", "--format", "lines", "-t", "bytes", "--no-eod", "-o", "made")
        out = self.ran(*words, "--valid", "0.1")
        self.assertEqual(out.returncode, 0, out.stderr)
        self.assertIn("In a recipe: data: {train: [{path: made}], valid: [{path: made-valid}]}", out.stdout)
        counts = [int(n) for n in re.findall(r"(\d+) documents", out.stdout)]
        self.assertEqual(sum(counts), 500)
        self.assertTrue(20 < counts[1] < 90, counts)
        out = self.ran("train", "nano.yaml", "--set", "data.train=[{path: made}]", "--set", "data.valid=[{path: made-valid}]",
                       "--set", "train.steps=10")
        self.assertEqual(out.returncode, 0, out.stderr)
        self.assertIn("eval step 10  made-valid  loss", out.stderr)

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
                       "parallel.pipeline=-1")
        self.assertEqual(out.returncode, 2)
        self.assertIn("train.micro_batch", out.stderr)
        self.assertIn("parallel.pipeline", out.stderr)
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
                               env=self.env(TROUPE_FAULT="batch=sleep:1000"),
                               stderr=subprocess.PIPE, text=True)
        self.wait_for(lambda: any(r.get("event") == "resume" for r in self.records()))
        run.send_signal(signal.SIGTERM)
        stderr = run.communicate(timeout=PATIENCE)[1]
        self.assertEqual(run.returncode, 0, stderr)
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
