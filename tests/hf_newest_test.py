#!/usr/bin/env python3
"""The newest transformers beside the pinned one: every decorated class of it."""
import unittest

import newest_transformers  # isort: skip
import hf_backend_test


def setUpModule():
    newest_transformers.check()


@unittest.skipUnless(newest_transformers.HERE, f"no newer transformers in {newest_transformers.FOLDER}: ./dev setup")
class Classes(unittest.TestCase):
    def test_140_every_decorated_class_equals_its_own_forward_or_is_refused_by_name(self):
        hf_backend_test.Classes.test_140_every_decorated_class_equals_its_own_forward_or_is_refused_by_name(self)


if __name__ == "__main__":
    unittest.main()
