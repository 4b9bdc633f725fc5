"""Files as people have them (Parquet, Arrow, gzip, Zstandard, CSV, a datasets folder, all in one folder) become the data
set that the same texts give as JSONL. pyarrow, gzip, csv and json write them."""
import csv
import gzip
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import pyarrow
import pyarrow.parquet

TROUPE = pathlib.Path(os.environ["TROUPE_BUILD"], "troupe").resolve()
WORDS = "the cat sat on a mat and the dog ran after \"it\", while\nrain fell \u00e4\u00f6\u20ac \U0001F600".split(" ")


def texts(count, begin=0):
    return [" ".join(WORDS[(i * j + j) % len(WORDS)] for j in range(i % 40 + 1)) for i in range(begin, begin + count)]


def write_jsonl(path, column):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in column))


class Formats(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.here = pathlib.Path(folder.name)

    def run_troupe(self, *words, codes=(0,), env=None):
        end = subprocess.run([TROUPE, *words], cwd=self.here, capture_output=True, text=True, check=False,
                             env={**os.environ, "TROUPE_PYTHON": sys.executable, **(env or {})})
        self.assertIn(end.returncode, codes, end.stdout + end.stderr)
        return end.stdout + end.stderr

    def build(self, source, name="out", *more):
        self.run_troupe("data", "build", source, "-t", "bytes", "--no-eod", "-o", name, "--replace", *more)
        return [(self.here / (name + end)).read_bytes() for end in (".bin", ".idx")]

    def refusal(self, source, *more, env=None):
        return self.run_troupe("data", "build", source, "-t", "bytes", "--no-eod", "-o", "none", *more, codes=(2, 3), env=env)

    def test_each_format_gives_what_jsonl_gives(self):
        column = texts(3000)
        write_jsonl(self.here / "x.jsonl", column)
        plain = (self.here / "x.jsonl").read_bytes()
        (self.here / "x.jsonl.gz").write_bytes(gzip.compress(plain))
        (self.here / "x.jsonl.zst").write_bytes(pyarrow.compress(plain, "zstd", asbytes=True))
        (self.here / "x.json").write_text(json.dumps([{"text": text, "n": [1]} for text in column], indent=1))
        for name, separator in (("x.csv", ","), ("x.tsv", "\t")):
            with open(self.here / name, "w", newline="", encoding="utf-8") as file:
                csv.writer(file, delimiter=separator).writerows([["id", "text"], *enumerate(column)])
        table = pyarrow.table({"id": range(len(column)), "text": column})
        for kind in ("snappy", "zstd", "none"):
            pyarrow.parquet.write_table(table, self.here / f"{kind}.parquet", compression=kind, row_group_size=700)
        with pyarrow.ipc.new_file(str(self.here / "file.arrow"), table.schema) as out:
            out.write_table(table, max_chunksize=500)
        with pyarrow.ipc.new_stream(str(self.here / "stream.arrow"), table.schema) as out:
            out.write_table(table, max_chunksize=500)
        expected = self.build("x.jsonl")
        for name in ("x.jsonl.gz", "x.jsonl.zst", "x.json", "x.csv", "x.tsv", "snappy.parquet", "zstd.parquet",
                     "none.parquet", "file.arrow", "stream.arrow"):
            with self.subTest(name):
                self.assertEqual(self.build(name), expected)
                counted = json.loads(self.run_troupe("data", "count", name, "-t", "bytes", "--no-eod", "--json", "-q").splitlines()[0])
                self.assertEqual(counted["documents"], len(column))

    def test_a_mixed_folder_is_one_data_set(self):
        folder = self.here / "mixed"
        (folder / "data").mkdir(parents=True)
        (folder / "README.md").write_text("---\ndataset_info: x\n---\n")
        (folder / "a.txt").write_text("a whole text\n")
        write_jsonl(folder / "b.jsonl", texts(10))
        (folder / "c.jsonl.gz").write_bytes(gzip.compress((folder / "b.jsonl").read_bytes()))
        pyarrow.parquet.write_table(pyarrow.table({"text": texts(20)}), folder / "data/train-00000-of-00001.parquet")
        write_jsonl(self.here / "same.jsonl", ["a whole text\n", *texts(10), *texts(10), *texts(20)])
        self.assertEqual(self.build("mixed"), self.build("same.jsonl"))

    def test_chats_of_a_table_are_those_of_jsonl(self):
        chats = [[{"role": "user", "content": f"who sat {i}?"}, {"role": "assistant", "content": "the cat"}] for i in range(50)]
        (self.here / "x.jsonl").write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
        pyarrow.parquet.write_table(pyarrow.table({"messages": chats}), self.here / "x.parquet")
        self.assertEqual(self.build("x.parquet", "out", "--format", "chat"), self.build("x.jsonl", "other", "--format", "chat"))
        self.assertEqual((self.here / "out.weights").read_bytes(), (self.here / "other.weights").read_bytes())

    def test_a_table_of_instructions_is_chats(self):
        rows = [{"instruction": f"Add {i}.", "input": "" if i % 2 else "1 2", "output": str(i)} for i in range(40)]
        chats = [[{"role": "user", "content": row["instruction"] + ("\n\n" + row["input"] if row["input"] else "")},
                  {"role": "assistant", "content": row["output"]}] for row in rows]
        (self.here / "x.jsonl").write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
        expected = self.build("x.jsonl", "out", "--format", "chat")
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), self.here / "x.parquet")
        (self.here / "x.json").write_text(json.dumps(rows, indent=2))
        with open(self.here / "x.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        for name in ("x.parquet", "x.json", "x.csv"):
            with self.subTest(name):
                self.assertEqual(self.build(name, "other", "--format", "chat"), expected)

    def test_faults_name_file_and_row(self):
        table = pyarrow.table({"id": range(2000), "text": texts(2000)})
        pyarrow.parquet.write_table(table, self.here / "x.parquet", compression="none", row_group_size=100)
        whole = (self.here / "x.parquet").read_bytes()
        self.assertRegex(self.refusal("x.parquet", "--key", "body"), r"x\.parquet.*no column body.*id, text.*--key")
        self.assertRegex(self.refusal("x.parquet", "--format", "lines"), r"x\.parquet.*is a table")
        (self.here / "x.parquet").write_bytes(whole[:-100])
        self.assertRegex(self.refusal("x.parquet"), r"x\.parquet: E3001 row 1: ")
        pyarrow.parquet.write_table(pyarrow.table({"text": ["a", None, "c"]}), self.here / "x.parquet")
        self.assertRegex(self.refusal("x.parquet"), r'x\.parquet: row 2: .*"text" is not a string')
        self.assertIn("pip install pyarrow", self.refusal("x.parquet", env={"PYTHONPATH": str(self.without_pyarrow())}))
        self.assertIn("no-such-python", self.refusal("x.parquet", env={"TROUPE_PYTHON": "no-such-python"}))
        (self.here / "x.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a"}\n' * 9999)[:-9])
        self.assertRegex(self.refusal("x.jsonl.gz"), r"x\.jsonl\.gz: E3001 is cut off")

    def without_pyarrow(self):
        (self.here / "shadow/pyarrow").mkdir(parents=True)
        (self.here / "shadow/pyarrow/__init__.py").write_text("raise ImportError('none here')\n")
        return self.here / "shadow"

    def test_memory_does_not_grow_with_the_file(self):
        text = "word " * 2000
        peaks = []
        for count in (2000, 20000):  # 20 and 200 MB of text
            pyarrow.parquet.write_table(pyarrow.table({"text": [text + str(i) for i in range(count)]}),
                                        self.here / "x.parquet", row_group_size=1000)
            words = [TROUPE, "data", "count", "x.parquet", "-t", "bytes", "--no-eod", "-q", "-w", "2"]
            measured = ("import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL); "
                        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)")
            end = subprocess.run([sys.executable, "-c", measured, *words], cwd=self.here, check=True, capture_output=True, text=True,
                                 env={**os.environ, "TROUPE_PYTHON": sys.executable})
            peaks.append(int(end.stdout) / 1024)  # of the program, or of its Python where that is larger
        self.assertLess(peaks[1], peaks[0] + 60, "MiB")

    def test_a_killed_build_of_packed_text_is_finished_by_the_same_command(self):
        column = texts(60000)
        write_jsonl(self.here / "x.jsonl", column)
        expected = self.build("x.jsonl")
        (self.here / "x.jsonl.gz").write_bytes(gzip.compress((self.here / "x.jsonl").read_bytes(), 1))
        words = [TROUPE, "data", "build", "x.jsonl.gz", "-t", "bytes", "--no-eod", "-o", "killed", "-w", "1", "-q"]
        with subprocess.Popen(words, cwd=self.here, stdout=subprocess.DEVNULL) as build:
            try:
                build.wait(0.3)
            except subprocess.TimeoutExpired:
                build.kill()
        subprocess.run(words + ["--replace"], cwd=self.here, check=True, stdout=subprocess.DEVNULL)
        self.assertEqual([(self.here / ("killed" + end)).read_bytes() for end in (".bin", ".idx")], expected)
        self.assertEqual(re.findall("killed.building", " ".join(os.listdir(self.here))), [])


if __name__ == "__main__":
    unittest.main()
