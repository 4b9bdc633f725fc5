#!/usr/bin/env python3
"""`data build` beside the same work in Python: JSONL to .bin and .idx with bytes as ids.

  .venv/bin/python bench/data_build.py BUILD [--megabytes N] [--rounds N]

The corpus is the Python sources of the standard library, a file a document, over and over. Both sides
read the same file from the page cache and write to the same disk; rounds are interleaved, medians and
the peak of resident memory are printed, and the two outputs are compared byte by byte.
"""
import argparse
import json
import os
import pathlib
import resource
import statistics
import struct
import subprocess
import sys
import sysconfig
import tempfile
import time

import numpy


def write_corpus(path, size):
    files = sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    lines = [json.dumps({"text": f.read_text(errors="replace")}) + "\n" for f in files]
    with open(path, "w", encoding="utf-8") as out:
        while out.tell() < size:
            out.writelines(lines)


def build_in_python(source, prefix):
    """What tools in Python do: a line at a time, numpy to the disk, the index from lists."""
    lengths, documents = [], [0]
    with open(source, encoding="utf-8") as lines, open(prefix + ".bin", "wb") as out:
        for line in lines:
            ids = numpy.frombuffer(json.loads(line)["text"].encode(), numpy.uint8)
            if len(ids):
                out.write(numpy.append(ids.astype(numpy.uint16), numpy.uint16(256)).tobytes())
                lengths.append(len(ids) + 1)
            documents.append(len(lengths))
    offsets = numpy.zeros(len(lengths), numpy.int64)
    offsets[1:] = numpy.cumsum(lengths[:-1], dtype=numpy.int64) * 2
    with open(prefix + ".idx", "wb") as out:
        out.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(lengths), len(documents)))
        for array, kind in ((lengths, numpy.int32), (offsets, numpy.int64), (documents, numpy.int64)):
            out.write(numpy.asarray(array, kind).tobytes())


def python_side(source, prefix):
    begin = time.perf_counter()
    build_in_python(source, prefix)
    seconds = time.perf_counter() - begin
    return {"seconds": seconds,
            "peak_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}


def run(*command):
    out = subprocess.run([str(c) for c in command], check=True, capture_output=True, text=True)
    return json.loads(out.stdout)


def main():
    if sys.argv[1:2] == ["--python"]:
        print(json.dumps(python_side(*sys.argv[2:])))
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    program = pathlib.Path(args.build, "data_build").resolve()
    cores = os.cpu_count()
    with tempfile.TemporaryDirectory() as folder:
        source = f"{folder}/corpus.jsonl"
        write_corpus(source, args.megabytes * 1000 * 1000)
        sides = {"Python": (sys.executable, __file__, "--python", source, f"{folder}/python"),
                 "Troupe, 1 worker": (program, 1, f"{folder}/one", source),
                 f"Troupe, {cores} workers": (program, cores, f"{folder}/all", source)}
        results = {name: [] for name in sides}
        for _ in range(args.rounds):
            for name, command in sides.items():
                results[name].append(run(*command))
        size = os.path.getsize(source)
        for suffix in (".bin", ".idx"):
            made = [pathlib.Path(folder, p + suffix).read_bytes() for p in ("python", "one", "all")]
            assert made[0] == made[1] == made[2], f"{suffix} differs"
    print(f"{size / 1e6:.0f} MB of JSONL, {cores} cores, medians of {args.rounds} rounds")
    for name, runs in results.items():
        seconds = statistics.median(r["seconds"] for r in runs)
        peak = max(r["peak_kib"] for r in runs) / 1024
        print(f"{name:20} {size / 1e6 / seconds:8.1f} MB/s   peak {peak:6.0f} MiB")


if __name__ == "__main__":
    main()
