"""The verbs around a run, from outside: convert, plan, check, eval, config, doctor, selftest, bench,
completion."""
import json
import math
import os
import pathlib
import pty
import re
import shlex
import shutil
import signal
import stat
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree

TROUPE = pathlib.Path(os.environ["TROUPE_BUILD"], "troupe")
MACHINE = pathlib.Path(__file__).resolve().parents[1] / "machines/assumed-h100.yaml"
NANO = """
model: {layers: 2, width: 32, heads: 4, vocab: 256, max_positions: 64,
        moe: {experts: 4, top_k: 2, hidden: 64}}
data: {train: [{kind: text, path: text.txt}], valid: [{kind: text, path: valid.txt}],
       sequence: 32, tokenizer: bytes}
train: {global_batch: 8, steps: 40, optimizer: {lr: 3e-3}, schedule: {warmup: 2}}
eval: {every: 40}
checkpoint: {dir: run, every_steps: 20}
run: {device: cpu}
"""
SCRIPT = """#!/bin/bash
MODEL=(
    --num-layers 2 --hidden-size 32 --num-attention-heads 4
    --seq-length 32 --vocab-size 256 --swiglu --normalization RMSNorm --disable-bias-linear
    --position-embedding-type rope --untie-embeddings-and-output-weights
    --num-experts 4 --moe-router-topk 2 --moe-aux-loss-coeff 1e-2 --moe-grouped-gemm
)
torchrun --nproc_per_node 1 pretrain_gpt.py ${MODEL[@]} --micro-batch-size 4 \\
    --global-batch-size 8 --train-iters 10 --lr 1e-3 --lr-decay-style cosine --mock-data \\
    --save converted --eval-iters 0 --use-flash-attn
"""
FOUNDRY = """
variables: {length: 32}
max_seq_len: ${variables.length}
run_name: foundry
model:
  name: mpt_causal_lm
  d_model: 32
  n_heads: 4
  n_layers: 2
  vocab_size: 256
  ffn_config: {ffn_type: mb_dmoe, moe_num_experts: 4, moe_top_k: 2, moe_world_size: 1, mlp_type: glu}
  init_config: {init_std: 0.02}
train_loader: {dataset: {local: text, split: train}}
optimizer: {name: decoupled_adamw, lr: 1e-3, weight_decay: 0}
scheduler: {name: cosine_with_warmup, t_warmup: 2ba, alpha_f: 0.1}
max_duration: 10ba
global_train_batch_size: 8
"""


def contrast(one, other):
    """Of two colors, #rgb or #rrggbb: (L + 0.05) / (l + 0.05), WCAG 2, from 1 to 21."""
    def luminance(color):
        digits = color[1:] if len(color) == 7 else "".join(2 * c for c in color[1:])
        parts = [int(digits[i:i + 2], 16) / 255 for i in (0, 2, 4)]
        linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
        return sum(w * x for w, x in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


class TroupeRuns(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.temporary.name)
        cls.env = dict(os.environ, OMP_NUM_THREADS="1")
        (cls.folder / "nano.yaml").write_text(NANO)
        (cls.folder / "text.txt").write_text("The cat sat on the mat. " * 300)
        (cls.folder / "valid.txt").write_text("The cat sat on the mat. " * 9 + "The dog.")
        (cls.folder / "run.sh").write_text(SCRIPT)
        (cls.folder / "foundry.yaml").write_text(FOUNDRY)

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def troupe(self, *words, code=0):
        out = subprocess.run([str(TROUPE), *map(str, words)], cwd=self.folder, env=self.env,
                             capture_output=True, text=True, timeout=300)
        self.assertEqual(out.returncode, code, out.stdout + out.stderr)
        return out

    def test_help_is_a_screen_with_an_example(self):
        for verb in ("check", "plan", "eval", "config", "config print", "config explain",
                     "config diff", "config schema", "convert", "convert recipe", "convert words", "doctor",
                     "selftest", "bench", "bench machine", "launch", "completion"):
            text = self.troupe(*verb.split(), "--help").stdout
            self.assertIn("Example: ", text, verb)
            self.assertLess(text.count("\n"), 30, verb)

    def test_megatrons_script_becomes_a_recipe_that_checks_and_trains(self):
        out = self.troupe("convert", "recipe", "run.sh", "-o", "converted.yaml")
        self.assertIn("--num-layers 2 -> model.layers: 2", out.stderr)
        self.assertIn("--use-flash-attn: speed only", out.stderr)
        self.assertNotIn("not supported", out.stderr)
        self.assertNotIn("to be filled in", out.stderr)
        self.assertIn("ok", self.troupe("check", "converted.yaml").stdout)
        plan = self.troupe("plan", "converted.yaml", "--ranks", "2", "--machine", MACHINE).stdout
        self.assertRegex(plan, r"in all +[\d.]+\n[^$]*a step [\d.]+ ")
        self.troupe("train", "converted.yaml", "--quiet", "--set", "run.device=cpu", "--set",
                    "train.steps=2")
        self.assertTrue((self.folder / "converted" / "step-000002").is_dir())

    def test_a_table_names_every_value_that_was_taken(self):
        out = self.troupe("convert", "recipe", "run.sh", "-o", "explained.yaml", "--explain").stderr
        self.assertRegex(out, "^theirs +ours\n")
        self.assertRegex(out, r"(?m)^--num-layers 2 +model\.layers: 2$")
        for line in self.troupe("convert", "recipe", "run.sh").stderr.splitlines():
            theirs, arrow, ours = line.strip().rpartition(" -> ")
            if arrow:
                self.assertRegex(out, rf"(?m)^{re.escape(theirs)} +{re.escape(ours)}$")

    def test_the_words_of_a_script_are_printed_for_other_programs(self):
        (self.folder / "verb.sh").write_text('F=(--b "c d")\nmegatron sft --a "$1" ${F[@]}\n')
        out = json.loads(self.troupe("convert", "words", "verb.sh", "--variable", "1=x").stdout)
        self.assertEqual(out["program"], "megatron sft")
        self.assertEqual(out["words"], [["--a", 2], ["x", 2], ["--b", 1], ["c", 1], ["d", 1]])

    def nodes(self):
        """Device nodes of the test's own, as /dev/null and /dev/zero are, a link to one, and a link to a file."""
        if not hasattr(os, "makedev"):
            self.skipTest("needs device numbers")
        here = self.folder / "nodes"
        shutil.rmtree(here, ignore_errors=True)
        here.mkdir()
        try:
            for name, minor in (("null", 3), ("zero", 5)):
                os.mknod(here / name, 0o600 | stat.S_IFCHR, os.makedev(1, minor))
                os.close(os.open(here / name, os.O_WRONLY))
        except OSError as error:
            self.skipTest(f"device nodes may not be made or opened here: {error}")
        (here / "device_link").symlink_to("null")
        (here / "file").write_text("old")
        (here / "file_link").symlink_to("file")
        return here

    def test_an_output_that_is_a_device_stays_one_and_a_link_is_followed(self):
        here = self.nodes()
        verbs = {"convert": ("convert", "recipe", "run.sh", "--quiet", "-o"),
                 "tokenizer": ("tokenizer", "train", "text.txt", "--vocab", 260, "--output"),
                 "bench": ("bench", "nano.yaml", "--steps", 1, "--out"),
                 "picture": ("plan", "nano.yaml", "--ranks", 2, "--machine", MACHINE, "--picture")}
        self.troupe("train", "nano.yaml", "--quiet", "--set", "train.steps=4", "--set", "checkpoint.dir=one")
        self.troupe("train", "nano.yaml", "--quiet", "--set", "train.steps=4", "--set", "checkpoint.dir=two")
        verbs["report"] = ("report", "one", "two", "--out")
        names = {path.name for path in here.iterdir()}
        for verb, words in verbs.items():
            for name in ("null", "zero", "device_link"):
                self.troupe(*words, here / name)
            (here / "file").write_text("old")
            self.troupe(*words, here / "file_link")
            self.assertNotIn((here / "file").read_text(), ("old", ""), verb)
            for name in ("null", "zero"):
                self.assertTrue(stat.S_ISCHR((here / name).lstat().st_mode), f"{verb} replaced {name}")
            for name in ("device_link", "file_link"):
                self.assertTrue((here / name).is_symlink(), f"{verb} replaced {name}")
            self.assertEqual({path.name for path in here.iterdir()}, names, verb)

    def test_outputs_that_must_be_files_or_folders_refuse_a_device(self):
        here = self.nodes()
        self.troupe("train", "nano.yaml", "--quiet", "--set", "train.steps=4", "--set", "checkpoint.dir=three")
        said = self.troupe("export", "three", here / "null", "--force", code=7).stderr
        self.assertIn("would be replaced", said)
        os.mknod(here / "set.bin", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        said = self.troupe("data", "build", "text.txt", "-t", "bytes", "--no-eod", "-o", here / "set", "--replace", code=7).stderr
        self.assertIn("would be replaced", said)
        # A run's own files: a report would replace the node.
        (self.folder / "three" / "report.html").unlink(missing_ok=True)
        os.mknod(self.folder / "three" / "report.html", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        said = self.troupe("report", "three", code=7).stderr
        self.assertIn("would be replaced", said)
        for path in (here / "null", here / "set.bin", self.folder / "three" / "report.html"):
            self.assertTrue(stat.S_ISCHR(path.lstat().st_mode), path)

    def test_a_dash_and_dev_stdout_are_standard_output(self):
        want = self.troupe("convert", "recipe", "run.sh", "--quiet").stdout
        self.assertIn("layers: 2", want)
        # A link of the test's own: should the program replace it, /dev/stdout is whole.
        link = self.folder / "stdout"
        link.symlink_to("/proc/self/fd/1")
        for name in ("-", link):
            self.assertEqual(self.troupe("convert", "recipe", "run.sh", "--quiet", "-o", name).stdout, want)
            with open(self.folder / "said", "w", encoding="utf-8") as said:
                subprocess.run([str(TROUPE), "convert", "recipe", "run.sh", "--quiet", "-o", str(name)], cwd=self.folder,
                               env=self.env, stdout=said, timeout=300, check=True)
            self.assertEqual((self.folder / "said").read_text(), want)
        self.assertTrue(link.is_symlink())
        out = self.troupe("tokenizer", "train", "text.txt", "--vocab", 260, "-o", "-").stdout
        self.assertIn("model", json.loads(out))  # the tokenizer alone

    def tensors(self, run):
        """{name: (type, shape)} of all that the last checkpoint of a run has."""
        out = {}
        for path in max((self.folder / run).glob("step-*")).glob("*.safetensors"):
            data = path.read_bytes()
            head = json.loads(data[8:8 + int.from_bytes(data[:8], "little")])
            out.update({name: (at["dtype"], at["shape"]) for name, at in head.items() if name != "__metadata__"})
        return out

    def test_121_177_grouped_products_and_a_loop_have_one_loss_and_the_same_tensors(self):
        """The script with and without --moe-grouped-gemm, and the recipe's own choice."""
        (self.folder / "loop.sh").write_text(SCRIPT.replace(" --moe-grouped-gemm", "").replace("converted", "looped"))
        losses, files = {}, {}
        for name, script, impl in (("grouped", "run.sh", "grouped"), ("ungrouped", "loop.sh", "grouped"),
                                   ("loop", "loop.sh", "loop"), ("blocks", "run.sh", "block_sparse")):
            self.troupe("convert", "recipe", script, "-o", name + ".yaml")
            self.troupe("train", name + ".yaml", "--quiet", "--set", "run.device=cpu", "--set", "train.steps=8", "--set",
                        f"model.moe.impl={impl}", "--set", "model.moe.hidden=128", "--set", "checkpoint.dir=" + name)
            lines = (self.folder / name / "log.jsonl").read_text().split("\n")[:-1]
            losses[name] = [r["loss"] for r in map(json.loads, lines) if "event" not in r]
            self.assertEqual(len(losses[name]), 8)
            files[name] = self.tensors(name)
        self.assertEqual(losses["grouped"], losses["ungrouped"])
        self.assertTrue(any(".experts.3." in tensor for tensor in files["grouped"]))  # each by its own name
        self.assertEqual(files["loop"], files["grouped"])
        self.assertEqual(files["blocks"], files["grouped"])
        for name in ("loop", "blocks"):
            for a, b in zip(losses["grouped"], losses[name]):
                self.assertAlmostEqual(a, b, delta=1e-5 * a, msg=name)

    def test_foundrys_yaml_becomes_a_recipe_that_checks(self):
        out = self.troupe("convert", "recipe", "foundry.yaml", "-o", "foundry_out.yaml")
        self.assertIn("model.ffn_config.moe_num_experts: 4 -> model.moe.experts: 4", out.stderr)
        data = ("--set", "data.train=[{kind: text, path: text.txt}]")
        self.troupe("check", "foundry_out.yaml", *data)
        plan = self.troupe("plan", "foundry_out.yaml", "--ranks", "2", "--machine", MACHINE, *data).stdout
        self.assertRegex(plan, r"in all +[\d.]+\n[^$]*a step [\d.]+ ")

    def test_what_cannot_be_converted_stops_the_conversion(self):
        (self.folder / "bad.sh").write_text("--num-layers 2 --fp4-format e2m1 --num-expert 4\n")
        out = self.troupe("convert", "recipe", "bad.sh", code=2)
        self.assertEqual(out.stdout, "")
        self.assertIn("bad.sh:1: E2005 --fp4-format e2m1", out.stderr)
        self.assertIn("did you mean --num-experts?", out.stderr)
        forced = self.troupe("convert", "recipe", "bad.sh", "--force", "--quiet", code=8)
        self.assertIn("# not supported: bad.sh:1: E2005 --fp4-format", forced.stdout)
        self.assertIn("layers: 2  # --num-layers 2", forced.stdout)
        self.assertIn("# to be filled in: model.vocab", forced.stdout)
        self.troupe("convert", "recipe", "nowhere.sh", code=2)
        self.troupe("convert", "recipe", "bad.sh", "--from", "megatrn", code=2)

    def test_a_value_of_several_lines_writes_no_key(self):
        hostile = "--wandb-project $'x\\nprofile: {from: 1}\\n#' --tokenizer-model $'t\\nrun: {device: cpu}\\n#'"
        (self.folder / "lines.sh").write_text(SCRIPT.rstrip() + " " + hostile + "\n")
        out = self.troupe("convert", "recipe", "lines.sh").stdout
        self.assertIn("# beside the run: ", out)
        for line in out.splitlines():
            self.assertRegex(line, r"^(# .*| *[a-z_]+:( .*)?)$")
        self.assertNotRegex(out, r"(?m)^(profile|run):")

    # Also where the data are still to be named.
    def test_convert_finds_what_check_finds_of_a_layout(self):
        text = SCRIPT.replace("--mock-data", "").rstrip() + " --context-parallel-size 2 --attention-dropout 0.1\n"
        (self.folder / "context.sh").write_text(text)
        out = self.troupe("convert", "recipe", "context.sh", code=2)
        self.assertIn("data.train: neither --data-path nor --mock-data is given", out.stderr)
        self.assertIn("model.attn_dropout: E2005 0.1 with context 2", out.stderr)
        self.assertNotIn("checked", out.stderr.replace("not checked", ""))
        self.troupe("convert", "recipe", "context.sh", "--force", "--quiet", "-o", "context.yaml", code=8)
        data = ("--set", "data.train=[{kind: text, path: text.txt}]")
        self.assertIn("E2005 0.1 with context 2", self.troupe("check", "context.yaml", *data, code=2).stderr)

    def test_plan_and_check_tell_the_memory(self):
        out = self.troupe("plan", "nano.yaml", "--rate", "0.05")
        self.assertRegex(out.stdout, r"weights +0\.00")
        self.assertRegex(out.stdout, r"memory [\d.]+ of [\d.]+ GiB")
        self.assertRegex(out.stdout, r"the run \d")
        plan = json.loads(self.troupe("plan", "nano.yaml", "--rate", "0.05", "--json").stdout)
        self.assertEqual(plan["parts"]["weights"] + plan["parts"]["gradients"] +
                         plan["parts"]["moments"], 16 * plan["params"] + 2 * 4 * 4)
        self.assertAlmostEqual(plan["run_seconds"], 40 * plan["step_seconds"], places=9)
        out = self.troupe("plan", "nano.yaml", "--assume-memory", "40MiB", code=7)
        self.assertIn("E7006 memory", out.stdout)
        self.assertIn("will not fit", out.stdout)
        out = self.troupe("check", "nano.yaml", "--assume-memory", "40MiB", code=7)
        self.assertIn("nano.yaml: E7006 memory", out.stderr)
        self.assertNotIn("ok\n", out.stdout)
        self.assertRegex(self.troupe("check", "nano.yaml").stdout, r"memory [\d.]+ of")
        self.troupe("plan", "nano.yaml", "--assume-memory", "lots", code=2)
        olmoe = self.troupe("plan", "nano.yaml", "--set", "model={preset: olmoe-1b-7b}", "--set",
                            "run.device=cuda", "--assume-memory", "80GiB", code=7)
        self.assertRegex(olmoe.stdout, r"6\.92B parameters, 1\.28B active")

    def test_plan_lays_a_run_on_ranks_of_a_machine(self):
        machine = pathlib.Path(__file__).parent.parent / "machines" / "assumed-h100.yaml"
        words = ["plan", "nano.yaml", "--machine", machine, "--ranks"]
        spread = ["--set", "parallel.expert=4"]
        out = self.troupe(*words, 4, *spread, "--list", "--picture", "step.svg").stdout
        picture = xml.etree.ElementTree.parse(self.folder / "step.svg").getroot()
        names = [e.text for e in picture.iter("{http://www.w3.org/2000/svg}title")]
        self.assertGreater(names.count("F1.0"), 1)  # its exchange, and its computation
        self.assertIn("experts    expert_tensor 1 x expert 4 x expert_data 1 x pipeline 1", out)
        self.assertRegex(out, r"expert  +1 group of 4: 0 1 2 3")
        self.assertRegex(out, r"experts' exchange +[\d.]+ ms")
        self.assertRegex(out, r"0: F0\.0 .* U G0")
        self.assertRegex(out, r"\nthe run takes \w+; disk: [\d.]+ MiB for 3 checkpoints of [\d.]+ KiB and one that is being")
        told = json.loads(self.troupe(*words, 4, *spread, "--json").stdout)
        parts = sum(told[p] for p in ("compute", "exchange", "exposed", "bubble", "update", "slowest"))
        self.assertAlmostEqual(parts, told["step_seconds"], places=9)
        self.assertAlmostEqual(sum(told["parts"].values()), told["memory"], delta=1)
        rows = self.troupe(*words, 6, "--scaling").stdout.splitlines()
        self.assertEqual([row.split()[0] for row in rows], ["ranks", "1", "2", "4", "6"])
        of_best = [float(row.split()[6].rstrip("%")) for row in rows[1:]]
        self.assertEqual(max(of_best), 100)
        self.assertNotIn("does not fit", "".join(rows))
        rows = self.troupe(*words, 4, "--scaling", "--assume-memory", "50MiB", code=7).stdout.splitlines()
        self.assertRegex(rows[-1], r" - .*does not fit into 0\.05$")
        told = [json.loads(x) for x in self.troupe(*words, 4, "--scaling", "--json").stdout.splitlines()]
        self.assertEqual([t["fits"] for t in told], [True] * 3)
        # MFU is of the data sheet's peak, not of what large products reach.
        one = told[0]
        text = self.troupe(*words, 1).stdout
        self.assertIn(f"MFU {100 * one['mfu']:.1f}% of the devices' peak", text)
        chosen = [json.loads(x) for x in self.troupe(*words, 4, "--choose", "--json").stdout.splitlines()]
        self.assertGreater(len(chosen), 3)
        self.assertEqual(chosen, sorted(chosen, key=lambda f: f["step_seconds"]))
        auto = json.loads(self.troupe(*words, 4, "--json").stdout)
        # On one host a run takes other axes only where nothing fits without them; the list has them all.
        plain = [f for f in chosen if f["parallel"]["tensor"] * f["parallel"]["context"] * f["parallel"]["pipeline"] == 1]
        self.assertLess(auto["step_seconds"], 1.02 * plain[0]["step_seconds"])
        self.assertLess(len(plain), len(chosen))
        text = self.troupe(*words, 4, "--choose").stdout
        self.assertRegex(text, r"^\d+ layouts simulated, \d+ more costed without lists, in ")
        self.assertRegex(text, r"<- a run takes it\n")
        self.assertLessEqual(max(map(len, text.splitlines())), 120)
        layouts = re.findall(r"(?m)^ *(\d+) .*%.*\n((?:     --set .*\n)+)", text)
        self.assertEqual([row for row, _ in layouts[:3]], ["1", "2", "3"])
        self.assertEqual(len(layouts), text.count("parallel={tensor: "))
        # Pasted, a row's line gives that layout.
        for (_, line), want in list(zip(layouts, chosen))[:4]:
            given = shlex.split(line.replace("\\\n", " "))
            told = json.loads(self.troupe(*words, 4, *given, "--json").stdout)
            self.assertAlmostEqual(told["step_seconds"], want["step_seconds"], delta=.05 * want["step_seconds"])
            for key in ("tensor", "context", "pipeline", "expert", "expert_tensor", "shard"):
                self.assertEqual(told["parallel"][key], want["parallel"][key], key)
        # And why a run takes the one that it takes.
        (taken,) = re.findall(r"(?m)^ *(\d+) .*<- a run takes it$", text)
        why = re.findall(r"(?m)^a run takes row (\d+): (.*)", text)
        self.assertEqual([row for row, _ in why], [taken] if taken != "1" else [])
        if why:
            self.assertRegex(why[0][1], r"^(those before row \d+ use more of tensor|it is within 2 % of row \d+, and simpler: )")
        self.assertRegex(text, r"the first beats the second by [\d.]+ ms a step")
        staged = self.troupe(*words, 4, "--choose", "--set", "parallel.pipeline=2").stdout
        self.assertRegex(staged, r"rank +GiB +idle +units")
        self.assertRegex(self.troupe(*words, 4).stdout, r"\d ms a step, forecast for hosts of 8 H100 \(assumed\); (next|as fast) ")
        given = ["plan", "nano.yaml", "--ranks", 4, "--json", "--set", f"run.machine={machine}"]
        self.assertEqual(json.loads(self.troupe(*given).stdout), auto)
        self.assertRegex(self.troupe(*words, 4, "--choose", "--assume-memory", "50MiB", code=7).stdout,
                         r"no layout of 4 ranks fits: the fullest rank of the best \(.*\) wants [\d.]+ of 0\.05 GiB, ")
        self.assertIn("machines/", self.troupe("plan", "nano.yaml", "--ranks", 4, code=2).stderr)
        self.assertIn("parallel.expert", self.troupe(*words, 4, "--set", "parallel.expert=3", code=2).stderr)

    def test_a_measured_machine_and_step_give_the_forecast_of_one_rank(self):
        self.troupe("bench", "machine", "-o", "here.yaml", "--device", "cpu")
        self.assertIn("1 rank(s) on cpu", (self.folder / "here.yaml").read_text())
        self.troupe("bench", "nano.yaml", "--steps", 2, "--warmup", 1, "-o", "bench.json")
        told = json.loads(self.troupe("plan", "nano.yaml", "--ranks", 1, "--machine", "here.yaml",
                                      "--bench", "bench.json", "--json").stdout)
        bench = json.loads((self.folder / "bench.json").read_text())
        step = bench["times"][0]["step_s"]
        self.assertAlmostEqual(told["step_seconds"] / step, 1, places=9)
        twice = json.loads(self.troupe("plan", "nano.yaml", "--set", f"train.global_batch={2 * bench['batch']}",
                                       "--ranks", 1, "--machine", "here.yaml", "--bench", "bench.json", "--json").stdout)
        self.assertTrue(1.3 < twice["step_seconds"] / step < 2.1, twice["step_seconds"] / step)
        self.troupe("plan", "nano.yaml", "--ranks", 1, "--machine", "here.yaml", "--bench", "here.yaml", code=2)

    def test_a_report_shows_the_forecast_beside_what_the_run_took(self):
        self.troupe("train", "nano.yaml", "--set", "checkpoint.dir=told")
        self.troupe("bench", "machine", "-o", "here.yaml", "--device", "cpu")
        self.troupe("report", "told", "--machine", "here.yaml")
        page = (self.folder / "told" / "report.html").read_text()
        self.assertIn("Forecast and measured", page)
        for what in ("a step", "update", "tokens a second", "memory of a rank"):
            self.assertRegex(page, rf"<td>{what}</td><td>[\d.]+[^<]*</td><td>[\d.]+[^<]*</td><td>\d+%")
        self.assertRegex(page, r"a step of 1 ranks, \S+ \S+, as forecast")
        shown = set(re.findall(r"<title>step (\d+), expert 0:", page))  # columns of the heat maps
        self.assertGreaterEqual(len(shown), 10, shown)

    def test_a_report_can_be_read_in_both_color_schemes(self):
        self.troupe("train", "nano.yaml", "--set", "checkpoint.dir=colors")
        self.troupe("report", "colors")
        (style,) = re.findall(r"<style>(.*?)</style>", (self.folder / "colors" / "report.html").read_text(), re.S)
        dark = re.compile(r"@media\(prefers-color-scheme:dark\)\{((?:[^{}]*\{[^{}]*\})*)\}")
        schemes = {"light": dark.sub("", style), "dark": "".join(dark.findall(style))}
        for name, css in schemes.items():
            colors = dict(re.findall(r"--(\w+):(#\w+)", css))
            self.assertEqual(set(colors), {"page", "ink", "soft", "box", "edge", "grid", "tip"}, name)
            for text in ("ink", "soft"):  # what is written in, on what it is written
                for ground in ("page", "box"):
                    self.assertGreaterEqual(contrast(colors[text], colors[ground]), 4.5, (name, text, ground))
            cells = re.findall(r"\.h\d+\{fill:#\w+;background:(#\w+);color:(#\w+)\}", css)
            self.assertEqual(len(cells), 31, name)
            for ground, text in cells:
                self.assertGreaterEqual(contrast(text, ground), 4.5, (name, text, ground))
            curves = re.findall(r"\.s\d+\{stroke:(#\w+)\}", css)
            self.assertEqual(len(curves), 8, name)
            for curve in curves:  # what is no text needs 3
                self.assertGreaterEqual(contrast(curve, colors["page"]), 3, (name, curve))

    def test_191_a_machine_that_is_slower_than_it_should_be_is_told_before_a_run(self):
        self.troupe("bench", "machine", "-o", "here.yaml", "--device", "cpu")
        here = (self.folder / "here.yaml").read_text()
        self.assertIn("gpu: false", here)
        for name, times in (("slower", 0.02), ("faster", 50)):
            rates = re.sub(r"(?m)^(products|experts|attention|bandwidth): (\S+)",
                           lambda m, times=times: f"{m[1]}: {float(m[2]) * times}", here)
            (self.folder / f"{name}.yaml").write_text(rates)
        self.troupe("bench", "machine", "-o", "again.yaml", "--device", "cpu", "--expect", "slower.yaml")
        said = self.troupe("bench", "machine", "--device", "cpu", "--expect", "faster.yaml", code=7).stderr
        for name in ("products", "experts", "attention", "bandwidth"):
            self.assertRegex(said, rf"rank 0: {name} \S+ is \d+% of the \S+ that are expected")
        self.assertIn("faster.yaml: E7102 4 rates", said)

    def test_the_forecast_is_near_what_a_run_takes(self):
        peaks = []
        for recompute in ("none", "1"):
            out = json.loads(self.troupe(
                "bench", "nano.yaml", "--json", "--steps", "2", "--warmup", "1", "--set",
                "model={layers: 4, width: 256, heads: 4, vocab: 4096, max_positions: 256, "
                "moe: {experts: 8, top_k: 2, hidden: 256}}", "--set", "data.sequence=256", "--set",
                "train.global_batch=4", "--set", "train.micro_batch=4", "--set",
                f"train.recompute='{recompute}'").stdout)
            ratio = out["forecast_bytes"] / out["peak_bytes"]
            self.assertLess(abs(math.log(ratio)), math.log(1.1), out)
            peaks.append(out["peak_bytes"])
        self.assertLess(peaks[1], peaks[0])

    def test_117_one_process_plays_a_rank_of_four_and_takes_what_is_forecast(self):
        model = ("model={layers: 6, width: 384, heads: 4, vocab: 4096, max_positions: 256, "
                 "moe: {experts: 8, top_k: 2, hidden: 384}}")
        sets = [model, "data.sequence=256", "train.global_batch=8", "train.micro_batch=2", "run.device=cpu"]
        peaks = {}
        for layout in (("zero1", 1), ("zero1", 4), ("full", 1), ("full", 4)):
            more = [*sets, f"parallel.shard={layout[0]}", f"parallel.expert={layout[1]}"]
            out = json.loads(self.troupe("bench", "nano.yaml", "--ranks", "4", "--json", "--steps", "2", "--warmup", "1",
                                         *(w for s in more for w in ("--set", s))).stdout)
            self.assertEqual(out["ranks"], 4)
            ratio = out["forecast_bytes"] / out["peak_bytes"]
            self.assertLess(abs(math.log(ratio)), math.log(1.1), (layout, out))
            learned, forced = out["times"]
            self.assertEqual(out["peak_bytes"], forced["peak_bytes"])
            self.assertGreaterEqual(learned["peak_bytes"], forced["peak_bytes"])
            peaks[layout] = out["peak_bytes"]
        self.assertLess(peaks["full", 4], peaks["zero1", 1])
        machine = pathlib.Path(__file__).parent.parent / "machines" / "assumed-h100.yaml"
        told = self.troupe("plan", "nano.yaml", "--machine", machine, "--ranks", 4, "--measure", "--set", "run.device=cpu").stdout
        self.assertRegex(told, r"measured on cpu as one of them: memory [\d.]+ GiB at most where [\d.]+ are forecast")

    def played(self, ranks, rank, *sets):
        """The peak of a rank that this process plays, and the forecast of it. With AVX-512 MKL packs matrices into some
        2 % more than with AVX2, on which the forecast stands."""
        self.env = {**self.env, "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
        out = json.loads(self.troupe("bench", "nano.yaml", "--ranks", ranks, "--rank", rank, "--json", "--steps", "1", "--warmup", "1",
                                     *(w for s in sets for w in ("--set", s))).stdout)
        self.assertEqual((out["ranks"], out["rank"]), (ranks, rank))
        return out["peak_bytes"], out["forecast_bytes"]

    def test_117_a_tensor_rank_and_a_last_stage_take_what_is_forecast_within_5_percent(self):
        shape = "width: 384, heads: 4, vocab: 4096, max_positions: 512, moe: {experts: 8, top_k: 2, hidden: 384, router: {force: uniform}}"
        sets = ("data.sequence=512", "train.micro_batch=1", "parallel.expert=1", "run.device=cpu")
        tensor = (f"model={{layers: 6, {shape}}}", *sets, "train.global_batch=8", "train.micro_batch=8", "parallel.shard=zero1",
                  "parallel.tensor=4", "parallel.expert=4")
        stages = (f"model={{layers: 6, {shape}}}", *sets, "train.global_batch=4", "parallel.shard=none", "parallel.pipeline=2",
                  "parallel.stages='Et*3|t*3L'")
        for ranks, rank, layout in ((4, 3, tensor), (2, 1, stages)):
            peak, forecast = self.played(ranks, rank, *layout)
            self.assertLess(abs(math.log(forecast / peak)), math.log(1.05), layout)
        refused = self.troupe("bench", "nano.yaml", "--ranks", 2, "--rank", 2, code=2).stderr
        self.assertIn("--rank: E2005 2 is none of the 2 ranks", refused)

    def test_bench_measures_learned_and_forced_routing(self):
        out = self.troupe("bench", "nano.yaml", "--steps", "2", "--warmup", "1", "-o", "b.json")
        self.assertIn("FORCED", out.stdout)
        report = json.loads((self.folder / "b.json").read_text())
        self.assertEqual([t["routing"] for t in report["times"]], ["learned", "forced"])
        for times in report["times"]:
            self.assertGreater(times["step_s"], times["forward_s"])
            self.assertAlmostEqual(times["tokens_s"], 8 * 32 / times["step_s"], delta=1e-3)
        self.assertEqual(report["times"][1]["max_over_mean"], 1)
        self.assertEqual(report["device"], "cpu")
        self.assertRegex(report["commit"], r"^([0-9a-f]{7,}\+?|unknown)$")
        self.troupe("bench", "nano.yaml", "--steps", "0", code=2)

    def test_221_forced_routing_is_told_wherever_a_speed_is(self):
        forced = ("--set", "model.moe.router.force=uniform")
        (times,) = json.loads(self.troupe("bench", "nano.yaml", "--steps", "2", "--json", *forced).stdout)["times"]
        self.assertEqual((times["routing"], times["max_over_mean"]), ("forced", 1))
        told = self.troupe("train", "nano.yaml", *forced, "--set", "log.every=1", "--set", "checkpoint.dir=forced").stderr
        self.assertIn("model.moe.router.force is uniform", told)
        self.assertRegex(told, r"moe: .*FORCED ROUTING")
        lines = re.findall(r"(?m)^.*step \d+/40  loss.*$", told)
        self.assertEqual(len(lines), 40)
        for line in lines:
            self.assertTrue(line.endswith("  FORCED"), line)
        rows = [json.loads(line) for line in (self.folder / "forced" / "log.jsonl").read_text().split("\n")[:-1]]
        steps = [row for row in rows if "tokens_s" in row]
        self.assertEqual(len(steps), 40)
        self.assertEqual({row.get("forced") for row in steps}, {1})
        self.assertIn("FORCED", (self.folder / "forced" / "report.html").read_text())
        learned = self.troupe("train", "nano.yaml", "--set", "checkpoint.dir=learned").stderr
        self.assertNotIn("FORCED", learned)
        self.assertNotIn("forced", (self.folder / "learned" / "log.jsonl").read_text())
        self.assertNotIn("FORCED", (self.folder / "learned" / "report.html").read_text())

    def test_eval_scores_a_run_as_training_did(self):
        self.troupe("train", "nano.yaml", "--quiet")
        log = (self.folder / "run" / "log.jsonl").read_text()
        rows = [json.loads(line) for line in log.splitlines()]
        trained = [r for r in rows if r.get("event") == "eval"][-1]
        lines = self.troupe("eval", "run", "--json").stdout.splitlines()
        score = json.loads(lines[0])
        self.assertEqual((score["set"], score["step"]), ("valid.txt", 40))
        self.assertAlmostEqual(score["loss"], trained["val/loss"], places=6)
        self.assertAlmostEqual(score["bits_per_byte"], score["loss"] / math.log(2), places=4)
        older = json.loads(self.troupe("eval", "run/step-000020", "--json").stdout)
        self.assertEqual(older["step"], 20)
        self.assertGreater(older["loss"], score["loss"])
        (self.folder / "q.jsonl").write_text("".join(
            json.dumps({"query": "The cat sat on", "choices": choices, "gold": gold}) + "\n"
            for choices, gold in ((["the mat", "xq zvkw"], 0), (["qqq", "the"], 1))))
        out = self.troupe("eval", "run", "--tasks", "q.jsonl")
        self.assertIn("q.jsonl  accuracy 1.0000  per byte 1.0000  (2 questions)", out.stdout)
        self.troupe("eval", "run", "--set", "data.valid=[]", code=2)
        self.troupe("eval", "run/step-000030", code=4)
        self.troupe("eval", "nowhere", code=2)
        (self.folder / "q.jsonl").write_text('{"query": "x"}\n')
        self.troupe("eval", "run", "--tasks", "q.jsonl", code=3)

    def test_9_a_router_that_looks_ahead_learns_and_its_figures_say_so(self):
        sets = ("--set", "model.moe.router={kind: expert_choice}", "--set", "checkpoint.dir=ahead")
        said = self.troupe("train", "nano.yaml", *sets).stderr
        self.assertIn("not causal: the router expert_choice", said)
        lines = [json.loads(line) for line in (self.folder / "ahead" / "log.jsonl").read_text().split("\n")[:-1]]
        steps = [r for r in lines if "event" not in r and "loss" in r]
        self.assertLess(steps[-1]["loss"], 0.7 * steps[0]["loss"])
        self.assertEqual({r["moe/load"] for r in steps if "moe/load" in r}, {1})  # each expert has as many tokens as any
        scored = self.troupe("eval", "ahead", "--json")
        self.assertIn("not causal", scored.stderr)
        self.assertEqual(json.loads(scored.stdout.splitlines()[-1])["causal"], "no")
        self.assertIn("not causal", self.troupe("eval", "ahead").stdout)
        self.assertIn("not causal", self.troupe("generate", "ahead", "-p", "The cat", "-n", "4").stderr)
        self.troupe("train", "nano.yaml", "--quiet", "--set", "checkpoint.dir=behind")
        self.assertNotIn("causal", "".join(self.troupe("eval", "behind", "--json").stdout))

    def test_config_prints_explains_compares(self):
        printed = self.troupe("config", "print", "nano.yaml", "--set", "train.clip=2").stdout
        self.assertIn("  clip: 2  # --set train.clip=2", printed)
        (self.folder / "other.yaml").write_text(printed)
        out = self.troupe("config", "diff", "nano.yaml", "other.yaml", code=1)
        self.assertEqual(out.stdout, "train.clip: 1 -> 2\n")
        self.assertEqual(self.troupe("config", "diff", "other.yaml", "other.yaml").stdout,
                         "the same\n")
        text = self.troupe("config", "explain", "top_k").stdout
        self.assertIn("model.moe.top_k\n  Experts per token, K", text)
        self.assertIn("num_experts_per_tok", text)
        out = self.troupe("config", "explain", "no_such_thing_at_all", code=2)
        self.assertIn("E2003", out.stderr)
        out = self.troupe("check", "nano.yaml", "--set", "model.moe.num_experts=8", code=2)
        self.assertIn('here it is "model.moe.experts"', out.stderr)

    def accepts(self, schema, value):
        """As much of JSON schema as ours needs."""
        if "anyOf" in schema:
            return any(self.accepts(s, value) for s in schema["anyOf"])
        if "enum" in schema:
            return value in schema["enum"]
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        names = {"object": dict, "array": list, "string": str, "boolean": bool,
                 "integer": int, "number": (int, float), "null": type(None)}
        if "number" in types and isinstance(value, str) and re.fullmatch(r"[\d.]+e-?\d+", value):
            return True  # YAML 1.1 takes 1e-05 for a text, 1.2 and ours for a number
        if not any(isinstance(value, names[t]) and
                   (t == "boolean" or not isinstance(value, bool)) for t in types):
            return False
        if isinstance(value, dict):
            return all(k in schema["properties"] and self.accepts(schema["properties"][k], v)
                       for k, v in value.items())
        return not isinstance(value, list) or all(self.accepts(schema["items"], v) for v in value)

    def test_the_schema_takes_recipes_and_nothing_else(self):
        yaml = __import__("yaml")
        schema = json.loads(self.troupe("config", "schema").stdout)
        printed = self.troupe("config", "print", "nano.yaml").stdout
        self.assertTrue(self.accepts(schema, yaml.safe_load(printed)))
        self.assertFalse(self.accepts(schema, {"model": {"num_experts": 8}}))
        self.assertFalse(self.accepts(schema, {"train": {"steps": "many"}}))

    def test_doctor_and_selftest_say_ok(self):
        out = self.troupe("doctor", ".")
        for line in out.stdout.splitlines():
            self.assertRegex(line, r"^(ok  |warn|fail)  [^:]+: ")
        self.assertIn("processor", out.stdout)
        self.assertIn("ok    disk of no/such/folder", self.troupe("doctor", "no/such/folder").stdout)  # the run will make it
        self.assertIn("fail  disk of /proc/runs", self.troupe("doctor", "/proc/runs", code=7).stdout)
        out = self.troupe("doctor", ".", "--recipe", "nano.yaml", "--set", "model.moe.bias=true").stdout
        self.assertRegex(out, r"\n(ok  |warn)  experts: .*experts are not plain SwiGLU without biases")
        self.assertIn("no field", self.troupe("doctor", "--recipe", "nano.yaml", "--set", "no=1", code=2).stderr)

    def test_doctor_as_json_says_what_the_lines_say(self):
        words = "doctor", ".", "--recipe", "nano.yaml", "--ranks", "2"
        lines = self.troupe(*words).stdout.splitlines()
        told = json.loads(self.troupe(*words, "--json").stdout)
        self.assertTrue(told["ok"])
        self.assertEqual(len(told["findings"]), len(lines))
        for finding, line in zip(told["findings"], lines):
            self.assertTrue(line.startswith(f"{finding['verdict']:<6}{finding['what']}: "), line)
        told = json.loads(self.troupe("doctor", "/proc/runs", "--json", code=7).stdout)
        self.assertFalse(told["ok"])
        (failed,) = [f for f in told["findings"] if f["verdict"] == "fail"]
        self.assertEqual(failed["what"], "disk of /proc/runs")
        self.assertTrue(failed["cure"])
        out = self.troupe("selftest", "--device", "cpu", "--quiet")
        self.assertRegex(out.stdout, r"^selftest OK: 7 checks on cpu, [\d.]+ s\n$")

    def complete(self, *words):
        """What bash offers for the last of the words."""
        script = ('source <("$1" completion bash); shift; complete -p troupe >/dev/null || exit 9; '
                  'COMP_WORDS=(troupe "$@"); COMP_CWORD=$#; _troupe 2>/dev/null; '
                  'printf "%s\\n" "${COMPREPLY[@]}"')
        out = subprocess.run(["bash", "-c", script, "bash", str(TROUPE), *words],
                             capture_output=True, text=True, timeout=300)
        self.assertEqual(out.returncode, 0, out.stderr)
        return out.stdout.split()

    def test_bash_completes_verbs_options_and_fields(self):
        self.assertEqual(self.complete("tra"), ["train"])
        self.assertEqual(self.complete("convert", ""), ["recipe", "words", "--help", "-h"])
        self.assertEqual(self.complete("config", "ex"), ["explain"])
        self.assertIn("--assume-memory", self.complete("plan", "run.yaml", "--"))
        self.assertEqual(self.complete("train", "run.yaml", "--set", "model.moe.top"),
                         ["model.moe.top_k="])
        self.assertEqual(self.complete("config", "explain", "train.se"), ["train.seed"])
        self.troupe("completion", "fish", code=2)

    def complete_in_zsh(self, *lines):
        """What stands on the command line of a real zsh after the tab key, for each of the lines."""
        child, terminal = pty.fork()
        if child == 0:
            os.chdir(self.folder)
            os.execvpe("zsh", ["zsh", "-f", "-i"], dict(self.env, TERM="dumb", PS1="$ "))
        said, out = b"", []
        try:
            os.write(terminal, b"unsetopt zle_bracketed_paste; autoload -Uz compinit; compinit -u -D; path=(%s $path); "
                               b"source <(troupe completion zsh); print READ''Y\n" % str(TROUPE.parent.resolve()).encode())
            while b"READY" not in said:
                said += os.read(terminal, 65536)
            for line in lines:
                # To the line's beginning, and print what the tab made of it, in words.
                os.write(terminal, line.encode() + b"\t\x01print -r -- '<' \x05 '>'\n")
                said = b""
                while not (found := re.findall(rb"\n< (.*?) *>", said.replace(b"\r", b""))):
                    said += os.read(terminal, 65536)
                out.append(found[-1].decode())
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(terminal)
        return out

    @unittest.skipUnless(shutil.which("zsh"), "zsh is not installed")
    def test_zsh_completes_verbs_options_and_fields(self):
        wanted = {"troupe tra": "troupe train",
                  "troupe config ex": "troupe config explain",
                  "troupe plan run.yaml --assume-m": "troupe plan run.yaml --assume-memory",
                  "troupe train run.yaml --set model.moe.top": "troupe train run.yaml --set model.moe.top_k=",
                  "troupe config explain train.se": "troupe config explain train.seed",
                  "troupe check nan": "troupe check nano.yaml"}
        self.assertEqual(self.complete_in_zsh(*wanted), list(wanted.values()))


if __name__ == "__main__":
    unittest.main()
