#!/usr/bin/env python3
"""check_torch_versions.py ROOT: one source for every PyTorch that is supported (cmake/torch.cmake). C++ that asks which
one it is compiled for stands in troupe/ops/support/torch_versions alone, a header a subject, each with a table of versions;
Python that asks stands in python/troupe_program.py."""
import pathlib
import re
import sys

ROOM, PYTHON_ROOM = "troupe/ops/support/torch_versions/", "python/troupe_program.py"
TOPS = ("troupe", "apps", "python", "bench", "tests", "examples")
CPP = re.compile(r"^\s*#\s*(?:if|ifdef|ifndef|elif)\b[^\n]*\b(?:TORCH_VERSION\w*|TROUPE_TORCH_\w+|C10D_\w+|TORCH_ABI_VERSION"
                 r"|__has_include\s*\(\s*<(?:torch|ATen|c10))", re.M)
# A version that is shown or recorded is no branch.
PYTHON = re.compile(r"\b(?:parse|Version|TorchVersion)\(\s*torch\.__version__|\btorch\.__version__\s*(?:[<>]|[!=]=|\.startswith|\.split)")


def faults(root):
    for path in sorted(p for top in TOPS for p in (root / top).rglob("*") if p.suffix in {".h", ".cuh", ".cpp", ".cu", ".py"}):
        name, text = path.relative_to(root).as_posix(), path.read_text()
        is_python = path.suffix == ".py"
        if name == PYTHON_ROOM:
            continue
        if name.startswith(ROOM):
            if not re.search(r"\b2\.1\d\b", text) and path.name != "at_least.h":
                yield f"{name}: does not say which versions differ"
            continue
        for found in (PYTHON if is_python else CPP).finditer(text):
            line = text.count("\n", 0, found.start() + len(found[0]) - len(found[0].lstrip())) + 1
            yield f"{name}:{line}: a branch on PyTorch's version; those are in {PYTHON_ROOM if is_python else ROOM}"


if __name__ == "__main__":
    found = list(faults(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")))
    print("\n".join(found) or "torch versions: ok")
    sys.exit(bool(found))
