#!/usr/bin/env python3
"""run_python_test.py FILE.py RESULT.json: runs a unittest file and leaves its results as GoogleTest
would, so that C++ and Python tests are counted and checked alike."""
import importlib.util
import json
import pathlib
import sys
import time
import unittest


class Recorder(unittest.TextTestResult):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.cases, self.begin = {}, 0.0

    def startTest(self, test):
        super().startTest(test)
        self.begin = time.monotonic()

    def stopTest(self, test):
        super().stopTest(test)
        suite, name = type(test).__name__, test.id().split(".")[-1]
        said = {t.id(): m for t, m in self.failures + self.errors}
        case = {"name": name, "classname": suite, "status": "RUN", "result": "COMPLETED",
                "time": f"{time.monotonic() - self.begin:.3f}s"}
        if test.id() in {t.id() for t, _ in self.skipped}:
            case["result"] = "SKIPPED"
        # A failed subTest is filed under its own id, which begins with that of its test.
        messages = [m for i, m in said.items() if i == test.id() or i.startswith(test.id() + " ")]
        if messages:
            case["failures"] = [{"failure": m} for m in messages]
        self.cases.setdefault(suite, []).append(case)


def main(path, result_file):
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    tests = unittest.defaultTestLoader.loadTestsFromModule(module)
    result = unittest.TextTestRunner(verbosity=2, resultclass=Recorder).run(tests)
    suites = [{"name": name, "tests": len(cases), "testsuite": cases}
              for name, cases in result.cases.items()]
    result_file.parent.mkdir(parents=True, exist_ok=True)
    result_file.write_text(json.dumps({"tests": result.testsRun, "testsuites": suites}, indent=1))
    return not result.wasSuccessful() or result.testsRun == 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])))
