"""Flags of Megatron-LM to `troupe convert recipe`, and what it says of them under the file's own names."""
import dataclasses
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

from .settings import Fault

FLAGS, RECIPE = "flags.yaml", "recipe.yaml"
HEAD = re.compile(r"^(mapped|ignored: .*|to look at|not supported yet: .*|to be filled in|not supported|`check` finds) \(\d+\)$")
UNKNOWN = re.compile(rf"^{re.escape(FLAGS)}:(\d+): E2003 ")
PLACE = re.compile(rf"{re.escape(FLAGS)}:(\d+)")


def program(given):
    """The program `troupe`: named, or on the PATH."""
    found = given or shutil.which("troupe")
    if not found:
        raise Fault("the program troupe is not on the PATH: name it with --troupe, as build/release/troupe")
    return str(pathlib.Path(found).resolve()) if os.sep in str(found) else found


def words_of(troupe, file, variables):
    """(program, [(word, line)], notes) of a script."""
    given = [w for one in variables for w in ("--variable", one)]
    out = subprocess.run([troupe, "convert", "words", str(file), *given], capture_output=True, text=True, timeout=120, check=False)
    if out.returncode:
        raise Fault(out.stderr.strip())
    said = json.loads(out.stdout, strict=False)
    return said["program"], [tuple(word) for word in said["words"]], said["notes"]


@dataclasses.dataclass
class Outcome:
    recipe: str = ""
    sections: dict = dataclasses.field(default_factory=dict)  # "mapped": [lines]

    def lines(self, head):
        return next((lines for name, lines in self.sections.items() if name.startswith(head)), [])


def parsed(said):
    out, lines = {}, None
    for line in said.splitlines():
        if found := HEAD.match(line):
            lines = out.setdefault(found[1], [])
        elif line.startswith("  ") and lines is not None:
            lines.append(line[2:])
        else:
            lines = None
    return out


class HandOver:
    def __init__(self, settings, troupe):
        self.settings, self.troupe = settings, troupe

    def run(self, flags):
        """What `convert recipe` makes of these, whatever it refuses."""
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder)
            (path / FLAGS).write_text("\n".join(["MODEL_ARGS:", *(one.line() for one in flags)]) + "\n")
            words = [self.troupe, "convert", "recipe", FLAGS, "--from", "megatron", "--force", "-o", RECIPE]
            out = subprocess.run(words, cwd=path, capture_output=True, text=True, timeout=120, check=False)
            if not (path / RECIPE).exists():
                raise Fault(out.stderr.replace(f"{FLAGS}: ", f"{self.settings.file}: ").strip())
            return Outcome((path / RECIPE).read_text(), parsed(out.stderr))

    def without_unknown_defaults(self):
        """Defaults of the other project that have no flag change nothing that its file says."""
        flags = list(self.settings.flags.values())
        unknown = {int(found[1]) for line in self.run(flags).lines("not supported") if (found := UNKNOWN.match(line))}
        out = []
        for number, one in enumerate(flags, 2):
            if one.soft and number in unknown:
                self.settings.ignore(one.theirs, f"a default of {self.settings.whose}'s own")
            else:
                out.append(one)
        return out

    def outcome(self):
        flags = self.without_unknown_defaults()
        out = self.run(flags)
        names = sorted(((one.text(), one.theirs) for one in flags), key=lambda pair: -len(pair[0]))
        places = {number: one.place or self.settings.file for number, one in enumerate(flags, 2)}
        out.sections = {head: [renamed(line, names, places) for line in lines] for head, lines in out.sections.items()}
        kept = [line for line in out.recipe.splitlines() if not re.match(r"# (not supported|to be filled in|`check` finds)", line)]
        out.recipe = "".join(renamed(line, names, places) + "\n" for line in kept)
        return out


def renamed(line, names, places):
    line = PLACE.sub(lambda found: places[int(found[1])], line)
    for text, theirs in names:
        for before in ("", "  # ", ": E2003 ", ": E2005 "):
            if (at := line.find(before + text)) == 0 or before and at > 0:
                after = line[at + len(before + text):]
                if not after or after[0] in " ,:;":
                    return line[:at] + before + theirs + after
    return line
