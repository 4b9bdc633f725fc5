#!/usr/bin/env python3
"""Rules of the mixture that must not know how many ranks there are: gradients without a factor of theirs, one norm,
one set of auxiliary losses, the same noise, every token to one expert. Each against one process."""
import struct
import tempfile
import unittest

from layout_runs import Layout, LayoutRuns

FEW = ("train.steps=4", "log.every=1")


class TroupeMoeRanks(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.runs = LayoutRuns(folder.name)

    def column(self, name, key):
        """A figure of each step."""
        return [r[key] for r in self.runs.records(name) if "event" not in r]

    def assert_same(self, one, many, *keys):
        """Figures of all steps within 1e-5 of their size, weights and moments within 1e-5."""
        for key in ("loss", "grad_norm", *keys):
            pairs = list(zip(self.column(one, key), self.column(many, key), strict=True))
            self.assertGreater(len(pairs), 1)
            for a, b in pairs:
                self.assertLessEqual(abs(a - b), 1e-5 * abs(a), f"{key}: {one} {a}, {many} {b}")
        self.assertLess(self.runs.diff(one, many)["max_abs"], 1e-5)

    def test_F116_no_gradient_has_a_factor_of_the_ranks(self):
        first = ("train.steps=1", "checkpoint.at=[1]", "train.clip=0", "train.schedule.warmup=1")
        one = Layout(batch=8)
        self.runs.train(one, "one", *first)
        for share, expert in (("ZeRO-1", 2), ("DDP", 4), ("FSDP", 2)):
            name = f"{share} {expert}"
            self.runs.train(Layout(4, share, expert=expert, batch=8), name, *first)
            start, gradients = self.runs.start_of("one", name)
            self.assertEqual(start, 0, name)
            self.assertLess(gradients, 1e-6, name)
        # A factor would show: half of the sequences change an expert's gradients by far more.
        self.runs.train(Layout(batch=4), "half", *first)
        experts = self.runs.diff("one", "half", "optimizer.m.*experts*")
        self.assertGreater(experts["tensors"], 0)
        self.assertGreater(experts["max_abs"] / 0.1, 1e-4)

    def test_sums_in_bf16_round_gradients_and_nothing_else(self):
        first = ("train.steps=1", "checkpoint.at=[1]", "train.clip=0", "train.schedule.warmup=1")
        self.runs.train(Layout(batch=8), "one", *first)
        apart = {}
        for sum_type in ("fp32", "bf16"):
            self.runs.train(Layout(2, "ZeRO-1", batch=8), sum_type, f"parallel.sum={sum_type}", *first)
            start, apart[sum_type] = self.runs.start_of("one", sum_type)
            self.assertEqual(start, 0)
        self.assertLess(apart["fp32"], 1e-6)
        self.assertGreater(apart["bf16"], 1e-4)  # half a unit of 8 bits is 2e-3
        self.assertLess(apart["bf16"], 1e-2)

    def test_F113_F115_one_expert_has_the_tokens_of_four_ranks_and_the_norm_is_one(self):
        (self.runs.folder / "zero.i32").write_bytes(struct.pack("<256i", *[0] * 256))
        sets = ("model.moe.top_k=1", "model.moe.router={kind: table, table: zero.i32}", "train.clip=0.05", *FEW)
        self.runs.train(Layout(batch=8), "one", *sets)
        self.assertGreater(min(self.column("one", "grad_norm")), 0.1)  # each step is clipped
        for share in ("ZeRO-1", "FSDP"):  # three ranks have experts without a token
            self.runs.train(Layout(4, share, expert=4, batch=8), share, *sets)
            self.assertEqual(self.column(share, "moe/load"), [4] * 4)  # of four experts one has all
            self.assertEqual(self.column(share, "moe/dropped"), [0] * 4)
            for key, each in (("load", 4), ("min", 0), ("median", 0), ("cv", 3 ** 0.5)):  # of each layer
                layers = sum(self.column(share, f"moe/{key}_layers"), [])
                self.assertGreaterEqual(len(layers), 4)
                for one in layers:
                    self.assertAlmostEqual(one, each, places=4, msg=key)
            self.assert_same("one", share)

    def test_F115_clipping_is_by_the_norm_of_all_pieces_on_all_ranks(self):
        sets = ("train.clip=0.05", *FEW)
        self.runs.train(Layout(batch=8), "one", *sets)
        self.assertGreater(min(self.column("one", "grad_norm")), 0.1)
        self.runs.train(Layout(2, "ZeRO-1", expert=2, batch=8), "two", *sets)
        self.assert_same("one", "two")

    def test_F117_ranks_accumulation_and_recomputation_change_no_auxiliary_loss(self):
        router = ("model.moe.router={kind: sigmoid_bias, bias_rate: 0.01, "
                  "balance: {aux_loss: 0.1, seq_loss: 0.01, z_loss: 0.01}}")
        two, four = Layout(2, "ZeRO-1", expert=2, batch=8), Layout(4, "FSDP", expert=4, batch=8)
        # The losses are means over microbatches: their size is part of the formula.
        for micro, layouts in ((1, [(two, ["train.recompute=1"])]), (2, [(four, [])])):
            sets = (router, *FEW, f"train.micro_batch={micro}")
            self.runs.train(Layout(batch=8), f"one {micro}", *sets)
            for layout, recompute in layouts:
                name = f"{layout.world} {micro}"
                self.runs.train(layout, name, *sets, *recompute)
                self.assert_same(f"one {micro}", name, "moe/aux", "moe/seq", "moe/z")
                self.assertEqual(self.column(name, "step"), [1, 2, 3, 4])  # once, not once a rank

    def test_F129_jitter_and_dropout_are_the_same_on_four_ranks(self):
        """Each by itself moves the losses by far more than ranks do, and is the same however the batch is cut."""
        self.runs.train(Layout(), "quiet", *FEW)
        for key in ("model.dropout=0.1", "model.moe.router.jitter=0.9"):
            kind = key.split(".")[-2][:5]
            self.runs.train(Layout(), "one " + kind, key, *FEW)
            self.assertGreater(self.runs.apart("one " + kind, "quiet")[0], 1e-4, key)  # ten times the bound
            self.runs.train(Layout(2, "DDP"), "two " + kind, key, *FEW)
            self.assert_same("one " + kind, "two " + kind)
            self.runs.train(Layout(4, "HSDP", 2, expert=2), "four " + kind, key, *FEW)
            self.assert_same("one " + kind, "four " + kind)


if __name__ == "__main__":
    unittest.main()
