"""The pages of docs/ do what they say. The shell and Python blocks of the guides run in order, a page in an empty folder that
has links to what a clone has. A block that needs a GPU, a hub, another machine, an account or a build says so in its
first line (```sh gpu): its commands are parsed only, and the names of troupe in it are looked up; ```sh exit=2 must end
with 2. Links lead somewhere, pages are short, the generated reference is what the program says, and files and commands that a
sentence or a table names exist."""
import ast
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))
import make_reference  # noqa: E402

TROUPE = pathlib.Path(os.environ["TROUPE_BUILD"], "troupe").resolve()
GUIDES = sorted((ROOT / "docs/guide").glob("*.md"))
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.M | re.S)
MARKS = ("gpu", "hub", "cluster", "account", "build")
LONG_PAGES = {"BENCH.md", "RECIPE.md", "COMMANDS.md", "FEATURES.md", "FEATURES_CHANGES.md", "RELIABILITY.md", "RULES.md", "LAYOUTS.md"}
PACKAGE = {"PYTHONPATH": str(ROOT / "python"), "TROUPE_LIBRARY": str(TROUPE.parent / "libtroupe.so")}
# What a clone has, and the folders that the blocks write to are their own.
CLONE = ("recipes", "machines", "tools", "bench", "docs", "python", "examples")
# `./dev quickstart` of a block is this: the same script with fewer, smaller steps, and a text that is here.
DEV = """#!/bin/sh
[ "$1" = quickstart ] && shift && exec {python} {root}/tools/quickstart.py {troupe} "$@" --set model.layers=2 --set model.width=32 \\
  --set model.heads=2 --set model.moe.hidden=16 --set data.sequence=64 --set train.steps=6 --set train.schedule.warmup=2 \\
  --set eval.every=6 --set eval.sample_tokens=8 --set checkpoint.every_steps=4 --set run.device=cpu
"""


def blocks(page):
    """(language, word behind it, text, line) of each fenced block."""
    text = page.read_text()
    return [(language, word, body, text.count("\n", 0, found.start()) + 2)
            for found in BLOCK.finditer(text) for language, word, body in [found.groups()]]


def anchors(page):
    """What a heading is called in a link."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


class Scratch:
    """An empty folder as a clone looks after `./dev quickstart`."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        for name in CLONE:
            (self.folder / name).symlink_to(ROOT / name)
        (self.folder / "build/release").mkdir(parents=True)
        (self.folder / "build/release/troupe").symlink_to(TROUPE)
        bible = self.folder / "bin/bible"
        bible.parent.mkdir()
        words = re.findall(r"[A-Za-z,.]+", (ROOT / "docs/develop/RULES.md").read_text())
        verses = [f"{book}{chapter}:{verse} " + " ".join(words[(37 * chapter + 11 * verse) % 2000:][:16])
                  for book in ("Ge", "Ps", "Mt") for chapter in range(1, 41) for verse in range(1, 31)]
        (self.folder / "verses").write_text("\n".join(verses) + "\n")
        bible.write_text(f"#!/bin/sh\nexec cat {self.folder}/verses\n")
        dev = self.folder / "dev"
        dev.write_text(DEV.format(python=sys.executable, root=ROOT, troupe=TROUPE))
        for program in (bible, dev):
            program.chmod(0o755)
        self.env = dict(os.environ, OMP_NUM_THREADS="1", PATH=f"{self.folder}/bin:{self.folder}/build/release:{os.environ['PATH']}",
                        **PACKAGE)

    def run(self, *command):
        return subprocess.run(command, cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=300, check=False)


def commands(script):
    """The simple commands of a block as words, without comments, assignments and here documents."""
    script = re.sub(r"<<'(\w+)'\n.*?^\1$", "", script, flags=re.M | re.S).replace("\\\n", " ")
    for line in script.splitlines():
        words = shlex.split(line, comments=True)
        while words and re.match(r"\w+=", words[0]):
            words.pop(0)
        if words:
            yield words


class Parse(unittest.TestCase):
    """A command that is not run names a program, a verb, options and recipe keys that exist."""
    @staticmethod
    def help_of(words):
        return dict(make_reference.helps(TROUPE)).get(tuple(words), "")

    def check_troupe(self, words, place):
        verb = []
        while words and words[0] in make_reference.commands_in(self.help_of(verb)):
            verb.append(words.pop(0))
        self.assertTrue(verb or words[:1] and words[0].startswith("--"), f"{place}: no verb in {words}")
        text = self.help_of(verb)
        rest = iter(words)
        for word in rest:
            if word == "--":
                inner = list(rest)  # a verb, or a launcher before the program
                return self.check_troupe(inner[inner.index("troupe") + 1:] if "troupe" in inner else inner, place)
            if word.startswith("-"):
                self.assertRegex(text, rf"(^|[\s,]){re.escape(word.split('=')[0])}\b", f"{place}: troupe {' '.join(verb)} has no {word}")
            if word == "--set":
                key = next(rest).split("=")[0]
                explained = subprocess.run([TROUPE, "config", "explain", key], capture_output=True, text=True, timeout=300, check=False)
                self.assertEqual(explained.returncode, 0, f"{place}: {explained.stderr}")
            if word.startswith(("recipes/", "machines/")):
                self.assertTrue((ROOT / word).exists(), f"{place}: no file {word}")
        return None

    def check(self, words, place):
        of_a_script = words[0] == "python" and words[1].endswith(".py")
        if "troupe" in words and not of_a_script:  # also behind a launcher
            return self.check_troupe(words[words.index("troupe") + 1:], place)
        program = words[0]
        if program == "./dev":
            usage = (ROOT / "dev").read_text()
            return self.assertRegex(usage, rf"(?m)^\./dev {words[1]}\b", place)
        if words[:3] == ["python", "-m", "torch.distributed.run"]:
            script = next(word for word in words[3:] if word.endswith(".py"))
            return self.assertTrue((ROOT / script).exists(), f"{place}: no file {script}")
        if program in ("python", ".venv/bin/python") and words[1] == "-m":
            module = ROOT / "python" / words[2].replace(".", "/")
            return self.assertTrue((module / "__main__.py").exists() or module.with_suffix(".py").exists(), f"{place}: {words[2]}")
        if program == "python" and words[1].endswith(".py"):
            return self.assertTrue((ROOT / words[1]).exists(), f"{place}: no file {words[1]}")
        if program.startswith(("tools/", "bench/")):
            source = (ROOT / program).read_text()
            for option in (word for word in words[1:] if word.startswith("--")):
                self.assertIn(f'"{option}"', source, f"{place}: {program} has no {option}")
            return None
        if program.startswith("build/"):  # a bench, which a command before has built
            sources = [ROOT / "bench" / (pathlib.PurePath(program).name + kind) for kind in (".cpp", ".cu")]
            return self.assertTrue(any(source.exists() for source in sources), f"{place}: no source of {program}")
        if program in ("sbatch", "kubectl", "scancel"):
            for word in words:
                self.assertTrue(not word.startswith("recipes/") or (ROOT / word).exists(), f"{place}: no file {word}")
            return None
        return self.assertIn(program, ("cmake", "pip", "export"), f"{place}: {program} is unknown to this test")

    def test_commands_that_need_more_than_a_laptop_are_parsed(self):
        count = 0
        for page in [ROOT / "README.md", *GUIDES]:
            for language, word, body, line in blocks(page):
                if language == "sh" and word and not word.startswith("exit="):
                    self.assertIn(word, MARKS, f"{page}:{line}")
                    for words in commands(body):
                        self.check(words, f"{page.relative_to(ROOT)}:{line}")
                        count += 1
        self.assertGreater(count, 8)

    def test_a_wrong_option_verb_or_key_is_found(self):
        for line in ("troupe trane x.yaml", "troupe train x.yaml --quite", "troupe train x.yaml --set train.stepz=1",
                     "torchrun troupe launch -n 2 -- train x.yaml --loud", "./dev quikstart", "tools/follow_log.py x --two wandb",
                     "troupe plan recipes/none.yaml", "sbatch recipes/none.sbatch", "docker run x", "python examples/none.py x"):
            with self.assertRaises(AssertionError, msg=line):
                self.check(shlex.split(line), "here")


# Words of a page that are made up: what a reader would add, or what a guide's own commands write.
MADE_UP = re.compile(r"(^|/)(x|x_\w+)(\.\w+)?/?$|^data/")


def named_in(page):
    """The texts in backticks of a page, outside of its blocks."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S))


def missing_path(word):
    """Whether a word is a path of this tree, from its root or from troupe/, and leads nowhere."""
    tops = {folder.name for base in (ROOT, ROOT / "troupe") for folder in base.iterdir() if folder.is_dir()} - {"build"}
    if not re.fullmatch(r"[A-Za-z_][\w.]*(/[\w.-]+)+/?", word) or word.split("/")[0] not in tops or MADE_UP.search(word):
        return False
    found = [base / word for base in (ROOT, ROOT / "troupe")]
    return not any(path.exists() or any(path.parent.glob(path.name + end)) for path in found for end in (".*", "_test.*"))


class Named(unittest.TestCase):
    """What a sentence or a table of a page names: files of this tree, and commands with their options."""
    PAGES = [page for page in PAGES if not re.match(r"CHANGELOG|FEATURES|20", page.name)]  # what is, not what was or is wanted

    def test_files_that_pages_name_exist(self):
        words = [(page, word) for page in self.PAGES for text in named_in(page) for word in text.split()[:1]]
        self.assertEqual([f"{page.relative_to(ROOT)}: {word}" for page, word in words if missing_path(word)], [])
        self.assertGreater(sum("/" in word for _, word in words), 300)

    def test_commands_that_pages_name_exist(self):
        count = 0
        for page in self.PAGES:
            for text in named_in(page):
                words = text.split(" | ")[0].split()
                if len(words) > 1 and (words[0] in ("./dev", "troupe") or re.match(r"(bench|tools)/\w+\.py$", words[0])):
                    Parse().check(words, f"{page.relative_to(ROOT)}: `{text}`")
                    count += 1
        self.assertGreater(count, 60)

    def test_a_file_that_is_not_there_is_found(self):
        for word in ("troupe/ops/nothing.cpp", "ops/nothing", "bench/nothing.py", "tests/nothing_test.py"):
            self.assertTrue(missing_path(word), word)
        for word in ("ops/permute", "train/layout/factorings", "docs/bench", "build/ci/troupe", "runs/small", "ops/x.cpp", "and/or"):
            self.assertFalse(missing_path(word), word)


def names_of_troupe(script):
    """The names "troupe.a.b" that a Python block uses, the longest of each; its imports of troupe's modules too."""
    for node in ast.walk(ast.parse(script)):
        if isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            if re.fullmatch(r"troupe(\.\w+)+", name):
                yield name
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "troupe")


LOOK_UP = """
import importlib, sys, troupe
for name in sys.argv[1:]:
    value = troupe
    for i, part in enumerate(name.split(".")[1:], 2):
        value = getattr(value, part, None) or importlib.import_module(".".join(name.split(".")[:i]))
"""


class ParsePython(unittest.TestCase):
    def look_up(self, names):
        return subprocess.run([sys.executable, "-c", LOOK_UP, *names], env=dict(os.environ, **PACKAGE), capture_output=True,
                              text=True, timeout=300, check=False)

    def test_names_in_blocks_that_are_not_run_exist(self):
        names = {name for page in [ROOT / "README.md", *GUIDES] for language, word, body, _ in blocks(page)
                 if language == "python" and word for name in names_of_troupe(body)}
        self.assertGreater(len(names), 5)
        done = self.look_up(sorted(names))
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_wrong_name_is_found(self):
        self.assertEqual(sorted(names_of_troupe("import troupe.megablocks as m\ny = troupe.MoE(troupe.no.such)[0].troupe\n")),
                         ["troupe.MoE", "troupe.megablocks", "troupe.no", "troupe.no.such"])
        self.assertNotEqual(self.look_up(["troupe.no.such"]).returncode, 0)


def is_run(language, word):
    return language in ("sh", "python") and word not in MARKS


class Guides(unittest.TestCase):
    """Each page is run by itself, all its blocks in order. A Python block sees the names of those before it."""

    def page_runs(self, name):
        with tempfile.TemporaryDirectory() as folder:
            scratch, ran, python = Scratch(folder), 0, ""
            for language, word, body, line in blocks(ROOT / name):
                if language == "yaml" and word:
                    (scratch.folder / word).write_text(body)
                if not is_run(language, word):
                    continue
                begin = time.monotonic()
                if language == "python":
                    python += body
                    done = scratch.run(sys.executable, "-c", python)
                else:
                    done = scratch.run("bash", "-euo", "pipefail", "-c", body)
                self.assertEqual(done.returncode, int((word or "exit=0").removeprefix("exit=")), f"{name}:{line}\n{body}\n{done.stdout}\n{done.stderr}")
                print(f"{name}:{line} took {time.monotonic() - begin:.1f} s", file=sys.stderr)
                ran += 1
            self.assertGreater(ran, 0)

    def test_every_guide_is_run_here(self):
        tests = {name.removeprefix("test_run_") for name in dir(self) if name.startswith("test_run_")}
        self.assertEqual(tests, {page.stem.lower() for page in [ROOT / "README.md", *GUIDES] if any(
            is_run(language, word) for language, word, _, _ in blocks(page))})

    def test_run_readme(self):
        self.page_runs("README.md")

    def test_run_megablocks(self):
        self.page_runs("docs/guide/megablocks.md")

    def test_run_first_model(self):
        self.page_runs("docs/guide/first_model.md")

    def test_run_your_text(self):
        self.page_runs("docs/guide/your_text.md")

    def test_run_host_memory(self):
        self.page_runs("docs/guide/host_memory.md")

    def test_run_your_gpu(self):
        self.page_runs("docs/guide/your_gpu.md")

    def test_run_many_ranks(self):
        self.page_runs("docs/guide/many_ranks.md")

    def test_run_sweeps(self):
        self.page_runs("docs/guide/sweeps.md")

    def test_run_bring_along(self):
        self.page_runs("docs/guide/bring_along.md")

    def test_run_checkpoints(self):
        self.page_runs("docs/guide/checkpoints.md")

    def test_run_read_a_log(self):
        self.page_runs("docs/guide/read_a_log.md")

    def test_run_fine_tune(self):
        self.page_runs("docs/guide/fine_tune.md")

    def test_run_chats_and_preferences(self):
        self.page_runs("docs/guide/chats_and_preferences.md")

    def test_run_when_it_fails(self):
        self.page_runs("docs/guide/when_it_fails.md")

    def test_run_library(self):
        self.page_runs("docs/guide/library.md")

    def test_run_pytorch(self):
        self.page_runs("docs/guide/pytorch.md")


class Pages(unittest.TestCase):
    def test_links_lead_somewhere(self):
        for page in PAGES:
            for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
                if re.match(r"\w+:", link):
                    continue
                path, _, anchor = link.partition("#")
                target = (page.parent / path).resolve() if path else page
                self.assertTrue(target.exists(), f"{page.relative_to(ROOT)}: {link}")
                if anchor:
                    self.assertIn(anchor, anchors(target), f"{page.relative_to(ROOT)}: {link}")

    def test_every_page_is_in_the_list_of_pages(self):
        listed = {(ROOT / "docs" / link.partition("#")[0]).resolve()
                  for link in re.findall(r"\]\(([^)\s]+)\)", (ROOT / "docs/README.md").read_text())}
        for page in (ROOT / "docs").glob("*/*.md"):
            if page.parent.name != "bench":
                self.assertIn(page, listed)

    def test_pages_have_headings_and_are_short(self):
        for page in (ROOT / "docs").glob("*/*.md"):
            text = page.read_text()
            self.assertTrue(text.startswith("# "), page)
            self.assertGreater(len(re.findall(r"^## ", text, re.M)), 0, page)
            if page.name not in LONG_PAGES:
                self.assertLessEqual(text.count("\n"), 150, page)

    def test_the_reference_is_what_the_program_says(self):
        for name, text in make_reference.pages(TROUPE).items():
            page = ROOT / "docs/reference" / name
            self.assertEqual(page.read_text() if page.exists() else "", text,
                             f"docs/reference/{name} is not what the program says: .venv/bin/python tools/make_reference.py PROGRAM")

    def test_110_the_forecasts_of_large_runs_are_what_the_program_says(self):
        checked = subprocess.run([sys.executable, ROOT / "tools/scaling_table.py", TROUPE, "--check", "--few"],
                                 capture_output=True, text=True, timeout=300, check=False)
        self.assertEqual(checked.returncode, 0, checked.stderr)


if __name__ == "__main__":
    unittest.main()
