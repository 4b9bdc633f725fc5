#!/usr/bin/env python3
"""gpu_cases.py [ROOT]: the tests that are skipped where there is no GPU, as the sources say it: of C++ those that do so by
themselves or by their fixture, whatever they are called; of Python those that a class or a test of unittest skips."""
import ast
import pathlib
import re
import sys

TEST = re.compile(r"^TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\s*\)\s*\{(.*?)^\}", re.M | re.S)
FIXTURE = re.compile(r"^class (\w+)[^;{]*\{(.*?)^\};", re.M | re.S)
# Not those whose parameter is a device: their cases have `cuda` in their names.
WAITS = re.compile(r"if \(!(?:has_cuda\(\)|kHasCuda|on_hopper\(\)|(?:testing::)?available\((?:testing::)?Backend::kCuda\))\)"
                   r"\s*GTEST_SKIP|\bin_ranks_on_gpus\(")
ONE, TWO = re.compile(r"\bGPU\b|cuda\.is_available"), re.compile(r"\bGPUS > 1\b")


def cpp_of(text):
    """Suite.Case of a file's tests that wait for a GPU."""
    fixtures = {name for name, body in FIXTURE.findall(text) if WAITS.search(body)}
    return {f"{suite}.{case}" for suite, case, body in TEST.findall(text) if suite in fixtures or WAITS.search(body)}


def cpp(root):
    return {name for path in sorted((root / "troupe").rglob("*_test.cpp")) for name in cpp_of(path.read_text())}


def gpus_of(text):
    """How many GPUs a condition asks for."""
    return 2 if TWO.search(text) else 1 if ONE.search(text) else 0


def skips(node):
    """How many GPUs the decorators of a class or test ask for."""
    return max((gpus_of(ast.unparse(d)) for d in node.decorator_list if "skip" in ast.unparse(d)), default=0)


def python_of(text):
    """(Class.test, GPUs) of a file's tests that wait for one or two."""
    for suite in ast.parse(text).body:
        if not isinstance(suite, ast.ClassDef):
            continue
        for test in suite.body:
            if not isinstance(test, ast.FunctionDef) or not test.name.startswith("test"):
                continue
            inside = [gpus_of(ast.unparse(n.test)) for n in test.body if isinstance(n, ast.If) and "skipTest" in ast.unparse(n)]
            if gpus := max(skips(suite), skips(test), *inside, 0):
                yield f"{suite.name}.{test.name}", gpus


def python(root):
    """(tests/x_test.py, Class.test, GPUs) of all."""
    for path in sorted((root / "tests").glob("*_test.py")):
        for name, gpus in python_of(path.read_text()):
            yield path.relative_to(root).as_posix(), name, gpus


if __name__ == "__main__":
    tree = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    print(*sorted(cpp(tree)), sep="\n")
    for file, name, gpus in python(tree):
        print(f"{file} {name} {gpus}")
