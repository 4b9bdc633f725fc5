#!/usr/bin/env python3
"""check_rules.py ROOT: the ids of rules (R4, X1, F33, Q8-11) in comments and test names, and the rows of
docs/develop/RULES.md, are the same set. Fails where an id has no row or two, where nothing cites a row, where the
file of a row does not exist, where a fault of docs/reference/RELIABILITY.md has no row, and where a comment names a page
that is not in the tree or a section by its number alone.

In a test name an id is a part between underscores: TEST(Route, R4_R5_EqualsAten), test_H4_three_ranks. A number after
an id that has rows of its own (Q8-11) belongs to it: Q8_11_TiesGoToEven. In a comment an id begins with the letters
of a chapter."""
import ast
import collections
import io
import pathlib
import re
import sys
import tokenize

PAGE, FAULTS = "docs/develop/RULES.md", "docs/reference/RELIABILITY.md"
TOPS = ("troupe", "apps", "tests", "python", "bench", "tools", "examples")
CODE = {".h", ".cuh", ".cpp", ".cu"}
ID = r"[A-Z]{1,2}[1-9]\d{0,2}"
ROW = re.compile(rf"^\| *({ID}(?:-\d+)?) *\|(.*)\|([^|]*)\| *$", re.M)
MENTION = re.compile(rf"(?<![\w.-])({ID}(?:-\d+)?)(?![\w])")
TEST = re.compile(r"\b(?:TYPED_)?TEST(?:_[FP])?\(\s*\w+,\s*(\w+)\s*\)")
PYTHON_TEST = re.compile(r"^ +def test_(\w+)\(", re.M)
STRING_OR_COMMENT = re.compile(r'R"\((?:.|\n)*?\)"|"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*(?:.|\n)*?\*/')

NAMED_PAGE = re.compile(r"(?<!\w)[\w/.-]+\.md\b|\bsections? \d[\d.]*")
WRITTEN_PAGES = ("table.md",)  # of a reader's own folder: what a tool writes there

# What looks like an id in a comment and is none.
NO_RULES = {
    "H100": "a GPU", "H200": "a GPU", "A100": "a GPU", "A10": "a GPU", "E402": "a warning of linters", "E731": "a warning of linters",
    "I64": "a dtype",
}
# Folders whose comments write a step's actions so: F1.0 B1.0 A1 (schedule/text.h).
NO_COMMENTS = ("troupe/schedule/", "troupe/plan/")
# Tests of the checks plant ids of their own.
PASSED_OVER = ("tools/check_test.py", "tools/check_rules.py")


def comments_of(path, text):
    """(line, comment) of a source file."""
    if path.suffix in CODE:
        for found in STRING_OR_COMMENT.finditer(text):
            if found[0].startswith("/"):
                yield text.count("\n", 0, found.start()) + 1, found[0]
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node):
            yield node.body[0].lineno, ast.get_docstring(node)


def ids_of_name(name, families):
    parts = name.split("_")
    for part, after in zip(parts, parts[1:] + [""]):
        if re.fullmatch(ID, part):
            yield f"{part}-{after}" if part in families and after.isdigit() else part


def mentions(root, rows):
    """(id, place) of each id that a test name or a comment has."""
    families = {row.split("-")[0] for row in rows if "-" in row}
    chapters = {re.match("[A-Z]+", row)[0] for row in rows}
    for path in sorted(p for top in TOPS for p in (root / top).rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.suffix not in CODE | {".py"} or name in PASSED_OVER:
            continue
        text = path.read_text()
        for found in (TEST if path.suffix in CODE else PYTHON_TEST).finditer(text):
            line = text.count("\n", 0, found.start()) + 1
            yield from ((rule, f"{name}:{line}") for rule in ids_of_name(found[1], families))
        if name.startswith(NO_COMMENTS):
            continue
        for line, comment in comments_of(path, text):
            for rule in MENTION.findall(comment):
                if rule not in NO_RULES and re.match("[A-Z]+", rule)[0] in chapters:
                    yield rule, f"{name}:{line}"


def unknown_pages(root):
    """(page or section, place) of each that a comment names and a reader of this tree cannot open."""
    pages = ["/" + path.relative_to(root).as_posix() for path in [*root.glob("*.md"), *root.glob("docs/**/*.md")]]
    for path in sorted(p for top in TOPS for p in (root / top).rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.suffix in CODE | {".py"} and name not in PASSED_OVER:
            for line, comment in comments_of(path, path.read_text()):
                for word in NAMED_PAGE.findall(comment):
                    if word not in WRITTEN_PAGES and not any(page.endswith("/" + word) for page in pages):
                        yield word, f"{name}:{line}"


def file_exists(root, file):
    """`kernels/route` is a folder or its .h, .cpp, .cu; apps and tools are named from the root."""
    return any((top / file).exists() or any((top / file).parent.glob(pathlib.Path(file).name + ".*"))
               for top in (root / "troupe", root))


def faults(root):
    page = root / PAGE
    rows = ROW.findall(page.read_text()) if page.exists() else []
    ids = [rule for rule, *_ in rows]
    for rule, count in collections.Counter(ids).items():
        if count > 1:
            yield f"{page}: {rule} has {count} rows"
    for rule, text, files in rows:
        named = re.findall(r"`([^`]+)`", files)
        if not text.strip() or not named:
            yield f"{page}: {rule}: a row is | id | rule | `file` |"
        for file in named:
            if not file_exists(root, file):
                yield f"{page}: {rule}: no file {file}"
    used = set()
    for rule, place in mentions(root, ids):
        used.add(rule)
        if rule not in ids:
            yield f"{place}: {rule} has no row in {PAGE} (what is no rule is listed in tools/check_rules.py: NO_RULES)"
    for word, place in unknown_pages(root):
        yield f"{place}: {word}: no such page in this tree; say it here, or cite a rule"
    reliability = root / FAULTS
    listed = re.findall(r"^\| *(F\d+(?:, F\d+)*) *\|", reliability.read_text(), re.M) if reliability.exists() else []
    for fault in sorted({fault for cell in listed for fault in cell.split(", ")}):
        used.add(fault)
        if fault not in ids:
            yield f"{reliability}: {fault} has no row in {PAGE}"
    for rule in ids:
        if rule not in used:
            yield f"{page}: {rule}: no comment and no test name has it"


if __name__ == "__main__":
    root_folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    found_faults = list(faults(root_folder))
    print("\n".join(found_faults) or "rules: ok")
    sys.exit(bool(found_faults))
