#!/usr/bin/env python3
"""Thirty fixed cases of tests/random_layouts.py: models and layouts that nobody chose, each beside one process."""
import collections
import dataclasses
import pathlib
import tempfile
import unittest

import random_layouts
from layout_runs import TROUPE

SEED, CASES, BITS, RANKS = 1, 30, 30, [2, 3, 4, 4, 6, 8]


class RandomLayouts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        random_layouts.prepare(str(TROUPE), self.folder)

    def verdict(self, case):
        return random_layouts.run(str(TROUPE), case, self.folder / "case")

    def test_thirty_cases_train_as_one_process_does_or_are_refused(self):
        ends, seen = collections.Counter(), collections.Counter()
        for number in range(1, CASES + 1):
            case = random_layouts.Case.drawn(SEED, number, RANKS)
            verdict = self.verdict(case)
            ends[verdict.kind] += 1
            with self.subTest(seed=SEED, case=number, ranks=case.ranks, layout=case.layout):
                self.assertFalse(verdict.finding(), f"{verdict.kind}: {verdict.said}")
            if verdict.kind == "same":
                seen.update(axis for axis in ("pipeline", "tensor", "context", "expert") if case.layout[axis] > 1)
                seen[case.layout["shard"]] += 1
        self.assertGreaterEqual(ends["same"], CASES // 2, ends)
        self.assertEqual(set(seen), {"pipeline", "tensor", "context", "expert", "none", "zero1", "full"}, "each axis was tried")

    def test_61_cases_with_bits_of_every_layout_have_each_bit_of_one_process_or_are_refused(self):
        ends, seen = collections.Counter(), collections.Counter()
        for number in range(1, BITS + 1):
            case = random_layouts.Case.drawn(SEED, number, RANKS).with_bits()
            verdict = self.verdict(case)
            ends[verdict.kind] += 1
            with self.subTest(seed=SEED, case=number, ranks=case.ranks, layout=case.layout):
                self.assertFalse(verdict.finding(), f"{verdict.kind}: {verdict.said}")
                self.assertTrue(verdict.bits or verdict.kind == "refused")
            if verdict.kind == "same":
                seen.update(axis for axis in ("pipeline", "expert") if case.layout[axis] > 1)
                seen[case.layout["shard"]] += 1
        self.assertGreaterEqual(ends["same"], BITS // 3, ends)
        self.assertGreaterEqual(set(seen), {"pipeline", "expert", "none", "zero1", "full"}, "each axis was tried")

    def test_a_case_is_named_by_seed_and_number(self):
        drawn = [random_layouts.Case.drawn(seed, number, RANKS) for seed, number in ((5, 7), (5, 7), (5, 8), (6, 7))]
        self.assertEqual(drawn[0], drawn[1])
        self.assertEqual(len({str(case) for case in drawn}), 3)

    def test_another_training_is_a_finding(self):
        case = random_layouts.Case.drawn(SEED, 1, [2])
        case.layout = {"expert": 1, "shard": "zero1"}
        good = self.verdict(case)
        self.assertEqual(good.kind, "same", good.said)
        real = random_layouts.Case.write

        def with_another_rate(this, folder):
            real(this, folder)
            many = folder / "many.yaml"
            many.write_text(many.read_text().replace('"lr": 0.001', '"lr": 0.0011'))

        random_layouts.Case.write = with_another_rate
        try:
            self.assertEqual(self.verdict(case).kind, "DIFFERS")
        finally:
            random_layouts.Case.write = real
        broken = dataclasses.replace(case, layout={"expert": 1, "tensor": 7})
        self.assertEqual(self.verdict(broken).kind, "refused")


if __name__ == "__main__":
    unittest.main()
