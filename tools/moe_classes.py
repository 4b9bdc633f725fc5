#!/usr/bin/env python3
"""moe_classes.py OLD NEW: which classes of transformers that have to do with a mixture of experts differ between two versions: what to
look at when a new one comes out. `./dev transformers` compares the pinned version with the newest that the tests know
(.venv/newest); a version, 5.25.0, is fetched from PyPI without what it requires, and `latest` is the last one there.

Such a class is one whose name ends with Experts, Router, Gate, Moe, MoeBlock and the like, or that asks the registry of experts
(@use_experts_implementation), in models/*/modeling_*.py; also the functions of integrations/moe.py. A class is compared as code: comments,
docstrings and layout do not count. A line each, with what of it differs:

    + added    - removed    ~ changed, with its methods    @ whether it asks the registry changed

Ends with 0, or with 1 where --check is given and something differs."""
import argparse
import ast
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# The last words: a family's own name has Moe in it too, as Qwen3MoeAttention.
NAMED = re.compile(r"(Experts?|Router|Gate|M[oO][eE]|MLPMoE|(Sparse|M[oO][eE])(Block|Layer|FFN|FeedForward|Mlp|MLP|Gate))$")
REGISTRY = "use_experts_implementation"


def without_docstring(node):
    body = getattr(node, "body", None)
    if isinstance(body, list) and body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant) \
            and isinstance(body[0].value.value, str):
        node.body = body[1:] or [ast.Pass()]
    return node


def code(node):
    """A class or function as code alone."""
    for inner in ast.walk(node):
        if isinstance(inner, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            without_docstring(inner)
    return ast.unparse(node)


def parts(node):
    """name -> code of a class's methods; `class`: what stands beside them; of a function, itself."""
    if not isinstance(node, ast.ClassDef):
        return {node.name: code(node)}
    methods = [m for m in node.body if isinstance(m, (ast.FunctionDef, ast.AsyncFunctionDef))]
    rest = ast.ClassDef(node.name, node.bases, node.keywords, [m for m in without_docstring(node).body if m not in methods] or [ast.Pass()],
                        [d for d in node.decorator_list if REGISTRY not in ast.unparse(d)])
    return {"class": code(ast.fix_missing_locations(rest)), **{m.name: code(m) for m in methods}}


def asks(node):
    return any(REGISTRY in ast.unparse(d) for d in getattr(node, "decorator_list", []))


def is_ours(node):
    return isinstance(node, ast.ClassDef) and (asks(node) or bool(NAMED.search(node.name)))


def classes(folder):
    """mixtral.MixtralExperts -> (its parts, whether it asks the registry), of a folder that holds transformers/."""
    root, out = folder / "transformers", {}
    if not (root / "models").is_dir():
        sys.exit(f"moe_classes: there is no transformers/models in {folder}")
    for file in sorted(root.glob("models/*/modeling_*.py")):
        text = file.read_text()
        if REGISTRY in text or re.search(r"^class \w*(Expert|Router|Gate|M[oO][eE])", text, re.M):
            out |= {f"{file.parent.name}.{n.name}": (parts(n), asks(n)) for n in ast.parse(text).body if is_ours(n)}
    file = root / "integrations/moe.py"
    if file.exists():
        out |= {f"integrations.moe.{n.name}": (parts(n), False) for n in ast.parse(file.read_text()).body
                if isinstance(n, (ast.ClassDef, ast.FunctionDef))}
    return out


def differences(old, new):
    """The lines, in the order of names."""
    for name in sorted({*old, *new}):
        if name not in old:
            yield f"+ {name}{' (asks the registry)' if new[name][1] else ''}"
        elif name not in new:
            yield f"- {name}{' (asked the registry)' if old[name][1] else ''}"
        else:
            (before, asked), (now, ask) = old[name], new[name]
            changed = sorted(part for part in {*before, *now} if before.get(part) != now.get(part))
            if changed:
                yield f"~ {name}: {', '.join(changed)}"
            if ask != asked:
                yield f"@ {name} {'asks the registry now' if ask else 'asks the registry no more'}"


def version_in(folder):
    found = sorted(folder.glob("transformers-*.dist-info"))
    return found[0].name.split("-")[1].removesuffix(".dist") if found else "of no version"


def fetched(version):
    """The folder of a version from PyPI, kept in build/transformers."""
    folder = ROOT / "build/transformers" / version
    if version == "latest" or not (folder / "transformers").exists():
        shutil.rmtree(folder, ignore_errors=True)  # pip leaves an earlier version's dist-info
        wanted = "transformers" if version == "latest" else f"transformers=={version}"
        ran = subprocess.run([sys.executable, "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--no-deps",
                              "--target", str(folder), wanted], capture_output=True, text=True, check=False)
        if ran.returncode:
            sys.exit(f"moe_classes: pip does not get {wanted}:\n{ran.stderr.strip()[-1500:]}")
    return folder


def folder_of(word):
    """A folder that holds transformers/, `pinned`, `newest` (the two of the tests), `latest`, or a version."""
    if word == "pinned":
        return next((ROOT / ".venv/lib").glob("python3*/site-packages"), ROOT / ".venv")
    if word == "newest":
        return ROOT / ".venv/newest"
    return pathlib.Path(word) if pathlib.Path(word).is_dir() else fetched(word)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", nargs="?", default="pinned", help="pinned (the default), newest, latest, 5.20.0 or a folder")
    parser.add_argument("new", nargs="?", default="newest")
    parser.add_argument("--check", action="store_true", help="end with 1 where something differs")
    arguments = parser.parse_args()
    folders = [folder_of(word) for word in (arguments.old, arguments.new)]
    old, new = map(classes, folders)
    lines = list(differences(old, new))
    print(*lines, sep="\n", end="\n" if lines else "")
    counts = ", ".join(f"{sum(line[0] == sign for line in lines)} {what}" for sign, what in
                       (("+", "added"), ("-", "removed"), ("~", "changed"), ("@", "by the registry")))
    registry = [sum(asked for _, asked in found.values()) for found in (old, new)]
    print(f"transformers {version_in(folders[0])} to {version_in(folders[1])}: {counts}; of {len(old)} and {len(new)} classes "
          f"{registry[0]} and {registry[1]} ask the registry of experts")
    return 1 if lines and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
