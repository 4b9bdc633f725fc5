"""What one file says: flags of Megatron-LM, and what became of all else."""
import dataclasses
import json


STAND_IN = "a stand-in"


class Fault(Exception):
    """A file of which no recipe is made, in one line: whose it is, and why."""


@dataclasses.dataclass(frozen=True)
class Setting:
    flag: str  # of Megatron-LM, without dashes
    value: object  # True: a switch; else a text or a number
    theirs: str  # "model.num_layers: 32"
    place: str  # "run.yaml:12"; empty: the other project's default
    soft: bool = False  # a default there, which may have no flag

    def text(self):
        """As `troupe convert` names it."""
        return f"--{self.flag}" + ("" if self.value is True else f" {self.value}")

    def line(self):
        """One line of YAML; blanks stay in one word."""
        if self.value is True:
            return f"  --{self.flag}: true"
        word = str(self.value)
        if any(c in word for c in " \t") and word[:1] not in "([":
            word = f"'{word}'"
        return f"  --{self.flag}: {json.dumps(word)}"


class Settings:
    def __init__(self, whose, file):
        self.whose, self.file = whose, str(file)
        self.flags = {}  # the last one of a name counts, as it does there
        self.ignored, self.left_out, self.refused, self.holes, self.notes = [], [], [], [], []
        self.own = {}  # path of a recipe: (value, theirs), beside what flags become
        self.model_open = False  # the model is not known: no key of it is written
        self.preset, self.stood_in = None, ""  # a preset is the model: what the file says beside it stays; "..., in place of PRESET"

    def give(self, flag, value, theirs, place="", soft=False):
        """A switch that is off is not given."""
        self.flags.pop(flag, None)
        if value is None or value is False:
            return
        if isinstance(value, str) and ("\n" in value or "'" in value):
            self.refuse(theirs, place, "a quote or an end of a line in a value")
            return
        self.flags[flag] = Setting(flag, value, theirs, place, soft)

    def stand_in(self, flag, value, path, why):
        """A value that only the conversion sees: the recipe leaves `path` to be filled in."""
        self.give(flag, value, STAND_IN)
        self.hole(path, why)

    def default(self, flag, value, of=""):
        if flag not in self.flags:
            self.give(flag, value, f"{of or flag.replace('-', '_')}: {value}, {self.whose}'s default")

    def set(self, path, value, theirs):
        self.own[path] = (value, theirs)

    def ignore(self, theirs, why):
        self.ignored.append(f"{theirs}: {why}")

    def leave_out(self, theirs, why):
        self.left_out.append(f"{theirs}: {why}")

    def refuse(self, theirs, place, why):
        self.refused.append(f"{place}: {theirs}: {why}")

    def hole(self, path, why):
        self.holes.append(f"{path}: {why}")

    def note(self, text):
        self.notes.append(text)

    def has(self, flag):
        return flag in self.flags

    def value(self, flag, otherwise=None):
        return self.flags[flag].value if flag in self.flags else otherwise
