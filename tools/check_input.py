#!/usr/bin/env python3
"""Fails where what a file says could do what its writer wants of the program:

- markup: HTML or SVG that is put together by hand. Names and texts become part of it there (a set's name that is a
  script ran in a report). Text of report.html and pictures is made by Markup (train/report/markup.h) alone, which
  escapes all but literals.
- control characters: what is written past std::cout, std::cerr and the log, which take out of names and texts what a
  terminal would obey (apps/terminal_text.h, core/text/plain_text.h).
- counts: a config that is read from a file whose numbers nobody looks at before something is computed, made or
  repeated with them. Who reads one calls counts_out_of_bounds (core/config/counts.h), or is named below with why no
  number of it can do harm."""
import pathlib
import re
import sys

TOPS = ("troupe", "apps")
TAG = re.compile(r"</?(?:svg|g|rect|line|circle|polyline|path|text|title|html|head|body|table|tr|th|td|p|h[1-6]|div"
                 r"|span|pre|figure|figcaption|script|style|a|b|i|ul|li|img)(?:[ >/]|\\n|$)")
LITERALS = re.compile(r'(?:"(?:[^"\\\n]|\\.)*"\s*)+')
PAST_FILTER = re.compile(r"\b(?:v?f?printf|f?puts|f?putc|putchar)\s*\(")
READS = re.compile(r"\bread_config\s*\(\s*(?:load_yaml|parse_yaml|parse_json)\b|\bread_config\s*\(\s*\w+\.scalars\b"
                   r"|\bread_config\s*\(\s*\w+\s*,")
BOUNDED = re.compile(r"\bcounts_out_of_bounds\s*\(")
# Readers of files that hold no count by which memory is taken or a loop repeats.
HARMLESS = {
    "apps/bench.cpp": "rates of this program's own ranks",
    "apps/inspect.cpp": "a flight record: numbers to show and to order by, ranks are those of its lists",
    "apps/sweep_facts.cpp": "sweep.json, which is compared with the command's own",
    "troupe/checkpoint/files/manifest.cpp": "sizes are compared with the files that they are of",
    "troupe/checkpoint/files/manifest.h": "the state of a run: require_counters() of train/loop/resume_checks.h",
    "troupe/checkpoint/state/save_step.cpp": "sizes of this run's own shards",
    "troupe/core/config/config.h": "read_config itself",
    "troupe/data/build/build_corpus.cpp": "a journal, which is compared with the files that it is of",
    "troupe/data/text/build_info.cpp": "a data set's description, compared with its files",
    "troupe/nn/config/presets.cpp": "presets of this program",
    "troupe/train/recipe/load_recipe.cpp": "the recipe, which validate() looks at",
    "troupe/train/run/kept_tokenizer.cpp": "kept.json: names and hashes of files",
    "troupe/train/observe/expert_use.cpp": "experts.json: words and numbers to show",
    "troupe/train/observe/run_files.cpp": "exit.json: words and numbers to show, and a process that is only looked up",
    "troupe/train/forecast/agree_layout.cpp": "the layout of rank 0, which has been validated",
    "troupe/train/recipe/foreign/draft.cpp": "the recipe that it wrote, which validate() looks at",
    "troupe/train/report/report.cpp": "env.json: words and numbers to show",
    "troupe/train/report/report_tables.cpp": "exit.json: words and numbers to show",
}


def without_comments(text):
    """The same, with spaces for comments; what looks like one in a literal stays."""
    out = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*.*?\*/', re.S)
    return out.sub(lambda m: m[0] if m[0][0] == '"' else re.sub(r"[^\n]", " ", m[0]), text)


def file_faults(path, text):
    text = without_comments(text)
    line = lambda at: text.count("\n", 0, at) + 1
    for found in LITERALS.finditer(text):
        if not TAG.search(found[0]):
            continue
        before, behind = text[:found.start()].rstrip(), text[found.end():].lstrip()
        streamed = before.endswith("<<") and re.search(r"\bMarkup\b", text) and not re.search(r"\bstd::o\w*stream\b", text)
        if not streamed or behind.startswith("+"):
            yield f"{path}:{line(found.start())}: markup by hand; Markup of train/report/markup.h escapes what is not literal"
    for found in PAST_FILTER.finditer(text):
        yield f"{path}:{line(found.start())}: a terminal obeys what is written so; print_text() of apps/print.h, std::cerr or the log"
    if path not in HARMLESS and not BOUNDED.search(text):
        for found in READS.finditer(text):
            yield (f"{path}:{line(found.start())}: numbers of a file that nobody looks at: counts_out_of_bounds() of "
                   "core/config/counts.h, or a line in tools/check_input.py that says why none can do harm")


def faults(root):
    for path in sorted(p for top in TOPS for p in (root / top).rglob("*")):
        if path.suffix not in {".h", ".cpp"} or path.stem.endswith(("_test", "_bench")) or "testing" in path.parts:
            continue
        yield from file_faults(path.relative_to(root).as_posix(), path.read_text())


if __name__ == "__main__":
    found = list(faults(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")))
    print("\n".join(found) or "input: ok")
    sys.exit(bool(found))
