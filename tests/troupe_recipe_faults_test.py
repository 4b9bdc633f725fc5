"""Recipes, machines and files that no run can begin with: the exit class, and what is said. Rows of
docs/RELIABILITY.md."""
import os
import re
import subprocess
import time
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
        begin = time.monotonic()
        said = self.troupe("check", "bad.yaml", code=code).stderr
        self.assertLess(time.monotonic() - begin, 10)
        return said

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
            "device: cpu", "device: cpu, threads: -1") + "parallel: {tensor: 2}\n")
        self.assertEqual(len(re.findall(r"E\d{4} ", said)), 7, said)
        for what in ("heads", "top_k", "lr", "micro_batch", "clip", "threads", "parallel.tensor"):
            self.assertIn(what, said)

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
        self.assertNotIn("base", said)
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

    def test_F82_a_run_that_cannot_fit_stops_before_it_allocates(self):
        said = self.troupe("check", "nano.yaml", "--assume-memory", "100MiB", code=7)
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
        group = "mount -t tmpfs t /sys/fs/cgroup; echo 120000000 >/sys/fs/cgroup/memory.max; echo '100000 100000' >/sys/fs/cgroup/cpu.max; unset OMP_NUM_THREADS; "
        said = self.shell(group + "$TROUPE train nano.yaml", code=7).stderr
        self.assertIn("of 0.11 GiB: it will not fit", said)
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
        (self.folder / "run" / "log.jsonl").symlink_to(victim)
        said = self.train("train.steps=5")
        self.assertEqual(victim.read_text(), "mine")
        self.assertIn("log.jsonl: lines are lost", said)
        self.assertFalse((self.folder / "run" / "exit.json").is_symlink())
        (self.folder / "other").mkdir()
        (self.folder / "other" / "lock").symlink_to(victim)
        self.train("checkpoint.dir=other", code=2)

    def test_F142_variables_that_nothing_reads_are_told(self):
        said = self.troupe("check", "nano.yaml", TROUPE_FAUTL="x", TROUPE_SEED="3", TROUPE_DEVICE="cuda", TROUPE_LR="1",
                           TROUPE_BUILDS="x").stderr
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

    def test_F136_numbers_are_the_same_in_any_locale(self):
        self.train("checkpoint.dir=a", LC_ALL="C")
        names = subprocess.run(["locale", "-a"], capture_output=True, text=True, check=False).stdout.split()
        comma = next((n for n in names if n.startswith(("de_", "fr_", "es_"))), "C.utf8")
        self.train("checkpoint.dir=b", LC_ALL=comma, LANG=comma)
        self.assert_equal_runs("a", "b")
        recipes = [(self.folder / r / "recipe.yaml").read_text().splitlines() for r in "ab"]
        self.assertEqual(*([line for line in lines if "checkpoint.dir" not in line] for lines in recipes))

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
