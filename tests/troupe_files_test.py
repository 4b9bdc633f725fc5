"""The verbs of `troupe` that work on files, with other programs' readers on the other side: Hugging
Face's tokenizers and safetensors, and a reader of Megatron's index in numpy."""
import concurrent.futures
import gzip
import io
import json
import os
import pathlib
import pickle
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import zipfile
import zlib

import numpy
from safetensors import safe_open
from safetensors.numpy import save_file
from tokenizers import Tokenizer

TROUPE = pathlib.Path(os.environ["TROUPE_BUILD"], "troupe")
WORDS = "the cat sat on a mat and the dog ran after it while rain fell \u00e4\u00f6\u20ac \U0001F600".split()
# A run that reads no file but its own, and writes text.
SMALL_RUN = """
model: {layers: 1, width: 32, heads: 4, vocab: 300, max_positions: 64, moe: {experts: 4, top_k: 2, hidden: 32}}
data: {train: [{path: set}], sequence: 32, tokenizer: %s}
train: {global_batch: 4, steps: 2, optimizer: {lr: 1e-3}}
checkpoint: {dir: run}
log: {tensorboard: false}
run: {device: cpu}
"""
MESSAGES = [{"role": "user", "content": "who sat?"}, {"role": "assistant", "content": "the cat"}]


def lines(count):
    """Documents of many lengths, the same ones each time."""
    return [" ".join(WORDS[(i * j + j) % len(WORDS)] for j in range(i % 40 + 1)) for i in range(count)]


def read_megatron(prefix):
    """Documents of ids, as Megatron-LM lays them out: formats written down from its own tool."""
    index = pathlib.Path(str(prefix) + ".idx").read_bytes()
    assert index[:9] == b"MMIDIDX\0\0" and struct.unpack_from("<Q", index, 9)[0] == 1
    dtype = {4: numpy.int32, 8: numpy.uint16}[index[17]]
    sequences, documents = struct.unpack_from("<QQ", index, 18)
    lengths = numpy.frombuffer(index, "<i4", sequences, 34)
    offsets = numpy.frombuffer(index, "<i8", sequences, 34 + 4 * sequences)
    bounds = numpy.frombuffer(index, "<i8", documents, 34 + 12 * sequences)
    assert len(index) == 34 + 12 * sequences + 8 * documents
    tokens = numpy.fromfile(str(prefix) + ".bin", dtype)
    size = numpy.dtype(dtype).itemsize
    cut = [tokens[o // size:o // size + n].tolist() for o, n in zip(offsets, lengths)]
    return [sum(cut[a:b], []) for a, b in zip(bounds, bounds[1:])]


class TroupeFiles(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def troupe(self, *words, code=0, **more):
        ran = self.run_troupe(*words, code=code, **more)
        return ran.stdout if code in (0, 1) else ran.stderr

    def run_troupe(self, *words, code=0, **more):
        ran = subprocess.run([str(TROUPE), *map(str, words)], cwd=self.folder, capture_output=True,
                             text=True, timeout=300, **more)
        self.assertEqual(ran.returncode, code, ran.stdout + ran.stderr)
        return ran

    def write_lines(self, name="corpus.jsonl", count=300):
        texts = lines(count)
        with (self.folder / name).open("w") as out:
            for text in texts:
                out.write(json.dumps({"text": text}) + "\n")
        return texts

    def make_tokenizer(self):
        texts = self.write_lines()
        made = json.loads(self.troupe("tokenizer", "train", "corpus.jsonl", "--vocab", 300, "-o",
                                      "tokenizer.json", "--special", "<|endoftext|>", "--special",
                                      "<|im_end|>", "--json"))
        self.assertEqual(made["vocab"], 300)
        self.assertGreater(made["bytes_per_token"], 1.5)
        return texts, Tokenizer.from_file(str(self.folder / "tokenizer.json"))

    def test_every_verb_has_help_with_an_example(self):
        groups = {"data": ["build", "count", "inspect", "merge", "convert"],
                  "tokenizer": ["train", "encode", "decode"],
                  "import": [], "export": [], "inspect": [], "diff": []}
        for verb, inner in groups.items():
            asked = [[verb]] + [[verb, one] for one in inner]
            with concurrent.futures.ThreadPoolExecutor(2) as pool:
                for words, text in zip(asked, pool.map(lambda w: self.troupe(*w, "--help"), asked)):
                    self.assertIn("Example: troupe " + verb, text)
                    self.assertLess(len(text.splitlines()), 55, words)

    def test_a_verb_inside_a_verb_is_guessed(self):
        self.assertIn("Did you mean build?", self.troupe("data", "biuld", "x", code=2))

    def test_hugging_face_loads_the_tokenizer_and_gives_the_same_ids(self):
        texts, theirs = self.make_tokenizer()
        self.assertEqual(theirs.get_vocab_size(), 300)
        self.assertEqual(theirs.token_to_id("<|endoftext|>"), 0)
        (self.folder / "lines.txt").write_text("\n".join(texts))
        got = self.troupe("tokenizer", "encode", "tokenizer.json", "-f", "lines.txt", "--lines")
        want = [theirs.encode(text).ids for text in texts]
        self.assertEqual([[int(i) for i in line.split()] for line in got.splitlines()], want)
        ids = " ".join(map(str, want[7]))
        self.assertEqual(self.troupe("tokenizer", "decode", "tokenizer.json", ids)[:-1], texts[7])
        piped = self.troupe("tokenizer", "encode", "tokenizer.json", "--json", input=texts[9])
        self.assertEqual(json.loads(piped)["ids"], want[9])
        self.assertIn("E3102", self.troupe("tokenizer", "decode", "tokenizer.json", "3 300", code=3))

    def test_the_vocabulary_does_not_depend_on_the_workers(self):
        self.write_lines()
        for workers in (1, 3):
            self.troupe("tokenizer", "train", "corpus.jsonl", "--vocab", 400, "-w", workers, "-o",
                        f"t{workers}.json")
        self.assertEqual((self.folder / "t1.json").read_bytes(), (self.folder / "t3.json").read_bytes())

    def test_build_is_what_the_tokenizer_says_and_the_same_for_any_workers(self):
        texts, theirs = self.make_tokenizer()
        for workers in (1, 4):
            out = self.troupe("data", "build", "corpus.jsonl", "-t", "tokenizer.json", "-w", workers,
                              "-o", f"out{workers}")
            self.assertIn("MB/s", out)
        for suffix in (".bin", ".idx", ".json"):
            self.assertEqual((self.folder / ("out1" + suffix)).read_bytes(),
                             (self.folder / ("out4" + suffix)).read_bytes())
        want = [theirs.encode(text, add_special_tokens=False).ids + [0] for text in texts]
        self.assertEqual(read_megatron(self.folder / "out1"), want)
        self.assertIn("E3109", self.troupe("data", "build", "corpus.jsonl", "-t", "tokenizer.json",
                                           "-o", "out1", code=3))
        counted = json.loads(self.troupe("data", "count", "corpus.jsonl", "-t", "tokenizer.json",
                                         "--json"))
        self.assertEqual(counted["tokens"], sum(map(len, want)))
        self.assertIn(f"{len(texts)} documents", self.troupe("data", "count", "out1"))

    def test_folders_and_patterns_are_read_and_a_bad_line_has_its_place(self):
        (self.folder / "in").mkdir()
        (self.folder / "in" / "b.txt").write_text("b")
        (self.folder / "in" / "a.txt").write_text("a\nA")
        self.troupe("data", "build", "in", "-t", "bytes", "--eod", 256, "-o", "x")
        self.assertEqual(read_megatron(self.folder / "x"), [[97, 10, 65, 256], [98, 256]])
        self.troupe("data", "build", "in/*.txt", "-t", "bytes", "--no-eod", "--format", "lines", "-o",
                    "y")
        self.assertEqual(read_megatron(self.folder / "y"), [[97], [65], [98]])
        self.troupe("data", "build", "in", "-t", "bytes", "-o", "plain")  # all ids are text: none ends a document
        self.assertEqual(read_megatron(self.folder / "plain"), [[97, 10, 65], [98]])
        (self.folder / "bad.jsonl").write_text('{"text": "a"}\n{"text": 3}\n{"text": "b"}\n')
        said = self.troupe("data", "build", "bad.jsonl", "-t", "bytes", "--no-eod", "-o", "z", code=3)
        self.assertIn("bad.jsonl:2: E3106", said)
        said = self.troupe("data", "build", "bad.jsonl", "-t", "bytes", "--no-eod", "-o", "z",
                           "--on-bad", "skip")
        self.assertIn("1 skipped", said)
        self.assertEqual(read_megatron(self.folder / "z"), [[97], [98]])

    def binary_files(self):
        """Names and bytes of what is no text, with what each is called."""
        chunk = lambda name, data: (struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)))
        noise = bytes((i * i * 31 + i * 7) % 251 for i in range(3000))
        packed, table, tensors = io.BytesIO(), io.BytesIO(), self.folder / "t.safetensors"
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr("a.txt", "text")
        numpy.save(table, numpy.arange(9))
        save_file({"w": numpy.zeros(5000, "f4")}, tensors)
        text = "The cat sat on the mat.\nAnd the dog.\n"
        return {
            "gzip": gzip.compress(text.encode())[:-9], "Zstandard": b"\x28\xb5\x2f\xfd\x04" + noise,
            "zip archive": packed.getvalue(), "PDF": b"%PDF-1.7\n1 0 obj\n<< >>\nendobj\n",
            "Parquet": b"PAR1\x15\x04\x15\x80\0\0\0" + noise + b"PAR1", "Arrow table": b"ARROW1\0\0\xff\xff\xff\xff" + noise,
            "Arrow stream": b"\xff\xff\xff\xff\x78\0\0\0" + noise, "pickle": pickle.dumps({"text": text}, 4),
            "NumPy": table.getvalue(), "safetensors": tensors.read_bytes(),
            "PNG": b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))
                   + chunk(b"IDAT", zlib.compress(b"\0\0")) + chunk(b"IEND", b""),
            "JPEG": b"\xff\xd8\xff\xe0\0\x10JFIF\0" + noise, "ELF": pathlib.Path(sys.executable).read_bytes()[:50000],
            "NUL bytes": struct.pack("<500H", *range(0, 500)), "no UTF-8": noise.replace(b"\0", b"\xfe"),
            "another encoding": "Кошка сидит на коврике, а собака лает. ".encode("cp1251") * 9,
            "UTF-16 and": text.encode("utf-16"), "UTF-16LE": text.encode("utf-16-le"), "UTF-16BE": text.encode("utf-16-be"),
            "UTF-32 and": text.encode("utf-32"), "UTF-32LE": text.encode("utf-32-le"), "UTF-32BE": text.encode("utf-32-be")}

    def test_what_is_no_text_is_refused_with_every_files_name(self):
        files = self.binary_files()
        folder = self.folder / "in"
        folder.mkdir()
        (folder / "a.txt").write_text("The cat.")
        for i, data in enumerate(files.values()):
            (folder / f"{i}.txt").write_bytes(data)
        for verb in (["data", "build", "-o", "x", "--no-eod", "-t", "bytes"], ["data", "count", "--no-eod", "-t", "bytes"],
                     ["tokenizer", "train", "-o", "t.json", "--vocab", 300]):
            said = self.troupe(*verb, "in", code=3).splitlines()
            self.assertEqual(len(said), len(files), said)
            for i, what in enumerate(files):
                line = next(line for line in said if line.startswith(f"in/{i}.txt: E3001 "))
                self.assertIn(what, line)
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["in", "t.safetensors"])
        (self.folder / "nano.yaml").write_text(SMALL_RUN.replace("{path: set}", "{kind: text, path: in/4.txt}") % "bytes")
        self.assertIn("in/4.txt: E3001 is a Parquet table", self.troupe("check", "nano.yaml", code=3))

    def test_odd_text_is_text(self):
        folder = self.folder / "in"
        folder.mkdir()
        texts = ["größer als fünf Häuser, schöner für Bär und Kühe".encode("latin-1"), b"a\0b, and so on",
                 "\ufeffmark".encode(), "日本語の文章です。猫が座っている。".encode() * 2000, b"PAR1 is a word, MZ and BZh too",
                 b"PAR1 with \xe9", b"", b"\xe9\n", b"\t\x0c\x1b[1mbold\x1b[0m"]
        for i, text in enumerate(texts):
            (folder / f"{i}.txt").write_bytes(text)
        ran = self.run_troupe("data", "build", "in", "-t", "bytes", "--no-eod", "-o", "x")
        self.assertIn("3 documents hold bytes that are not UTF-8, the first is in/0.txt", ran.stderr)
        self.assertEqual(read_megatron(self.folder / "x"), [list(t.removeprefix(b"\xef\xbb\xbf")) for t in texts if t])

    def test_a_replaced_set_leaves_no_validation_set_that_it_holds_now(self):
        self.write_lines()
        build = ["data", "build", "corpus.jsonl", "-t", "bytes", "--eod", 256, "-o", "x"]
        valid = lambda prefix="x": sorted(p.name for p in self.folder.glob(prefix + "-valid*"))
        names = ["x-valid.bin", "x-valid.idx", "x-valid.json"]
        self.troupe(*build, "--valid", 0.2)
        self.assertEqual(valid(), names)
        self.troupe(*build, "--replace", "--valid", 0.1)
        self.assertEqual(valid(), names)
        ran = self.run_troupe(*build, "--replace", "-q")
        self.assertIn("x-valid is removed: it was held out of the replaced x", ran.stderr)
        self.assertEqual(valid(), [])
        self.assertEqual(list(self.folder.glob("*.building")), [])
        self.assertEqual(len(read_megatron(self.folder / "x")), 300)
        # A set of its own with such a name stays; of one that says nothing of itself a line is written.
        self.troupe(*build[:-1], "x-valid")
        ran = self.run_troupe(*build, "--replace", "-q")
        self.assertEqual((valid(), ran.stderr), (names, ""))
        described = json.loads((self.folder / "x-valid.json").read_text())
        self.assertEqual(described.pop("held_out"), 0)
        (self.folder / "x-valid.json").write_text(json.dumps(described))
        ran = self.run_troupe(*build, "--replace", "-q")
        self.assertIn("x-valid stays as it is; if it was held out of the replaced x", ran.stderr)
        self.assertEqual(valid(), names)

    def test_a_chat_template_that_is_not_used_is_told(self):
        self.make_tokenizer()
        (self.folder / "chat.jsonl").write_text(json.dumps({"messages": MESSAGES}) + "\n")
        (self.folder / "model").mkdir()
        shutil.copy(self.folder / "tokenizer.json", self.folder / "model")
        build = lambda name, *more: self.run_troupe("data", "build", "chat.jsonl", "--format", "chat", "-o", name, "-t", *more).stderr
        marks = 'chat: messages are written as "<|im_start|>{role}\\u000a" content "<|im_end|>\\u000a"'
        self.assertIn(marks, build("a", "model"))
        config = self.folder / "model/tokenizer_config.json"
        config.write_text(json.dumps({"eos_token": "<|endoftext|>", "chat_template": "[INST] {{ messages }} [/INST]"}))
        self.assertIn(marks, build("b", "model/tokenizer.json", "--template", "none"))
        (self.folder / "model/chat_template.jinja").write_text("[INST]")
        said = build("d", "model", "--open", "{role}: ")
        self.assertIn("the template in model/chat_template.jinja is not used: --open and --close are given", said)
        self.assertIn('messages are written as "{role}: " content', said)

    def test_an_end_of_document_that_is_no_id_is_refused(self):
        self.write_lines(count=3)
        (self.folder / "flat").write_bytes(bytes(range(64)))
        for words in (("build", "corpus.jsonl", "-t", "bytes", "-o", "out"), ("count", "corpus.jsonl", "-t", "bytes"),
                      ("convert", "flat", "--from", "flat-u16", "-o", "out")):
            said = self.troupe("data", *words, "--eod", "-1", code=2)
            self.assertIn("--eod: E2005 -1 is negative: an id of the vocabulary is expected", said)
        self.troupe("data", "build", "corpus.jsonl", "-t", "bytes", "-o", "out", "--eod", 2**31 - 1, "--quiet")

    def test_chats_have_a_mask_of_what_the_assistant_says(self):
        _, theirs = self.make_tokenizer()
        (self.folder / "chat.jsonl").write_text(json.dumps({"messages": MESSAGES}) + "\n")
        self.troupe("data", "build", "chat.jsonl", "-t", "tokenizer.json", "--format", "chat", "--key",
                    "messages", "--open", "{role}: ", "--close", "<|im_end|>", "-o", "chat")
        ids, weights = [], []
        for message in MESSAGES:
            for text, learn in ((message["role"] + ": ", 0), (message["content"], 1),
                                ("<|im_end|>", 1)):
                some = theirs.encode(text, add_special_tokens=False).ids
                ids += some
                weights += [learn * (message["role"] == "assistant")] * len(some)
        self.assertEqual(read_megatron(self.folder / "chat"), [ids + [0]])
        self.assertEqual(list((self.folder / "chat.weights").read_bytes()), weights + [1])
        shown = self.troupe("data", "inspect", "chat", "--show", 1, "-t", "tokenizer.json")
        self.assertIn("[user: who sat?<|im_end|>assistant: ]the cat<|im_end|>", shown)
        self.assertEqual(json.loads(self.troupe("data", "inspect", "chat", "--json"))["scan"]["learned"],
                         sum(weights) + 1)

    def test_merge_convert_and_a_damaged_index(self):
        (self.folder / "a.txt").write_text("ab")
        self.troupe("data", "build", "a.txt", "-t", "bytes", "--eod", 256, "-o", "a")
        numpy.array([5, 6, 256, 7, 256], "<u2").tofile(self.folder / "ids.npy")
        self.troupe("data", "convert", "ids.npy", "--from", "flat-u16", "--eod", 256, "--vocab", 257,
                    "-o", "b")
        self.assertIn("3 documents", self.troupe("data", "merge", "a", "b", "-o", "ab"))
        self.assertEqual(read_megatron(self.folder / "ab"), [[97, 98, 256], [5, 6, 256], [7, 256]])
        self.assertIn("ok", self.troupe("inspect", "ab.bin"))
        index = (self.folder / "ab.idx").read_bytes()
        (self.folder / "ab.idx").write_bytes(index[:-3])
        self.assertIn("E3101", self.troupe("inspect", "ab", code=3))

    def test_inspect_tells_what_a_file_is(self):
        self.make_tokenizer()
        found = json.loads(self.troupe("inspect", "tokenizer.json", "--json"))
        self.assertEqual((found["kind"], found["vocab"], found["special"]["eos"]),
                         ("tokenizer.json", 300, 0))
        self.assertEqual(found["added"], ["<|endoftext|>", "<|im_end|>"])
        tensors = {"w": numpy.arange(6, dtype=numpy.float32).reshape(2, 3),
                   "n": numpy.array(7, dtype=numpy.int64)}
        save_file(tensors, self.folder / "x.safetensors")
        text = self.troupe("inspect", "x.safetensors")
        self.assertIn("w  F32 [2, 3]", text)
        self.assertIn("7 elements", text)
        tensors["w"][1, 1] = numpy.nan
        save_file(tensors, self.folder / "x.safetensors")
        self.assertIn("w holds 1 values", subprocess.run(
            [str(TROUPE), "inspect", "x.safetensors"], cwd=self.folder, capture_output=True,
            text=True).stdout)
        self.troupe("inspect", "x.safetensors", code=4)
        (self.folder / "cut.safetensors").write_bytes(
            (self.folder / "x.safetensors").read_bytes()[:-1])
        self.assertIn("E4003", self.troupe("inspect", "cut.safetensors", code=4))
        self.assertIn("does not exist", self.troupe("inspect", "nothing", code=2))
        (self.folder / "note").write_text("a note")
        self.assertIn("is not a checkpoint", self.troupe("inspect", "note", code=2))

    def test_N2_a_preset_has_its_published_parameters_and_flops(self):
        found = json.loads(self.troupe("inspect", "model", "qwen3-30b-a3b", "--sequence", 8192,
                                       "--json"))
        self.assertEqual(found["parameters"], 30_532_122_624)
        self.assertEqual(found["active"], 3_353_032_704)
        self.assertEqual(found["flops_per_token"], 27_913_617_408)
        self.assertEqual(found["flops_per_token_full"], 37_577_293_824)
        self.assertEqual(found["train_bytes"], 16 * 30_532_122_624)
        self.assertEqual(found["cache_bytes"], 48 * 2 * 4 * 128 * 2)
        self.assertIn("6,919,161,856", self.troupe("inspect", "model", "olmoe-1b-7b"))
        self.assertIn("mixtral-8x7b", self.troupe("inspect", "model", "mixtral-8x7", code=2))

    def test_diff_is_numpys_opinion(self):
        rng = numpy.random.default_rng(0)
        a = {"w": rng.normal(size=(5, 7)).astype(numpy.float32), "v": numpy.zeros(3, numpy.float16)}
        b = {"w": a["w"].copy(), "v": a["v"], "u": numpy.ones(1, numpy.int32)}
        b["w"][3, 2] += 0.25
        b["w"][4, 6] -= 0.5
        save_file(a, self.folder / "a.safetensors")
        save_file(b, self.folder / "b.safetensors")
        self.assertIn("2 of 2 tensors are equal bit for bit",
                      self.troupe("diff", "a.safetensors", "a.safetensors"))
        found = json.loads(self.troupe("diff", "a.safetensors", "b.safetensors", "--json", code=1))
        self.assertEqual((found["tensors"], found["equal"], found["different"]), (3, 1, 2))
        self.assertEqual(found["max_abs"], float(abs(a["w"].astype(float) - b["w"]).max()))
        only, values = found["differences"]
        self.assertEqual((only["name"], only["what"]), ("u", "only in B, I32 [1]"))
        self.assertEqual(values["first"], [3, 2])
        self.assertEqual(float(values["first_a"]), float(a["w"][3, 2]))
        self.troupe("diff", "a.safetensors", "b.safetensors", "--only", "v")

    def test_two_recipes_differ_in_what_they_say_otherwise(self):
        recipe = "model: {layers: 2, width: 32, heads: 4, vocab: 256}\ntrain: {steps: %d}\n"
        (self.folder / "a.yaml").write_text(recipe % 5)
        (self.folder / "b.yaml").write_text(recipe % 6 + "run: {device: cpu}\n")
        said = self.troupe("diff", "a.yaml", "b.yaml", code=1)
        self.assertIn("train.steps: 5 and 6", said)
        self.assertIn("run.device: auto and cpu", said)
        self.troupe("diff", "a.yaml", "a.yaml")
        self.troupe("diff", "a.yaml", ".", code=2)

    def test_a_run_is_inspected_compared_and_exported(self):
        (self.folder / "text.txt").write_text("The cat sat on the mat. " * 300)
        (self.folder / "nano.yaml").write_text("""
model: {layers: 2, width: 32, heads: 4, vocab: 256, vocab_pad: 96, max_positions: 64,
        moe: {experts: 4, top_k: 2, hidden: 64}}
data: {train: [{kind: text, path: text.txt}], sequence: 32, tokenizer: bytes}
train: {global_batch: 8, steps: 4, optimizer: {lr: 3e-3}}
checkpoint: {dir: run, every_steps: 2}
run: {device: cpu}
""")
        self.troupe("train", "nano.yaml", "--quiet")
        self.troupe("train", "nano.yaml", "--quiet", "--set", "checkpoint.dir=again")
        said = self.troupe("inspect", "run")
        self.assertIn("step 4 of run", said)
        self.assertIn("ok: every byte read, checksums agree", said)
        self.assertIn("loss  scalar, 4 points, steps 1 to 4", self.troupe("inspect", "run/tb"))
        self.assertIn("tensors are equal bit for bit\n", self.troupe("diff", "run", "again"))
        said = self.troupe("diff", "run/step-000002", "run/step-000004", code=1)
        self.assertIn("state done.steps: 2 and 4", said)
        out = json.loads(self.troupe("export", "run", "hub", "--check-logits", "--dtype", "float32",
                                     "--json"))
        self.assertTrue(out["logits"]["equal"])
        with safe_open(self.folder / "hub" / "model.safetensors", "numpy") as file:
            self.assertEqual(len(file.keys()), out["tensors"])
            self.assertEqual(file.get_slice("model.embed_tokens.weight").get_shape(), [256, 32])
        self.assertIn("config.json accounts for every tensor", self.troupe("inspect", "hub"))
        shard = next((self.folder / "run" / "step-000004").glob("*.safetensors"))
        data = bytearray(shard.read_bytes())
        data[-5] ^= 4
        shard.write_bytes(data)
        self.assertIn("E4004", self.troupe("inspect", "run/step-000004", code=4))

    def train_small(self, tokenizer):
        """A run whose tokenizer is that file; the folder has nothing else of it."""
        self.make_tokenizer()
        (self.folder / tokenizer).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / "tokenizer.json").rename(self.folder / tokenizer)
        self.troupe("data", "build", "corpus.jsonl", "-t", tokenizer, "-o", "set")
        (self.folder / "nano.yaml").write_text(SMALL_RUN % tokenizer)
        self.troupe("train", "nano.yaml", "--quiet")

    def test_a_run_folder_that_was_moved_has_its_tokenizer(self):
        for tokenizer in ("my.json", "model/tokenizer.json"):
            self.train_small(tokenizer)
            before = self.troupe("generate", "run", "-p", "the cat", "-n", 8, "--temperature", 0)
            vocabulary = (self.folder / tokenizer).read_bytes()
            (self.folder / "elsewhere").mkdir()
            (self.folder / "run").rename(self.folder / "elsewhere/moved")
            (self.folder / tokenizer).unlink()
            run = "elsewhere/moved"
            self.assertEqual(self.troupe("generate", run, "-p", "the cat", "-n", 8, "--temperature", 0), before)
            out = self.troupe("eval", run, "--json", "--set", "data.valid=[{path: set}]", "--set", "eval.batches=1")
            self.assertIn("bits_per_byte", out)
            self.troupe("export", run, "hub")
            self.assertEqual((self.folder / "hub/tokenizer.json").read_bytes(), vocabulary)
            # One that is asked for counts; a copy that was altered does not.
            self.assertIn("E3001", self.troupe("generate", run, "-p", "a", "--set", "data.tokenizer=none.json", code=3))
            kept = self.folder / run / "tokenizer/tokenizer.json"
            kept.write_bytes(vocabulary.replace(b'"the"', b'"teh"', 1) + b" ")
            self.assertIn("tokenizer/tokenizer.json: E3201 is not the file that the run kept",
                          self.troupe("generate", run, "-p", "a", code=3))
            # A run from before copies were kept reads the recipe's file, as it did.
            shutil.rmtree(self.folder / run / "tokenizer")
            self.assertIn(tokenizer, self.troupe("generate", run, "-p", "the cat", code=3))
            (self.folder / tokenizer).write_bytes(vocabulary)
            self.assertEqual(self.troupe("generate", run, "-p", "the cat", "-n", 8, "--temperature", 0), before)
            for name in ("elsewhere", "hub"):
                shutil.rmtree(self.folder / name)
            for path in self.folder.glob("set*"):
                path.unlink()

    def test_an_imported_run_that_was_moved_has_its_tokenizer(self):
        self.train_small("model/tokenizer.json")
        self.troupe("export", "run", "hub")
        self.troupe("import", "hub", "imported")
        want = self.troupe("generate", "imported", "-p", "the cat", "-n", 4, "--temperature", 0)
        (self.folder / "imported").rename(self.folder / "moved")
        self.assertEqual(self.troupe("generate", "moved", "-p", "the cat", "-n", 4, "--temperature", 0), want)

    def test_a_link_beside_a_tokenizer_is_not_kept(self):
        (self.folder / "secret").write_text("hunter2")
        (self.folder / "model").mkdir()
        (self.folder / "model/chat_template.jinja").symlink_to("../secret")
        self.train_small("model/tokenizer.json")
        self.assertFalse((self.folder / "run/tokenizer").exists())
        self.assertIn("model/chat_template.jinja is a link that leaves its folder: the run folder keeps no copy",
                      (self.folder / "run/log.txt").read_text())
        self.assertIn("leaves the folder", self.troupe("export", "run", "hub", code=4))

    def test_a_folder_of_the_users_own_is_no_copy_and_stays(self):
        self.train_small("run/tokenizer/tokenizer.json")
        self.assertEqual([p.name for p in (self.folder / "run/tokenizer").iterdir()], ["tokenizer.json"])
        self.troupe("generate", "run", "-p", "the cat", "-n", 2)

    def test_init_from_is_looked_at_by_check_and_may_be_a_run(self):
        self.train_small("my.json")
        begin = lambda verb, init, code=0, **more: self.run_troupe(verb, "nano.yaml", "--set", "checkpoint.dir=new", "--set",
                                                                   f"checkpoint.init_from={init}", code=code, **more).stderr
        self.troupe("export", "run", "hub")
        (self.folder / "empty").mkdir()
        for init, what in (("nowhere", "nowhere: E4002 is not there"), ("empty", "empty: E4002 has no complete checkpoint"),
                           ("run/step-000009", "run/step-000009: E4002 is not there"),
                           ("hub", "hub: E4002 is a Hugging Face folder: `troupe import hub RUN`")):
            for verb in ("check", "train"):
                self.assertIn(what, begin(verb, init, code=4))
        for init in ("run", "run/", "run/step-000002"):
            begin("check", init)
            self.assertIn("weights from run/step-000002; step 0", begin("train", init))
            begin("check", "nowhere")  # a run that resumes does not look at it
            shutil.rmtree(self.folder / "new")

    def test_an_export_says_whether_a_tokens_weights_sum_to_one(self):
        """Tries each order of softmax and choice, in families that know both and in one that knows one."""
        (self.folder / "text.txt").write_text("The cat sat on the mat. " * 300)
        (self.folder / "nano.yaml").write_text("""
model: {layers: 1, width: 32, heads: 4, vocab: 256, max_positions: 64,
        moe: {experts: 4, top_k: 2, hidden: 64}}
data: {train: [{kind: text, path: text.txt}], sequence: 32, tokenizer: bytes}
train: {global_batch: 8, steps: 2, optimizer: {lr: 1e-2}}
run: {device: cpu}
""")
        orders = {"auto": True, "after": True, "before": False, "before, p_norm: 1": True}
        for norm, family in (("head", "qwen3_moe"), ("whole", "olmoe"), ("none", "mixtral")):
            for i, (order, sums) in enumerate(orders.items()):
                run = f"{family}-{i}"
                self.troupe("train", "nano.yaml", "--quiet", "--set", f"checkpoint.dir={run}", "--set",
                            f"model.qk_norm={norm}", "--set", f"model.moe.router={{order: {order}}}")
                words = ("export", run, f"hub-{run}", "--check-logits", "--dtype", "float32")
                if family == "mixtral" and not sums:
                    self.assertIn("E4008", self.troupe(*words, code=4))
                    self.assertFalse((self.folder / f"hub-{run}").exists())
                    continue
                self.troupe(*words)
                config = json.loads((self.folder / f"hub-{run}" / "config.json").read_text())
                self.assertEqual(config["model_type"], family)
                if family != "mixtral":
                    self.assertEqual(config["norm_topk_prob"], sums, order)


if __name__ == "__main__":
    unittest.main()
