"""The command: finds out whose FILE is, reads it, and writes a recipe."""
import argparse
import pathlib
import shlex
import sys

from . import document, hand_over, hub_models, whose
from .common import give_tokenizer, settle_dropout
from .settings import STAND_IN, Fault

EXIT_USAGE, EXIT_UNFILLED = 2, 8


def tell(what, lines):
    if lines:
        print(f"{what} ({len(lines)})", file=sys.stderr)
        for line in lines:
            print(f"  {line}", file=sys.stderr)


def table(rows):
    """"theirs  ours" of every value that was taken."""
    rows = [("theirs", "ours"), *rows]
    width = max(min(len(theirs), 56) for theirs, _ in rows)
    for theirs, ours in rows:
        print(f"{theirs:{width}}  {ours}", file=sys.stderr)


def composed(settings, out):
    """The recipe, from the converted flags and from the settings that have no flag, and the rows of the table of `--explain`."""
    recipe, mapped = out.recipe, [tuple(line.rsplit(" -> ", 1)) for line in out.lines("mapped")]
    if settings.model_open:
        recipe = document.without_section(recipe, "model")
        mapped = [row for row in mapped if not row[1].startswith("model.")]
    if settings.preset:
        recipe, mapped = beside_preset(settings, recipe, mapped)
    recipe, mapped = without_stand_ins(settings, recipe, mapped)
    for path, (value, theirs) in settings.own.items():
        recipe = document.with_value(recipe, path, value, theirs)
        mapped = [row for row in mapped if row[1].partition(":")[0] != path]
        mapped.append((theirs, f"{path}: {document.yaml_value(value)}"))
    return recipe, mapped


def beside_preset(settings, recipe, mapped):
    """The recipe without the model that stood in, but with what the file itself says of its model."""
    said = tuple(one.theirs for one in settings.flags.values() if settings.stood_in not in one.theirs)
    rows = [row for row in mapped if not row[1].startswith("model.")]
    recipe = document.without_section(recipe, "model")
    for theirs, ours in mapped:
        path, _, value = ours.partition(": ")
        if path.startswith("model.") and theirs.startswith(said) and settings.stood_in not in theirs:
            recipe = document.with_value(recipe, path, value.strip('"'), theirs)
            rows.append((theirs, ours))
    balance = f"model.moe.router.balance.{hub_models.PRESETS[settings.preset][-1]}"
    if not any(ours.startswith(f"{balance}:") for _, ours in rows):
        settings.set(balance, 0, "the file asks for no such loss")
    return recipe, rows


def without_stand_ins(settings, recipe, mapped):
    """Removes the values that only stood in for unknown ones, and the values that were computed from those."""
    taken = [ours.partition(":")[0] for theirs, ours in mapped if theirs == STAND_IN]
    if settings.has("train-iters") and settings.flags["train-iters"].theirs == STAND_IN:
        taken += ["train.schedule.warmup", "train.schedule.end"] if settings.has("lr-warmup-fraction") else ["train.schedule.end"]
        if settings.has("lr-warmup-fraction"):
            part = settings.flags["lr-warmup-fraction"]
            settings.set("train.schedule.warmup", f"{100 * float(part.value):g}%", part.theirs)
    for path in taken:
        recipe = document.without_value(recipe, path)
    return recipe, [row for row in mapped if row[1].partition(":")[0] not in taken]


def holes_of(settings, out):
    own = tuple(f"{path}:" for path in settings.own) + tuple(hole.partition(" ")[0] for hole in settings.holes)
    model = ("model.",) if settings.model_open else ()
    return [line for line in out.lines("to be filled in") if not line.startswith((*own, *model))] + settings.holes


def convert(options):
    troupe = hand_over.program(options.troupe)
    arguments = [f"{number}={word}" for number, word in enumerate(shlex.split(options.arguments), 1)]
    settings = whose.read(options.file, troupe, [*arguments, *options.variable], options.config)
    give_tokenizer(settings)
    settle_dropout(settings)
    out = hand_over.HandOver(settings, troupe).outcome()
    recipe, mapped = composed(settings, out)
    holes = holes_of(settings, out)
    refused = out.sections.get("not supported", []) + settings.refused
    faults = [] if settings.model_open or settings.preset else out.sections.get("`check` finds", [])
    if options.explain:
        table(mapped)
    elif not options.quiet:
        tell("mapped", [" -> ".join(row) for row in mapped])
        tell("ignored: no result depends on it", out.lines("ignored") + settings.ignored)
    tell("left out: no recipe has it", settings.left_out)
    tell("to look at", out.lines("to look at") + settings.notes)
    tell("not supported yet: the recipe does without", out.lines("not supported yet"))
    tell("to be filled in", holes)
    tell("not supported", refused)
    tell("`check` finds", faults)
    if (refused or faults) and not options.force:
        raise Fault(f"{options.file}: {settings.whose}'s; no recipe is written: "
                    + ("what is not supported would be lost" if refused else "it would not pass `troupe check`")
                    + ". Take it out, or --force")
    head = [f"# of {settings.whose}'s {options.file.name}"]
    for what, lines in (("not supported", refused), ("`check` finds", faults), ("left out", settings.left_out), ("to be filled in", holes)):
        head += [f"# {what}: {line}" for line in lines]
    text = "".join(line + "\n" for line in head) + recipe
    if options.out is None or str(options.out) == "-":
        print(text, end="")
    else:
        options.out.write_text(text)
    return EXIT_UNFILLED if holes else 0


def parsed(words):
    parser = argparse.ArgumentParser(
        prog="python3 -m troupe_foreign.recipe", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="A recipe of a file of ms-swift, slime, verl, MindSpeed-LLM, Pai-Megatron-Patch, Primus, FlagScale, Megatron-Bridge, "
        "LLaMA-Factory or Axolotl.", epilog="Example: python3 -m troupe_foreign.recipe train.yaml -o run.yaml && troupe check run.yaml\n"
        "Exit code: 0, 2 (no recipe), 8 (a recipe with keys to be filled in). Nothing of the file is run.")
    parser.add_argument("file", type=pathlib.Path, help="script, YAML or Python file; FILE.py:FUNCTION names one of its recipes")
    parser.add_argument("-o", "--out", type=pathlib.Path, help="output file; default, and -: standard output")
    parser.add_argument("--explain", action="store_true", help="a table of every value that was taken: theirs, ours")
    parser.add_argument("--variable", action="append", default=[], metavar="NAME=VALUE", help="of a script's environment")
    parser.add_argument("--arguments", default="", metavar="WORDS", help="of a script, as its caller gives them: \"dlc A3B 1 8\"")
    parser.add_argument("--config", type=pathlib.Path, metavar="config.json", help="of the model that the file names")
    parser.add_argument("--force", action="store_true", help="write what can be converted, the rest as comments")
    parser.add_argument("--quiet", action="store_true", help="do not list mapped and ignored settings")
    parser.add_argument("--troupe", metavar="PROGRAM", help="the program troupe; default: the one on the PATH")
    return parser.parse_args(words)


def main(words=None):
    try:
        return convert(parsed(words))
    except (Fault, OSError) as fault:
        print(f"error: {fault}", file=sys.stderr)
        return EXIT_USAGE


if __name__ == "__main__":
    sys.exit(main())
