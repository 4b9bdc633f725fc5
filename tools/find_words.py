#!/usr/bin/env python3
"""find_words.py [ROOT] [KIND]: counts, by kind, the words in comments, messages, docstrings and pages that docs/develop/STYLE.md
asks to replace; with a kind, each place. It helps to find them and is no gate: a whole sentence may begin with "Of"."""
import collections
import pathlib
import re
import subprocess
import sys

CODE = {".h", ".cuh", ".cpp", ".cu"}
NOT_LOOKED_AT = ("tools/find_words.py", "tools/check_test.py")  # the words themselves
PROSE = CODE | {".py", ".md", ".yaml", ".cmake", ".txt"}
PIECE = {
    "code": re.compile(r'R"\((?:.|\n)*?\)"|"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*(?:.|\n)*?\*/'),
    ".py": re.compile(r'"""(?:.|\n)*?"""|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|#[^\n]*'),
    ".md": re.compile(r"^```(?:.|\n)*?^```|[^\n]+", re.M),
    "other": re.compile(r"#[^\n]*"),
}
KINDS = {name: re.compile(words, re.M) for name, words in {
    "no verb": r'(?:^|[.;:] |// +|# |["*|(] *)Of (?!course)',  # "Of x: y"
    "told": r"\btold\b|\bheard\b|\bhears?\b",
    "lie": r"\b(?:lie|lies)\b",
    "goes on": r"\b(?:goes|go|went|going) on\b|\ball the same\b|\bin vain\b|\bbut for\b|\bfor ever\b",
    "who": r"\b(?:for|by|to|of|from|with) who\b",
    "meeting": r"\bmeeting point\b|\bBoard\b|\bDoing\b",
    "British": r"\b\w*(?:olour|ehaviour|avour(?!able)|eighbour|onour|abour)\w*\b|\blicence\b|\bcentre\w*\b|\bgrey\b|\blearnt\b|"
               r"\b(?:\w*normal|\w*initial|\w*quant|recogn|synchron|\w*optim|memor|parameter)is(?:e|ed|es|ing|ation)\b|"
               r"\bcancell(?:ed|ing)\b|\b(?:label|model|travel)l(?:ed|ing)\b|\bcatalogue\b|\bartefact\w*",
}.items()}


def pieces(path, text):
    """Yields (line, text) of each comment, message and paragraph of a file."""
    for found in PIECE["code" if path.suffix in CODE else path.suffix if path.suffix in PIECE else "other"].finditer(text):
        piece = found[0]
        if not piece.startswith("```") and (piece[0] not in "\"'" or " " in piece or path.suffix == ".md"):
            yield text.count("\n", 0, found.start()) + 1, piece


def words(root):
    """(kind, "file:line: words around it") of each."""
    names = subprocess.run(["git", "-C", root, "ls-files"], capture_output=True, text=True, check=True).stdout.splitlines()
    for path in (pathlib.Path(root, name) for name in names if name not in NOT_LOOKED_AT):
        if path.suffix in PROSE and path.is_file():
            for line, piece in pieces(path, path.read_text(errors="replace")):
                for kind, pattern in KINDS.items():
                    for found in pattern.finditer(piece):
                        around = " ".join(piece[max(0, found.start() - 60):found.end() + 60].split())
                        at = line + piece.count("\n", 0, found.start())
                        yield kind, f"{path.relative_to(root)}:{at}: {around}"


def main(root=".", wanted=""):
    if wanted and wanted not in KINDS:
        sys.exit(f"{wanted} is none of: {', '.join(KINDS)}")
    all_words = list(words(root))
    if wanted:
        print("\n".join(place for kind, place in all_words if kind == wanted))
    counts = collections.Counter(kind for kind, _ in all_words)
    print(", ".join(f"{kind} {counts[kind]}" for kind in KINDS))


if __name__ == "__main__":
    main(*sys.argv[1:])
