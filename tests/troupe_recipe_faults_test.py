"""Recipes, machines and files that no run can begin with: the exit class, and what is said. Rows of
docs/reference/RELIABILITY.md."""
import json
import os
import re
import struct
import subprocess
import unittest

from nano_run import ALONE, NANO, TROUPE, NanoRun

# A field's name, and how others or a slip of the finger write it.
TYPOS = {
    "model.layers": ["layer", "num_layers", "laeyrs", "n_layers"],
    "model.width": ["widht", "hidden_size", "Width"],
    "model.vocab": ["vocab_size", "vocb"],
    "model.kv_heads": ["kv-heads", "num_key_value_heads", "kvheads"],
    "model.moe.experts": ["expert", "num_experts", "num-experts", "moe_num_experts"],
    "model.moe.top_k": ["topk", "top-k", "num_experts_per_tok", "moe_top_k"],
    "train.steps": ["step", "train_iters", "stepz"],
    "train.clip": ["clp", "clip_grad"],
    "train.global_batch": ["global-batch", "globl_batch", "batch"],
    "train.optimizer.lr": ["learning_rate", "Lr"],
}


class TroupeRecipeFaults(NanoRun):
    def check(self, text, code=2):
        (self.folder / "bad.yaml").write_text(text)
        with self.work_below(10):
            return self.troupe("check", "bad.yaml", code=code).stderr

    def test_check_as_json_has_the_numbers_or_all_faults(self):
        told = json.loads(self.troupe("check", "nano.yaml", "--assume-memory", "4GiB", "--json").stdout)
        self.assertEqual((told["ok"], told["faults"], told["warnings"]), (True, [], []))
        text = self.troupe("check", "nano.yaml", "--assume-memory", "4GiB").stdout
        self.assertIn(f"model  {told['params']} parameters, {told['active_params']} active", text)
        self.assertIn(f"run    {told['steps']} steps, {told['tokens']} tokens", text)
        self.assertIn(f"data   {told['data'][0]['name']}: {told['data'][0]['tokens']} tokens", text)
        small = json.loads(self.troupe("check", "nano.yaml", "--assume-memory", "1MiB", "--json", code=7).stdout)
        self.assertFalse(small["ok"])
        self.assertGreater(small["memory"], small["available"])
        self.assertIn("7006", small["warnings"][0])
        words = "check", "nano.yaml", "--set", "model.widht=64", "--set", "train.steps=many"
        said = self.troupe(*words, code=2).stderr
        out = self.troupe(*words, "--json", code=2)
        told = json.loads(out.stdout)
        self.assertEqual((told["ok"], out.stderr), (False, ""))
        self.assertEqual(told["faults"], said.splitlines())
        self.assertEqual(len(told["faults"]), 2)

    def test_F76_bad_yaml_is_told_with_line_and_column(self):
        for text, what in [("model: {layers: 2\n", "bad.yaml:1:"), ("model:\n\tlayers: 2\n", "bad.yaml:2:"),
                           ("train: {steps: 2, steps: 3}\n", "E2002"), ("a: 'b\n", "bad.yaml:"),
                           ("[" * 100000, "bad.yaml"), ("x: &a [*a]\n", "bad.yaml:1"),
                           ("a: &a [x,x,x,x,x,x,x,x]\n" + "".join(
                               f"{b}: &{b} [{','.join(['*' + a] * 8)}]\n" for a, b in zip("abcdefghi", "bcdefghij")), "bad.yaml"),
                           ("# " + "x" * (20 << 20), "bad.yaml")]:
            said = self.check(text)
            self.assertIn(what, said[:2000], text[:40])
            self.assertRegex(said, r"^bad.yaml.*: E200[1237] ")

    def test_F77_typos_and_foreign_names_lead_to_the_field(self):
        wrong = []
        for path, typos in TYPOS.items():
            section, name = path.rsplit(".", 1)
            for typo in typos:
                said = self.troupe("check", "nano.yaml", "--set", f"{section}.{typo}=3", code=2).stderr
                hints = re.findall(r'"([\w.]+)"', said.replace(f'"{typo}"', ""))
                if not hints or not path.endswith(hints[0].rsplit(".", 1)[-1]):
                    wrong.append((typo, said))
        self.assertGreaterEqual(sum(map(len, TYPOS.values())), 30)
        self.assertLessEqual(len(wrong), 3, wrong)
        said = self.check(NANO.replace("global_batch: 8", "global_batch: 8, lr: 1e-3"))
        self.assertIn('belongs under "train.optimizer"', said.replace("it belongs", "belongs"))

    def test_F79_seven_faults_are_seven_lines(self):
        said = self.check(NANO.replace("heads: 4", "heads: 5").replace("top_k: 2", "top_k: 9").replace(
            "lr: 3e-3", "lr: -1").replace("steps: 20", "steps: 20, micro_batch: 3, clip: -1").replace(
            "device: cpu", "device: cpu, threads: -1") + "parallel: {pipeline: -1}\n")
        self.assertEqual(len(re.findall(r"E\d{4} ", said)), 7, said)
        for what in ("heads", "top_k", "lr", "micro_batch", "clip", "threads", "parallel.pipeline"):
            self.assertIn(what, said)

    def test_F79_faults_of_words_and_of_values_are_told_together(self):
        said = self.check(NANO.replace("experts: 4", "expert: 4").replace("heads: 4", "heads: 5").replace(
            "steps: 20", "steps: 20, clip: -1"))
        self.assertEqual(len(re.findall(r"E\d{4} ", said)), 3, said)
        for what in ('no field "expert" in model.moe; did you mean "experts"?', "heads", "clip"):
            self.assertIn(what, said)
        # One error for a misspelled key: no second one about its value, nor about the right key as missing.
        for nano, word in ((NANO.replace("width: ", "widht: "), "widht"), (NANO.replace("experts: 4", "expert: 1"), "expert")):
            self.assertNotEqual(nano, NANO)
            self.assertEqual(len(re.findall(r"E\d{4} ", said := self.check(nano))), 1, said)
            self.assertIn(f'no field "{word}"', said)
        said = self.check(NANO.replace("width: 32", "widht: 3"))
        self.assertEqual(len(re.findall(r"E\d{4} ", said)), 1, said)
        # A value that cannot be read has one line, and none of what its default would be.
        said = self.check(NANO.replace("top_k: 2", "top_k: two").replace("steps: 20", "steps: 20, clip: -1"))
        self.assertEqual(len(re.findall(r"E\d{4} ", said)), 2, said)

    def test_check_warns_of_what_is_hardly_meant(self):
        (self.folder / "few.txt").write_text("The cat sat on the mat. " * 20)
        ran = self.troupe("check", "nano.yaml", "--set", "train.optimizer.lr=1000", "--set",
                          "data.valid=[{kind: text, path: few.txt}]", "--set", "run.device=cuda", CUDA_VISIBLE_DEVICES="")
        self.assertIn("W2005 train.optimizer.lr 1000 is far above what adamw trains with", ran.stderr)
        self.assertRegex(ran.stderr, r"W3103 data\.valid \S+ has about \d+ tokens: losses of so few say little")
        self.assertIn("W7101 run.device: cuda ends with E7101 here, because ", ran.stderr)
        self.assertIn("ok\n", ran.stdout)
        self.assertNotRegex(self.troupe("check", "nano.yaml").stderr, "W2005|W3103")

    def test_97_matrices_are_not_shared_by_one_rank(self):
        for key in ("tensor", "expert_tensor"):
            said = self.troupe("train", "nano.yaml", "--set", f"parallel.{key}=2", code=2).stderr
            self.assertIn(f"parallel.{key}: E2005 2 ranks, and there is one", said)

    def test_97_check_lists_all_that_a_layout_gets_wrong_with_what_fits(self):
        check = lambda code, *sets: self.troupe("check", "nano.yaml", *[w for s in sets for w in (
            s.split() if s.startswith("--") else ("--set", f"parallel.{s}"))], code=code)
        said = check(2, "tensor=3", "context=5", "context_method=heads", "pipeline=2").stderr
        for what in ("parallel.tensor: E2005 4 query heads of layer 0 do not divide over 3 ranks; use 2 or 4",
                     "parallel.context: E2005 rows of ", "cannot be cut into 2 x 5 chunks; use context ",
                     "parallel.context_method: E2005 heads: "):
            self.assertIn(what, said)
        self.assertIn("ranks  a multiple of 4: tensor 2 x context 1 x pipeline 2 x data 1, experts over ",
                      check(0, "tensor=2", "pipeline=2").stdout)
        said = check(2, "--ranks 12", "tensor=2", "pipeline=2", "data=4", "expert=5").stderr
        for what in ("parallel.data: E2005 tensor 2 x pipeline 2 x data 4 are 16 ranks; there are 12: data 3, or 16 ranks",
                     "parallel.expert: E2005 5 does not divide the 6 ranks of a stage; use 3 or 6",
                     "parallel.expert: E2005 4 experts on 5 ranks: neither divides the other; use "):
            self.assertIn(what, said)
        self.assertIn(": 8 stages for 2 layers, embedding and head: at most 4", check(2, "pipeline=8").stderr)

    def test_F81_set_is_stronger_than_the_file_and_the_source_is_shown(self):
        said = self.troupe("config", "print", "nano.yaml", "--set", "train.steps=7").stdout
        self.assertIn("steps: 7  # --set train.steps=7", said)
        self.assertRegex(said, r"global_batch: 8  # nano.yaml:\d")
        self.assertRegex(said, r"  clip: 1(  # default)?\n")
        two = ["--set", "train.steps=7", "--set", "train.steps=9"]
        self.assertIn("steps: 9  #", self.troupe("config", "print", "nano.yaml", *two).stdout)

    def test_F81_a_recipe_may_stand_on_another(self):
        (self.folder / "small.yaml").write_text("base: nano.yaml\ntrain: {steps: 7, global_batch: 4}\n")
        (self.folder / "sub").mkdir()
        (self.folder / "deep.yaml").write_text("base: sub/middle.yaml\nmodel: {layers: 3}\n")
        (self.folder / "sub/middle.yaml").write_text("base: leaf.yaml\nmodel: {width: 64}\n")
        (self.folder / "sub/leaf.yaml").write_text(NANO)
        said = self.troupe("config", "print", "small.yaml", "--set", "train.steps=9").stdout
        self.assertIn("steps: 9  # --set train.steps=9", said)
        self.assertIn("global_batch: 4  # small.yaml:2", said)
        self.assertRegex(said, r"width: 32  # nano.yaml:\d")
        self.assertNotRegex(said, "(?m)^base:")
        said = self.troupe("config", "print", "deep.yaml").stdout
        self.assertIn("layers: 3  # deep.yaml:2", said)
        self.assertIn("width: 64  # sub/middle.yaml:2", said)
        self.troupe("train", "small.yaml")
        self.assertEqual(max(self.losses()), 7)
        for base, what in (("../nano.yaml", "without .."), (f"{self.folder}/nano.yaml", "without .."),
                           ("small.yaml", "or on itself"), ("[a]", "names a file"), ("no.yaml", "no.yaml")):
            (self.folder / "small.yaml").write_text(f"base: {base}\n")
            said = self.troupe("check", "small.yaml", code=2).stderr
            self.assertIn(what, said)
            self.assertRegex(said, r"E20\d\d")
        (self.folder / "small.yaml").write_text("base: nano.yaml\ntrain: {stepz: 7}\n")
        (self.folder / "nano.yaml").write_text(NANO.replace("heads", "headz"))
        said = self.troupe("check", "small.yaml", code=2).stderr
        self.assertIn("small.yaml:2", said)
        self.assertIn("nano.yaml:2", said)

    def test_F173_a_base_that_is_a_link_out_of_the_folder_is_refused(self):
        (self.folder / "in").mkdir()
        (self.folder / "mine.yaml").write_text("secret: words of mine\n")
        (self.folder / "in/link.yaml").symlink_to("../mine.yaml")
        (self.folder / "in/there").symlink_to("..")
        (self.folder / "in/near.yaml").symlink_to("nano.yaml")
        (self.folder / "in/nano.yaml").write_text(NANO)
        for base in ("link.yaml", "there/mine.yaml"):
            (self.folder / "in/own.yaml").write_text(f"base: {base}\n")
            said = self.troupe("check", "in/own.yaml", code=2).stderr
            self.assertIn("is a link that leads out of the recipe's folder", said)
            self.assertNotIn("words of mine", said)
        (self.folder / "in/own.yaml").write_text("base: near.yaml\n")
        self.assertIn("width: 32", self.troupe("config", "print", "in/own.yaml").stdout)
        self.command(["sh", "-c", f"cd in && {TROUPE} config print own.yaml"], 0)

    def test_F171_what_a_terminal_obeys_is_not_shown(self):
        for name, text in (("esc.yaml", b"model: {layers: \x1b]0;owned\x07}\n"),
                           ("c1.yaml", b"model: {lay\xc2\x9b31mers: 1}\n"), ("key.yaml", b"\x1b[2J\x1b[31m: 1\n")):
            (self.folder / name).write_bytes(text)
            said = self.troupe("check", name, code=2).stderr
            self.assertNotRegex(said, "[\x00-\x08\x0b-\x1f\x7f\x80-\x9f]")
        (self.folder / "x\x1b[31m.txt").write_text("The cat sat on the mat. " * 300)
        said = self.train("data.train=[{kind: text, path: \"x\\e[31m.txt\"}]", "train.steps=2")
        self.assertNotRegex(said, "[\x00-\x08\x0b-\x1f\x7f\x80-\x9f]")

    def test_F171_names_in_files_are_shown_to_a_terminal_and_not_obeyed(self):
        header = json.dumps({"gewicht-ü\x1b]0;owned\x07\x9b31m": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}},
                            ensure_ascii=False).encode()
        (self.folder / "x.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
        (self.folder / "machine.yaml").write_text('name: "big\\e]0;owned\\a"\nproducts: 1e12\nbandwidth: 1e11\ninside: {bandwidth: 1e10}\n')
        for words, name in ((("inspect", "x.safetensors"), "gewicht-ü"),
                            (("plan", "nano.yaml", "--ranks", "2", "--machine", "machine.yaml"), "big")):
            with self.subTest(words[0]):
                self.assertIn(name + "\x1b]0;owned\x07", self.troupe(*words).stdout)  # to a pipe
                said = self.on_terminal(*words)
                self.assertIn((name + "\ufffd]0;owned\ufffd").encode(), said)
                self.assertNotRegex(said.replace(b"\r\n", b"\n").decode(), "[\x00-\x08\x0b-\x1f\x7f-\x9f]")

    def test_F172_a_folder_whose_name_is_no_utf8_leaves_json_that_is(self):
        name = os.fsdecode(b"run-\xff\xe9")
        self.command(["sh", "-c", "exec \"$0\" train nano.yaml --set checkpoint.dir=\"$(printf 'run-\\377\\351')\" "
                      "--set train.steps=2", TROUPE], 0)
        for file in ("exit.json", "env.json"):
            json.loads((self.folder / name / file).read_bytes().decode())
        self.assertIn("run-\ufffd", (self.folder / name / "exit.json").read_text())
        for line in (self.folder / name / "log.jsonl").read_bytes().decode().splitlines():
            json.loads(line)

    def test_F82_a_run_that_cannot_fit_stops_before_it_allocates(self):
        said = self.troupe("check", "nano.yaml", "--assume-memory", "40MiB", code=7)
        self.assertIn("it will not fit", said.stderr)
        big = "model={layers: 400, width: 16384, heads: 64, vocab: 256, max_positions: 64}"
        said = self.train(big, code=7)
        self.assertRegex(said, r"model, train: E7006 memory \d+\.\d of [\d.]+ GiB: it will not fit. Cheapest: ")
        self.assertEqual(self.steps(), [])

    def test_F107_a_device_that_is_not_here_is_class_7_with_a_hint(self):
        said = self.troupe("train", "nano.yaml", "--set", "run.device=cuda", code=7, CUDA_VISIBLE_DEVICES="").stderr
        self.assertIn("E7101", said)
        self.assertIn("run.device=cpu", said)
        self.assertEqual(self.steps(), [])

    def test_F108_memory_that_runs_out_is_class_7_with_its_place(self):
        # Two million tokens at a time, whose queries alone the limit of the process does not hold.
        big = ["model={layers: 1, width: 64, heads: 4, vocab: 256, ffn: 64, max_positions: 65536}",
               "data={train: [{kind: mock}], sequence: 65536}", "train.global_batch=32", "train.micro_batch=32"]
        words = " ".join(f"--set '{s}'" for s in big)
        ran = self.command(["bash", "-c", f"ulimit -v 2000000; exec {TROUPE} train nano.yaml {words} --force"], 7)
        self.assertRegex(ran.stderr, r"step 1, forward 2/3: E7006 out of memory: ")
        self.assertIn("Forecast: ", ran.stderr)
        self.assertEqual((self.exit_record()["code"], self.exit_record()["error"]), (7, "E7006"))

    @unittest.skipUnless(ALONE, "needs a mount name space")
    def test_F109_the_control_groups_limits_are_what_counts(self):
        group = "mount -t tmpfs t /sys/fs/cgroup; echo 50000000 >/sys/fs/cgroup/memory.max; echo '100000 100000' >/sys/fs/cgroup/cpu.max; unset OMP_NUM_THREADS; "
        said = self.shell(group + "$TROUPE train nano.yaml", code=7).stderr
        self.assertIn("of 0.05 GiB: it will not fit", said)
        said = self.shell(group + "echo 8000000000 >/sys/fs/cgroup/memory.max; $TROUPE train nano.yaml --set train.steps=3").stderr
        self.assertIn("device cpu, 1 threads", said)

    @unittest.skipUnless(ALONE, "needs a mount name space")
    def test_F110_a_small_shared_memory_is_a_warning_with_the_cure(self):
        said = self.shell("mount -t tmpfs -o size=64m t /dev/shm; $TROUPE doctor .").stdout
        line = next(text for text in said.splitlines() if "/dev/shm" in text)
        self.assertTrue(line.startswith("warn"), line)
        self.assertIn("--shm-size", line)

    def test_F138_pipes_and_devices_are_refused_and_never_block(self):
        os.mkfifo(self.folder / "pipe")
        self.assertIn("pipe", self.troupe("check", "pipe", code=2).stderr)
        self.assertIn("E3001", self.train("data.train=[{kind: text, path: pipe}]", code=3))
        self.assertIn("E3001", self.train("data.train=[{kind: text, path: /dev/zero}]", code=3))
        self.train("train.steps=5")
        manifest = self.folder / "run" / "step-000005" / "manifest.json"
        manifest.unlink()
        os.mkfifo(manifest)
        self.assertIn("step 5", self.train(code=4))

    def test_F139_the_program_has_no_way_to_open_a_pickle(self):
        for name in ("troupe", "libtroupe.so", "libtroupe_train.so"):
            names = subprocess.run(["nm", "-DC", "--undefined-only", TROUPE.parent / name], capture_output=True,
                                   text=True, check=True).stdout
            self.assertIn("std::", names)
            self.assertNotRegex(names, r"(?i)unpickle|pickle_load|jit::load|jit::Unpickler|PyRun|import_ir")

    def test_F141_a_planted_link_is_never_followed(self):
        victim = self.folder / "victim"
        victim.write_text("mine")
        (self.folder / "run").mkdir()
        for name in ("recipe.yaml", "env.json", "exit.json", "latest"):
            (self.folder / "run" / name).symlink_to(victim)
        for name in ("log.jsonl", "log.txt"):
            (self.folder / "run" / name).symlink_to(victim)
        said = self.train("train.steps=5")
        self.assertEqual(victim.read_text(), "mine")
        self.assertIn("log.jsonl: lines are lost", said)
        self.assertIn("log.txt: log lines are lost: it is a link", said)
        self.assertFalse((self.folder / "run" / "exit.json").is_symlink())
        (self.folder / "other").mkdir()
        (self.folder / "other" / "lock").symlink_to(victim)
        self.train("checkpoint.dir=other", code=2)

    def test_F142_variables_that_nothing_reads_are_told(self):
        said = self.troupe("check", "nano.yaml", TROUPE_FAUTL="x", TROUPE_SEED="3", TROUPE_DEVICE="cuda", TROUPE_LR="1",
                           TROUPE_BUILDS="x", TROUPE_PYTHON="python3").stderr
        self.assertIn("TROUPE_FAUTL is not read; there is TROUPE_FAULT", said)
        self.assertEqual(said.count(" is not read; "), 5, said)
        self.assertIn("TROUPE_FAULT is set", self.train("train.steps=3", TROUPE_FAULT="prune=sleep:1"))

    def test_F144_a_runs_files_hold_no_secret(self):
        secret = "data.train=[{kind: text, path: 'https://me:hunter2@host/text.txt'}]"
        said = self.train(secret, code=3, AWS_SECRET_ACCESS_KEY="hunter2", HF_TOKEN="hunter2")
        self.assertIn("E3001", said)
        self.train("train.steps=3", "eval.prompts=['https://me:hunter2@host']",
                   HF_TOKEN="hunter2", TROUPE_FAULT="exit=sleep:1")
        files = [p for p in (self.folder / "run").iterdir() if p.is_file()]
        self.assertGreater(len(files), 5)
        for file in files:
            self.assertNotIn(b"hunter2", file.read_bytes(), file.name)

    def test_F145_a_long_line_is_masked_and_crashes_nothing(self):
        """An address of 60,000 letters: in a comment, in --set, in what an error repeats."""
        long = "x://" + "a" * 60000
        (self.folder / "nano.yaml").write_text(f"# {long}\n{NANO}")
        self.train("train.steps=3")
        self.assertIn(long, (self.folder / "run/given.yaml").read_text())
        bucket = "s3://" + "a" * 60000  # and no key
        said = self.train(f"data.train=[{{kind: text, path: '{bucket}'}}]", "checkpoint.dir=error", code=3)
        self.assertIn("E3001", said)
        record = self.exit_record("error")
        self.assertEqual((record["code"], record["error"]), (3, "E3001"))
        self.assertIn(bucket, record["message"])
        said = self.train(f"model.moe.layers='[1]{long}'", code=2)
        self.assertIn("E2005", said)
        self.train(f"eval.prompts=['{long} http://me:hunter2@host']", "train.steps=3", "checkpoint.dir=prompt", "--force")
        self.assertNotIn("hunter2", (self.folder / "prompt/recipe.yaml").read_text())

    def test_F153_one_number_neither_hangs_nor_fills_the_memory(self):
        """A recipe, a config.json and a machine file: the error has the number's place, before anything is made with it."""
        (self.folder / "machine.yaml").write_text("products: 1e12\nbandwidth: 1e11\ninside: {bandwidth: 1e10}\nranks_per_host: 9223372036854775807\n")
        (self.folder / "theirs").mkdir()
        (self.folder / "theirs/model.safetensors").write_bytes(b"\x02" + bytes(7) + b"{}")
        huge = 2**63 - 1
        numbers = ["model.layers=10000", *(f"{field}={huge}" for field in (
            "model.layers", "model.heads", "model.kv_heads", "model.vocab", "model.width", "model.moe.experts", "model.moe.top_k",
            "model.moe.hidden", "model.mtp.depth", "train.global_batch", "train.micro_batch", "train.steps", "data.sequence",
            "parallel.expert")),
                   f"train.batch_ramp={{start: 1, increment: 1, samples: {huge}}}", "run.machine=machine.yaml"]
        for number in numbers:
            with self.work_below(10):
                ran = self.command(["bash", "-c", f"ulimit -v 3000000; exec {TROUPE} check nano.yaml --set '{number}'"], 2)
            self.assertRegex(ran.stderr, r"E200\d", number)
            self.assertRegex(ran.stderr, r"at most|is not between|goes from start", number)
        for key in ("num_hidden_layers", "num_attention_heads", "num_local_experts", "vocab_size", "hidden_size"):
            (self.folder / "theirs/config.json").write_text('{"model_type": "mixtral", "%s": %d}' % (key, huge))
            with self.work_below(10):
                said = self.command(["bash", "-c", f"ulimit -v 3000000; exec {TROUPE} import theirs ours"], 4).stderr
            self.assertIn(key, said)
            self.assertIn("too large", said)

    def test_F153_a_size_that_no_model_has_is_told_with_its_key(self):
        sizes = {"mixtral": ["hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size",
                             "num_hidden_layers", "vocab_size", "max_position_embeddings", "num_local_experts"],
                 "gpt2": ["n_embd", "n_head", "n_layer", "n_inner"],
                 "dbrx": ["d_model", "n_heads", "attn_config.kv_n_heads", "ffn_config.ffn_hidden_size"],
                 "deepseek_v3": ["kv_lora_rank", "qk_rope_head_dim", "v_head_dim", "moe_intermediate_size"],
                 "qwen2_moe": ["shared_expert_intermediate_size"]}
        wrong = [(family, key, number) for family, keys in sizes.items() for key in keys for number in (0, -1)]
        wrong += [("mixtral", "vocab_size", 2**31), ("mixtral", "num_local_experts", 2**17),
                  ("deepseek_v3", "first_k_dense_replace", 1000), ("mixtral", "head_dim", -8)]
        (self.folder / "theirs").mkdir()
        (self.folder / "theirs/model.safetensors").write_bytes(b"\x02" + bytes(7) + b"{}")
        for family, key, number in wrong:
            section, name = key.split(".") if "." in key else ("", key)
            config = {section: {name: number}} if section else {name: number}
            (self.folder / "theirs/config.json").write_text(json.dumps(dict(config, model_type=family)))
            said = self.troupe("import", "theirs", "ours", code=4).stderr
            self.assertIn(f"theirs/config.json: {key}: E4008 is {number}", said)
        (self.folder / "theirs/config.json").write_text(json.dumps(
            {"model_type": "mixtral", "num_hidden_layers": 1024, "num_local_experts": 65536}))
        ran = self.command(["bash", "-c", f"ulimit -v 3000000; exec {TROUPE} import theirs ours"], 4)
        self.assertIn("num_local_experts: E4008 is 65536 in 1024 layers; at most 262144", ran.stderr)

    def assert_same_in(self, locale, **more):
        """As in the locale C, in a process that has taken its environment's locale over, as a library may."""
        (self.folder / "taken.c").write_text("""
            #include <locale.h>
            #include <stdio.h>
            __attribute__((constructor)) static void take(void) {
              setlocale(LC_ALL, "");
              fprintf(stderr, "half is %.1f\\n", 0.5);
            }""")
        self.command(["cc", "-shared", "-fPIC", "-o", "taken.so", "taken.c"], 0)
        self.train("checkpoint.dir=a", LC_ALL="C")
        said = self.train("checkpoint.dir=b", LC_ALL=locale, LANG=locale, LD_PRELOAD=str(self.folder / "taken.so"), **more)
        self.assert_equal_runs("a", "b")
        recipes = [(self.folder / r / "recipe.yaml").read_text().splitlines() for r in "ab"]
        self.assertEqual(*([line for line in lines if "checkpoint.dir" not in line] for lines in recipes))
        for record in self.records("b"):  # a comma would be no JSON
            self.assertNotIn(",", str(record.get("loss", "")))
        return said

    def test_F136_numbers_are_the_same_in_a_locale_of_utf8(self):
        self.assertIn("half is 0.5", self.assert_same_in("C.utf8"))

    def test_F136_numbers_are_the_same_where_a_comma_is_the_point(self):
        made = subprocess.run(["localedef", "-i", "de_DE", "-f", "UTF-8", "./de_DE.UTF-8"], cwd=self.folder,
                              capture_output=True, check=False)
        if not (self.folder / "de_DE.UTF-8" / "LC_NUMERIC").exists():
            self.skipTest(f"no German locale can be made here: {made.stderr}")
        self.assertIn("half is 0,5", self.assert_same_in("de_DE.UTF-8", LOCPATH=str(self.folder)))

    def test_F135_a_clock_that_jumps_changes_no_duration(self):
        (self.folder / "jump.c").write_text("""
            #define _GNU_SOURCE
            #include <dlfcn.h>
            #include <time.h>
            int clock_gettime(clockid_t id, struct timespec* t) {  // an hour back at each question
              static long asked;
              int (*real)(clockid_t, struct timespec*) = dlsym(RTLD_NEXT, "clock_gettime");
              int status = real(id, t);
              if (id == CLOCK_REALTIME) t->tv_sec -= 3600 * ++asked;
              return status;
            }""")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", "jump.so", "jump.c", "-ldl"], cwd=self.folder, check=True)
        said = self.train("checkpoint.dir=b", LD_PRELOAD=str(self.folder / "jump.so"))
        self.train("checkpoint.dir=a")
        self.assert_equal_runs("a", "b")
        rows = [r for r in self.records("b") if "event" not in r]
        self.assertLess(rows[-1]["time"], rows[0]["time"])  # the clock did jump
        for row in rows:
            self.assertTrue(0 < row["step_s"] < 10 and row["tokens_s"] > 0, row)
        self.assertRegex(said, r"finished 20 steps, 5.1k tokens in \d+s")


if __name__ == "__main__":
    unittest.main()
