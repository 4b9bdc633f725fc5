#!/usr/bin/env python3
"""What `./dev quickstart` does once the program is built: real text, a tokenizer, data, a small
mixture-of-experts model, and what it writes. What is done already is not done again.

    quickstart.py TROUPE                  the King James Bible, out of Debian's package bible-kjv
    quickstart.py TROUPE --text FILE      a text file of yours; blank lines part its documents
    quickstart.py TROUPE --kill           a run that is killed with signal 9 loses nothing
    --set train.steps=100                 one more line of recipes/quickstart.yaml; may be given often

It works in the current folder: data/NAME/ and runs/NAME/, where NAME is `quickstart` or that of FILE.
"""
import argparse
import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

RECIPE = pathlib.Path(__file__).resolve().parents[1] / "recipes/quickstart.yaml"
VOCABULARY = 2048
VALID_EVERY = 40       # of so many documents one is kept for validation
DOCUMENT_BYTES = 2000  # at least: shorter paragraphs are joined
DRILL_STEPS, DRILL_SAVES, DRILL_KILL = 60, 20, 33


def bible():
    """The text, a verse a line and a blank line after each chapter."""
    if not shutil.which("bible"):
        raise SystemExit("The program `bible` is not here; it holds the text. Run ./dev quickstart, which installs\n"
                         "it, or as root: apt-get install bible-kjv. Or take a text of yours: --text FILE")
    said = subprocess.run(["bible", "-f", "Gen1:1-Rev22:21"], check=True, capture_output=True, text=True, cwd="/").stdout
    lines, chapter = [], None
    for line in said.splitlines():
        place, verse = re.fullmatch(r"(\w+:\d+) (.*)", line).groups()
        if chapter not in (None, place.split(":")[0]):
            lines.append("")
        chapter = place.split(":")[0]
        lines.append(verse)
    return "\n".join(lines) + "\n"


def documents(text):
    """Paragraphs, the short ones together."""
    out = []
    for paragraph in re.split(r"\n\s*\n", text):
        if out and len(out[-1]) < DOCUMENT_BYTES:
            out[-1] += "\n" + paragraph
        elif paragraph.strip():
            out.append(paragraph)
    return [d.strip("\n") + "\n" for d in out]


class QuickStart:
    def __init__(self, args):
        self.troupe, self.args = args.troupe, args
        self.name = pathlib.Path(args.text).stem if args.text else "quickstart"
        self.data, self.run = pathlib.Path("data", self.name), pathlib.Path("runs", self.name)
        self.recipe = os.path.relpath(RECIPE)
        self.command = "./dev quickstart" + (f" --text {shlex.quote(args.text)}" if args.text else "")
        self.sets = []
        if args.text:
            self.sets = [f"data.train=[{{path: {self.data}/train}}]", f"data.valid=[{{path: {self.data}/valid}}]",
                         f"data.tokenizer={self.data}/tokenizer.json", f"checkpoint.dir={self.run}",
                         f"eval.prompts=[{json.dumps(self.prompt())}]"]
        self.sets += args.set

    def prompt(self):
        """What samples begin with: the first words of a text that is not the Bible."""
        return " ".join(self.text().split()[:3]) if self.args.text else "And the king said"

    def text(self):
        try:
            return pathlib.Path(self.args.text).read_text(errors="replace") if self.args.text else bible()
        except OSError as error:
            raise SystemExit(f"{self.args.text}: {error.strerror}") from None

    def call(self, *words):
        """A command of the program, shown as one would type it, and the first line that it says."""
        print("  $", shlex.join(map(str, words)), flush=True)
        done = subprocess.run([self.troupe, *map(str, words[1:])], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        print("   ", done.stdout.partition("\n")[0], flush=True)

    def prepare(self):
        """Text, tokenizer and data, unless they are there from this text."""
        source = pathlib.Path(self.args.text) if self.args.text else None
        text = self.text()
        mark = hashlib.sha256(f"{VOCABULARY} {VALID_EVERY} {DOCUMENT_BYTES} {text}".encode()).hexdigest()
        done = self.data / "made_of"
        if done.exists() and done.read_text() == mark:
            print(f"data     {self.data} is there", flush=True)
            return
        if done.exists() and self.run.exists():
            raise SystemExit(f"{source or 'the text'} has changed since {self.run} began. To begin anew: "
                             f"rm -r {self.run} {self.data}")
        all_documents = documents(text)
        if len(all_documents) < 2 * VALID_EVERY:
            raise SystemExit(f"{source}: {len(text)} characters make {len(all_documents)} documents, and {2 * VALID_EVERY} "
                             f"are needed: take a text of {2 * VALID_EVERY * DOCUMENT_BYTES // 1000} KB or more")
        what = source or "the King James Bible of 1611, in the public domain (Debian's package bible-kjv)"
        print(f"text     {len(text) / 1e6:.1f} MB: {what}", flush=True)
        shutil.rmtree(self.data, ignore_errors=True)
        self.data.mkdir(parents=True)
        for name, valid in (("train", False), ("valid", True)):
            with open(self.data / f"{name}.jsonl", "w", encoding="utf-8") as out:
                for i, document in enumerate(all_documents):
                    if (i % VALID_EVERY == VALID_EVERY - 1) == valid:
                        out.write(json.dumps({"text": document}) + "\n")
        self.call("troupe", "tokenizer", "train", self.data / "train.jsonl", "--output", self.data / "tokenizer.json",
                  "--vocab", VOCABULARY)
        for name in ("train", "valid"):
            self.call("troupe", "data", "build", self.data / f"{name}.jsonl", "--output", self.data / name,
                      "--tokenizer", self.data / "tokenizer.json")
        done.write_text(mark)

    def train(self, *sets, quiet=False, **environment):
        """The program's exit code; Ctrl-C reaches it too, and it ends by itself."""
        words = ["train", self.recipe]
        for one in (*self.sets, *sets):
            words += ["--set", one]
        words += ["--quiet"] if quiet else []
        with subprocess.Popen([self.troupe, *words], env=dict(os.environ, **environment)) as process:
            while True:
                try:
                    return process.wait()
                except KeyboardInterrupt:
                    pass

    def learn(self):
        begin, took = time.time(), ""
        rows = records(self.run)
        if any(r.get("event") == "end" for r in rows):
            print(f"training {self.run} is done (to do it again: rm -r {self.run})")
        else:
            print(f"training {self.recipe}{', resumed' if rows else ''}; Ctrl-C stops it, {self.command} resumes", flush=True)
            if code := self.train():
                raise SystemExit(code)
            took = f"; {time.time() - begin:.0f} s"
        rows = records(self.run)
        if not any(r.get("event") == "end" for r in rows):
            print(f"Stopped. {self.command} resumes.")
            return
        self.conclude(rows, took)

    def conclude(self, rows, took):
        samples = [r for r in rows if r.get("event") == "sample"]
        losses = [r["val/loss"] for r in rows if r.get("event") == "eval"]
        print(f"\nbefore   {indented(samples[0]['text'])}\n\nafter    {indented(samples[-1]['text'])}\n")
        print(f"loss     {losses[0]:.2f} before, {losses[-1]:.2f} after, on text that it never saw{took}")
        print(f"report   {self.run}/report.html\n\nNext:\n"
              f"  {self.troupe} generate {shlex.quote(str(self.run))} -p {shlex.quote(self.prompt())}\n"
              "  ./dev quickstart --text FILE     the same with a text of yours\n"
              "  ./dev quickstart --kill          a run that is killed with signal 9 loses nothing")

    def drill(self):
        """Two short runs of one recipe, one of them killed on its way: the losses are equal."""
        killed, whole = pathlib.Path(f"{self.run}_killed"), pathlib.Path(f"{self.run}_whole")
        for folder in (killed, whole):
            shutil.rmtree(folder, ignore_errors=True)
        sets = (f"train.steps={DRILL_STEPS}", f"checkpoint.every_steps={DRILL_SAVES}", "eval.every=0", "eval.at_start=false",
                f"log.every={DRILL_SAVES}", "checkpoint.background=false")  # saved before it is killed, on a slow disk too
        print(f"[1/3] {DRILL_STEPS} steps, saved every {DRILL_SAVES}; it kills itself with signal 9 in step {DRILL_KILL + 1}", flush=True)
        code = self.train(f"checkpoint.dir={killed}", *sets, TROUPE_FAULT=f"batch:{DRILL_KILL}=kill")
        if code != -signal.SIGKILL:
            raise SystemExit(f"it was to die of signal 9, and ended with {code}")
        print("[2/3] killed; the same command again", flush=True)
        if code := self.train(f"checkpoint.dir={killed}", *sets):
            raise SystemExit(code)
        print("[3/3] the same run without a kill, to compare", flush=True)
        if code := self.train(f"checkpoint.dir={whole}", *sets, quiet=True):
            raise SystemExit(code)
        self.compare(losses(records(killed)), losses(records(whole)))

    @staticmethod
    def compare(killed, whole):
        print("\nstep   loss, killed and gone on   loss, in one go")
        for step in (DRILL_SAVES, DRILL_SAVES + 1, DRILL_KILL, DRILL_KILL + 1, DRILL_STEPS):
            print(f"{step:4d}   {killed.get(step)!r:>24}   {whole.get(step)!r:>15}")
        if len(whole) != DRILL_STEPS or killed != whole:
            raise SystemExit("The losses differ.")
        print(f"All {DRILL_STEPS} losses are equal, to the last bit.")


def records(run):
    """The lines of a run's log; a last line that is torn is left out."""
    path, out = run / "log.jsonl", []
    for line in path.read_bytes().split(b"\n")[:-1] if path.exists() else []:
        try:
            out.append(json.loads(line))
        except ValueError:
            pass
    return out


def losses(rows):
    """By step; what was done again counts as it was the last time."""
    return {r["step"]: r["loss"] for r in rows if "event" not in r}


def indented(text):
    return text.strip().replace("\n", "\n         ")


def main():
    parser = argparse.ArgumentParser(prog="./dev quickstart", description="real text to a trained model in five minutes")
    parser.add_argument("troupe")
    parser.add_argument("--text")
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE")
    start = QuickStart(parser.parse_args())
    start.prepare()
    if start.args.kill:
        start.drill()
    else:
        start.learn()


if __name__ == "__main__":
    sys.exit(main())
