"""Small files that ask for far more memory or time than they hold: refused by name, or read in time. Each has the size
that once took gigabytes or half a minute; the bounds are ten times what is usual, start of the program included."""
import json
import struct
import unittest

from nano_run import TROUPE, NanoRun

MEGATRON = "python pretrain_gpt.py --num-layers 4 --hidden-size 96"


class Bombs(NanoRun):
    def bounded(self, *words, code=0, gigabytes=3, seconds=10):
        """Within that processor time and address space, half of which the libraries take."""
        script = f"ulimit -v {gigabytes * 1000000}; exec \"$0\" \"$@\""
        with self.work_below(seconds):
            return self.command(["bash", "-c", script, TROUPE, *words], code)

    def converted(self, name, text, code=2):
        (self.folder / name).write_text(text)
        return self.bounded("convert", "recipe", name, code=code).stderr

    def test_F76_a_long_text_that_aliases_repeat_is_refused(self):
        (self.folder / "bad.yaml").write_text('a: &a "%s"\nb: [%s]\n' % ("x" * 1000000, ", ".join(["*a"] * 5000)))
        self.assertRegex(self.bounded("check", "bad.yaml", code=2).stderr, r"^bad.yaml:\d: E2001 more text than 8388608 bytes")

    def test_F76_a_long_text_that_names_repeat_is_refused(self):
        keys = "".join(f"k{i}: ${{a}}\n" for i in range(3000))
        said = self.converted("run.yaml", f"model: {{name: mpt_causal_lm}}\na: \"{'x' * 1000000}\"\n{keys}")
        self.assertRegex(said, r"^run.yaml:\d+: E2005 the values and the paths to them grow over 16 MiB")
        # A key of a megabyte is in the path of each below it.
        long = "k" * 120000
        said = self.converted("run.yaml", f"model: {{name: mpt_causal_lm}}\n? {long}\n: {{{', '.join(f'a{i}: 1' for i in range(5000))}}}\n")
        self.assertIn("grow over 16 MiB", said[:200])

    def test_F159_thousands_of_unknown_keys_are_told(self):
        keys = [f"{'unknown_' * 27}{i:04}" for i in range(9000)]
        (self.folder / "bad.yaml").write_text("".join(f"{key}: 1\n" for key in keys))
        said = self.bounded("check", "bad.yaml", code=2).stderr
        self.assertEqual(said.count("E2003"), 9000)
        said = self.converted("run.yaml", "model: {name: mpt_causal_lm}\n" + "".join(f"{key}: 1\n" for key in keys))
        self.assertEqual(said.count("not a key that is known here"), 9000)
        # The first ones get a guess, whatever follows.
        many = "".join(f"train_i{i:04}s: 1\n" for i in range(9990))
        (self.folder / "bad.yaml").write_text("tran: 1\n" + many)
        self.assertIn('did you mean "train"', self.bounded("check", "bad.yaml", code=2).stderr)
        self.assertIn("did you mean max_duration", self.converted("run.yaml", "model: {name: mpt_causal_lm}\nmax_duratoin: 1\n" + many))
        said = self.converted("run.sh", MEGATRON + " --num-expert 4" + "".join(f" --train-i{i:04}s 1" for i in range(4000)))
        self.assertIn("did you mean --num-experts", said)

    def test_F159_a_config_of_80000_keys_is_imported_and_exported_with_them(self):
        self.train("train.steps=3", "--quiet")
        self.troupe("export", "run", "hub", "--dtype", "float32")
        config = json.loads((self.folder / "hub/config.json").read_text())
        more = {f"unknown_{i}": i for i in range(80000)} | {"id2label": {str(i): "x" for i in range(80000)}}
        (self.folder / "hub/config.json").write_text(json.dumps(config | more))
        said = self.bounded("import", "hub", "ours", gigabytes=6)
        self.assertIn("unknown_79999", said.stdout + said.stderr)
        self.bounded("export", "ours", "again", gigabytes=6)
        again = json.loads((self.folder / "again/config.json").read_text())
        self.assertEqual([key for key in again if key in more and key != "id2label"], list(more)[:-1])
        self.assertEqual(again["id2label"], more["id2label"])

    def test_F159_a_script_takes_time_in_proportion_to_its_length(self):
        flags = "\n" + MEGATRON + "\n"
        signs = "[[ " + "! " * 200000 + "x ]] && A=1" + flags
        self.assertIn("--hidden-size 96 -> model.width: 96", self.converted("run.sh", signs, code=8))
        words = "set -- " + "x " * 19000
        count = words + "\nfor ((i = 0; i < 15000; i++)); do B=$#; done\n" + flags.replace("96", "$((B - 18904))")
        self.assertIn("--hidden-size 96 -> model.width: 96", self.converted("run.sh", count, code=8))
        for bomb in (words + "\nwhile [ $# -gt 0 ]; do shift; done",
                     words + "\nfor ((i = 0; i < 15000; i++)); do for x; do break; done; done",
                     "A=" + "x" * 500000 + "\nfor ((i = 0; i < 30000; i++)); do B=${A:+y}; B=${#A}; done"):
            self.assertRegex(self.converted("run.sh", bomb + flags), r"^run.sh:\d+: E2005 the words that its commands go through", bomb[-60:])
        # A pattern costs the product of two lengths.
        stars = f"A={'a' * 2000}\nP=*{'a' * 1500}b\nfor ((i = 0; i < 1500; i++)); do case x$i in $P) ;; esac; [[ $A == $P ]]; done"
        self.converted("run.sh", stars + flags, code=8)
        arrays = " ".join(f"a{i}=()" for i in range(150000))
        self.assertIn("model.width: 96", self.converted("run.sh", arrays + flags, code=8))
        asked = "".join(f"if ask{i}; then :; fi\n" for i in range(30000))
        self.assertEqual(self.converted("run.sh", asked + flags, code=8).count("asks for more than the script says"), 30000)
        self.assertIn("has more than 100000 commands", self.converted("run.sh", "f() {\n" + "a;" * 200000 + "}\n" + flags))
        self.assertIn("gives more than 5000 flags", self.converted("run.sh", MEGATRON + " --bf16" * 300000))
        left_open = MEGATRON + " --lr " + " ".join(f"$A{i}" for i in range(100000))
        self.assertIn("$A99999 is set nowhere", self.converted("run.sh", left_open, code=8))

    def test_F159_a_toml_of_many_keys_is_refused(self):
        self.assertIn("more than 10000 values", self.converted("run.toml", "[training]\n" + "".join(f"k{i} = 1\n" for i in range(200000))))

    def trace(self, records):
        """(layer, microbatch, experts, T, K, ids): a file as nn/moe/routing_trace.h says."""
        out = b"troupe-trace 1\n"
        for layer, microbatch, experts, tokens, k, ids in records:
            counts = [0] * experts
            for i in ids:
                counts[i] += 1
            letter = "h" if experts <= 32767 else "i"
            out += f"{layer} {microbatch} {experts} {tokens} {k} 0\n".encode()
            out += struct.pack(f"<{experts}q", *counts) + struct.pack(f"<{len(ids)}{letter}", *ids)
        (self.folder / "x.trace").write_bytes(out)

    def test_F159_a_trace_takes_time_in_proportion_to_its_bytes(self):
        self.trace([(0, 0, 400000, 1, 400000, range(400000))])
        self.assertIn("400,000 choices of 400000 experts", self.bounded("inspect", "x.trace").stdout)
        self.trace([(0, m, 1, 2000000000, 0, []) for m in range(1000)])
        self.assertIn("1000 microbatches, 0 choices", self.bounded("inspect", "x.trace").stdout)
        self.trace([(0, 0, 4, 1, 2, [0, 1])] * 2)
        said = self.bounded("inspect", "x.trace", code=3).stderr
        self.assertRegex(said, r"^x.trace@\d+: E3001 has layer 0 of microbatch 0 twice")


if __name__ == "__main__":
    unittest.main()
