#!/usr/bin/env python3
"""`troupe data build` beside the same work in Python: a corpus to Megatron's .bin and .idx, with Hugging
Face's tokenizers (which use all cores in batches) and numpy.

  .venv/bin/python bench/data_build.py BUILD [--megabytes N] [--rounds N] [--formats jsonl,jsonl.gz,jsonl.zst,parquet]

JSONL is read in Python by its json, packed JSONL and Parquet by `datasets` in a stream, Parquet by pyarrow's batches too, which is
faster. Each of datasets, tokenizers, pyarrow, numpy and zstandard has to be there in the Python that runs this.

The corpus is the Python sources of the standard library, a file a document, over and over; the
tokenizer a byte-level one of 32,000 tokens, trained on it. Both sides are whole processes that read
the same file from the page cache and write to the same disk; rounds are interleaved. Medians and the
peak of resident memory are printed, and the outputs are compared byte by byte."""
import argparse
import gzip
import json
import os
import pathlib
import shutil
import statistics
import struct
import subprocess
import sys
import sysconfig
import tempfile
import time

BATCH = 256  # documents


def write_corpus(path, size):
    files = sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    lines = [json.dumps({"text": f.read_text(errors="replace")}) + "\n" for f in files]
    with open(path, "w", encoding="utf-8") as out:
        while out.tell() < size:
            out.writelines(lines)


def write_as(kind, jsonl, path):
    """The corpus in another format; row groups of a Parquet file as pyarrow and datasets write them."""
    if kind == "jsonl.gz":
        with open(jsonl, "rb") as lines, gzip.open(path, "wb", 6) as out:
            shutil.copyfileobj(lines, out, 1 << 20)
    elif kind == "jsonl.zst":
        import zstandard
        with open(jsonl, "rb") as lines, open(path, "wb") as out:
            zstandard.ZstdCompressor(3).copy_stream(lines, out)
    elif kind == "parquet":
        import pyarrow
        import pyarrow.parquet
        with open(jsonl, encoding="utf-8") as lines:
            table = pyarrow.table({"text": [json.loads(line)["text"] for line in lines]})
        pyarrow.parquet.write_table(table, path, row_group_size=1000)


def texts_by_json(source):
    with open(source, encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)["text"]


def texts_by_datasets(source):
    import datasets
    kind = "parquet" if source.endswith(".parquet") else "json"
    for row in datasets.load_dataset(kind, data_files=source, split="train", streaming=True):
        yield row["text"]


def texts_by_pyarrow(source):
    import pyarrow.parquet
    for batch in pyarrow.parquet.ParquetFile(source).iter_batches(BATCH, columns=["text"]):
        yield from batch.column(0).to_pylist()


READERS = {"json": texts_by_json, "datasets": texts_by_datasets, "pyarrow": texts_by_pyarrow}
RIVALS = {"jsonl": ["json"], "jsonl.gz": ["datasets"], "jsonl.zst": ["datasets"], "parquet": ["datasets", "pyarrow"]}


def batches(texts):
    batch = []
    for text in texts:
        batch.append(text)
        if len(batch) == BATCH:
            yield batch
            batch = []
    yield batch


def build_in_python(reader, source, prefix, tokenizer):
    """What tools in Python do: batches through the tokenizer, numpy to the disk, the index from lists."""
    import numpy
    from tokenizers import Tokenizer
    made = Tokenizer.from_file(tokenizer)
    end = made.token_to_id("<|endoftext|>")
    lengths = []
    with open(prefix + ".bin", "wb") as out:
        for batch in batches(READERS[reader](source)):
            for encoding in made.encode_batch_fast(batch, add_special_tokens=False):
                ids = numpy.asarray(encoding.ids + [end], numpy.uint16)
                out.write(ids.tobytes())
                lengths.append(len(ids))
    offsets = numpy.zeros(len(lengths), numpy.int64)
    offsets[1:] = numpy.cumsum(lengths[:-1], dtype=numpy.int64) * 2
    with open(prefix + ".idx", "wb") as out:
        out.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(lengths), len(lengths) + 1))
        for array, kind in ((lengths, numpy.int32), (offsets, numpy.int64), (range(len(lengths) + 1), numpy.int64)):
            out.write(numpy.asarray(array, kind).tobytes())


def run(words, threads):
    """Seconds and the peak of resident memory in MiB, of a whole process."""
    begin = time.perf_counter()
    process = subprocess.Popen([str(w) for w in words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               env={**os.environ, "RAYON_NUM_THREADS": str(threads), "TROUPE_PYTHON": sys.executable})
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{words[0]} ended with {process.returncode}")
    return time.perf_counter() - begin, usage.ru_maxrss / 1024


def measure(args, kind, source, tokenizer):
    """Seconds and peaks of each side by threads, interleaved; the outputs are compared byte by byte."""
    folder, troupe = pathlib.Path(tokenizer).parent, pathlib.Path(args.build, "troupe").resolve()
    results = {}
    for _ in range(args.rounds):
        for threads in sorted({1, os.cpu_count()}):
            ours = (troupe, "data", "build", source, "--output", f"{folder}/ours{threads}", "--tokenizer", tokenizer,
                    "--workers", threads, "--replace")
            results.setdefault(("Troupe", threads), []).append(run(ours, threads))
            for reader in RIVALS[kind]:
                theirs = (sys.executable, __file__, "--python", reader, source, f"{folder}/theirs", tokenizer)
                results.setdefault((f"Python with {reader}", threads), []).append(run(theirs, threads))
                for suffix in (".bin", ".idx"):
                    made = [pathlib.Path(folder, p + suffix).read_bytes() for p in ("theirs", f"ours{threads}")]
                    assert made[0] == made[1], f"{suffix} of {kind} by {reader} differs"
    return results


def main():
    if sys.argv[1:2] == ["--python"]:
        return build_in_python(*sys.argv[2:])
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("--megabytes", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--formats", default="jsonl")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        jsonl, tokenizer = f"{folder}/corpus.jsonl", f"{folder}/tokenizer.json"
        write_corpus(jsonl, args.megabytes * 1000 * 1000)
        size = os.path.getsize(jsonl) / 1e6
        subprocess.run([pathlib.Path(args.build, "troupe").resolve(), "tokenizer", "train", jsonl, "--output", tokenizer,
                        "--vocab", "32000"], check=True, capture_output=True)
        for kind in args.formats.split(","):
            source = f"{folder}/corpus.{kind}"
            write_as(kind, jsonl, source)
            results = measure(args, kind, source, tokenizer)
            print(f"{kind}: {os.path.getsize(source) / 1e6:.0f} MB that hold {size:.0f} MB of JSONL, medians of {args.rounds} rounds; "
                  "outputs equal")
            for (name, threads), runs in sorted(results.items()):
                seconds = statistics.median(r[0] for r in runs)
                print(f"{name}, {threads} threads {size / seconds:8.1f} MB/s   peak {max(r[1] for r in runs):6.0f} MiB", flush=True)
    return None


if __name__ == "__main__":
    main()
