#!/usr/bin/env python3
"""run_python_test.py FILE.py RESULT.json [CLASS[.TEST]...]: runs a unittest file, or these of its tests, and leaves its results as GoogleTest
would, so that C++ and Python tests are counted and checked alike. Each test draws the same random numbers in every run;
TROUPE_TEST_SEED has it draw others, as in C++ (troupe/testing/torch/seed.cpp)."""
import importlib.util
import json
import os
import pathlib
import random
import resource
import sys
import time
import unittest
import zlib


def seed(text):
    """Python's generator, and PyTorch's where the test uses it."""
    number = zlib.crc32(text.encode()) + int(os.environ.get("TROUPE_TEST_SEED", 0))
    random.seed(number)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(number)


class Recorder(unittest.TextTestResult):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.cases, self.begin = {}, 0.0

    def startTest(self, test):
        super().startTest(test)
        seed(test.id())
        self.begin = time.monotonic()

    def stopTest(self, test):
        super().stopTest(test)
        suite, name = type(test).__name__, test.id().split(".")[-1]
        said = {t.id(): m for t, m in self.failures + self.errors}
        case = {"name": name, "classname": suite, "status": "RUN", "result": "COMPLETED",
                "time": f"{time.monotonic() - self.begin:.3f}s"}
        reasons = {t.id(): why for t, why in self.skipped}
        if test.id() in reasons:
            case["result"] = "SKIPPED"
            case["skipped"] = [{"message": reasons[test.id()]}]
        # A failed subTest is filed under its own id, which begins with that of its test.
        messages = [m for i, m in said.items() if i == test.id() or i.startswith(test.id() + " ")]
        if messages:
            case["failures"] = [{"failure": m} for m in messages]
        self.cases.setdefault(suite, []).append(case)


def main(path, result_file, names=()):
    begin = time.monotonic()
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    seed(path.stem)  # for what classes set up
    loader = unittest.defaultTestLoader
    tests = loader.loadTestsFromNames(names, module) if names else loader.loadTestsFromModule(module)
    result = unittest.TextTestRunner(verbosity=2, resultclass=Recorder).run(tests)
    suites = [{"name": name, "tests": len(cases), "testsuite": cases}
              for name, cases in result.cases.items()]
    result_file.parent.mkdir(parents=True, exist_ok=True)
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    result_file.write_text(json.dumps({"tests": result.testsRun, "testsuites": suites,
                                       "wall": f"{time.monotonic() - begin:.1f}s",
                                       "processor": f"{sum(u.ru_utime + u.ru_stime for u in usage):.1f}s"}, indent=1))
    return not result.wasSuccessful() or result.testsRun == 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3:]))
