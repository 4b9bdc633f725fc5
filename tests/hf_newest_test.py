#!/usr/bin/env python3
"""The newest transformers beside the pinned one: every decorated class of it. It lies in .venv/newest
(tools/requirements/newest.txt), or in the folder that TROUPE_NEWEST names."""
import os
import pathlib
import sys
import unittest

FOLDER = pathlib.Path(os.environ.get("TROUPE_NEWEST") or pathlib.Path(__file__).resolve().parent.parent / ".venv/newest")
if FOLDER.exists():
    sys.path.insert(0, str(FOLDER))
import hf_backend_test  # noqa: E402
import transformers  # noqa: E402


def setUpModule():
    if FOLDER.exists() and FOLDER.resolve() not in pathlib.Path(transformers.__file__).resolve().parents:
        raise AssertionError(f"transformers is {transformers.__file__}, not the one in {FOLDER}")


@unittest.skipUnless(FOLDER.exists(), f"no newer transformers in {FOLDER}: ./dev setup")
class Classes(unittest.TestCase):
    def test_140_every_decorated_class_equals_its_own_forward_or_is_refused_by_name(self):
        hf_backend_test.Classes.test_140_every_decorated_class_equals_its_own_forward_or_is_refused_by_name(self)


if __name__ == "__main__":
    unittest.main()
