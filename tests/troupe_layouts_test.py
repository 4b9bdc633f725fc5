#!/usr/bin/env python3
"""Layouts over ranks, where ranks differ most: chats of which most sequences have nothing to learn, and
batches that leave a rank without any. tools/layouts_table.py makes a table of every layout."""
import dataclasses
import json
import pathlib
import re
import shutil
import tempfile
import unittest

from layout_runs import Layout, LayoutRuns
from nano_run import STRACE


class TroupeLayouts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.runs = LayoutRuns(folder.name)

    def assert_near(self, layout, *sets):
        for part, name in ((layout.reference(), "one"), (layout, "many")):
            self.runs.train(part, name, "checkpoint.at=[1]", *sets)
        for what, apart in zip(("loss", "norm"), self.runs.apart("one", "many")):
            self.assertLess(apart, 1e-5, what)
        start, gradients = self.runs.start_of("one", "many")
        self.assertEqual(start, 0, "initial weights")
        self.assertLess(gradients, 1e-5)
        self.assertLess(self.runs.end_of("one", "many"), 1e-4, "weights and moments")

    def test_F95_F96_six_ranks_one_empty_and_others_without_a_target(self):
        layout = Layout(6, "HSDP", 2, expert=2, batch=5)
        self.assertEqual(layout.empty_ranks(), 1)
        targets = self.runs.targets()
        self.assertGreater(sum(n == 0 for n in targets) / len(targets), 0.3)
        self.assertGreater(max(targets), 20)
        self.assert_near(layout)

    def test_H2_H4_four_ranks_cut_two_experts_and_differ_in_targets(self):
        self.assert_near(Layout(4, "ZeRO-1", expert=4, experts=2))

    def test_97_98_four_ranks_share_matrices_in_twos_and_experts_in_fours(self):
        self.assert_near(Layout(4, "ZeRO-1", expert=4, tensor=2))

    def test_97_an_axis_of_one_rank_changes_no_bit_no_list_and_no_forecast(self):
        """A recipe that says `tensor: 1` beside one without the key: weights and moments, the plan with its lists."""
        machine = pathlib.Path(__file__).resolve().parents[1] / "machines" / "assumed-h100.yaml"
        layout, plans = Layout(2, "ZeRO-1", expert=2), {}
        for name, ones in (("open", ()), ("tensor", ("tensor",)), ("all", ("tensor", "context", "pipeline", "expert_tensor"))):
            sets = [f"parallel.{axis}=1" for axis in ones]
            self.runs.train(layout, name, "train.steps=5", *sets)
            self.assertEqual(self.runs.figures(name), self.runs.figures("open"), name)
            told = self.runs.diff(f"open/{self.runs.newest('open')}", f"{name}/{self.runs.newest(name)}")
            self.assertGreater(told["tensors"], 20)
            self.assertEqual(told["different"], 0, name)
            for ranks, way in ((2, "--list"), (16, "--list"), (16, "--json"), (16, "--scaling")):
                words = [w for one in (*layout.sets(), "train.global_batch=32", *sets) for w in ("--set", one)]
                plan = self.runs.troupe("plan", "layout.yaml", "--ranks", str(ranks), "--machine", str(machine), way, *words)
                plan = re.sub(r".* are free\n", "", plan)  # of the disk, which others use too
                self.assertEqual(plan, plans.setdefault((ranks, way), plan), name)
                self.assertGreater(len(plan), 200)

    def test_81_97_four_ranks_share_each_matrix_and_cut_each_expert_in_two(self):
        self.assert_near(Layout(4, "FSDP", expert=2, tensor=4, cut=2, batch=2), "model.kv_heads=2",
                         "model.moe.shared={experts: 1}", "model.dropout=0.1")

    def test_91_93_two_microbatches_beside_each_other_are_one_after_the_other_bit_for_bit(self):
        layout = Layout(2, "FSDP", expert=2)
        for overlap in ("none", "experts"):
            self.runs.train(layout, overlap, "model.moe.shared={experts: 1}", f"parallel.overlap={overlap}")
        for apart in self.runs.apart("none", "experts"):
            self.assertEqual(apart, 0)
        ends = [f"{name}/{self.runs.newest(name)}" for name in ("none", "experts")]
        self.assertEqual(self.runs.diff(*ends)["different"], 0)

    def test_101_four_ranks_share_the_tokens_of_packed_documents(self):
        self.assert_near(Layout(4, "ZeRO-1", expert=4, context=4), "model.window=20", "model.sinks=true",
                         "model.mtp={depth: 1}")

    def test_82_101_matrices_and_sequences_in_twos_and_experts_in_fours(self):
        self.assert_near(Layout(4, "FSDP", expert=4, tensor=2, context=2), "model.dropout=0.1")

    def test_99_two_stages_of_a_tied_model_with_an_mtp_module(self):
        self.assert_near(Layout(2, "DDP", pipeline=2), "model.tie_embeddings=true", "model.mtp.depth=1")

    def test_99_an_mtp_module_and_the_head_are_stages_of_their_own(self):
        self.assert_near(Layout(4, "ZeRO-1", pipeline=4, stages="Et|t|m|L"), "model.tie_embeddings=true",
                         "model.mtp.depth=1")

    def test_99_102_eight_ranks_fold_four_stages_with_matrices_and_experts(self):
        self.assert_near(Layout(8, "FSDP", expert=2, tensor=2, pipeline=2, virtual=2), "model.layers=4")

    def test_99_four_ranks_have_two_stages_each_of_a_vee(self):
        self.assert_near(Layout(4, "DDP", pipeline=4, virtual=2, order="zbv", layers=6))

    def test_D1_a_mean_of_means_is_that_of_one_process_where_one_rank_is_empty(self):
        layout = Layout(4, "FSDP", expert=2, experts=6, batch=3)
        self.assertEqual(layout.empty_ranks(), 1)
        self.assert_near(layout, "train.loss_mean=microbatches")
        self.runs.train(layout.reference(), "tokens")
        self.assertGreater(self.runs.apart("one", "tokens")[0], 1e-3)

    def test_D3_ranks_without_a_microbatch_of_their_own_count_in_nothing(self):
        """Seven microbatches on three ranks: in the last turn two of them have none."""
        routers = {"quantile": ("model.moe.router={kind: quantile}",),
                   "global": ("model.moe.router.balance={global_loss: 1.0, global_fractions: previous}",
                              "train.steps=2")}
        for router, sets in routers.items():
            for part in (Layout(), Layout(3, "DDP")):
                self.runs.train(part, f"{router} {part.world}", *sets)
            one, many = (self.runs.figures(f"{router} {world}") for world in (1, 3))
            for step, (_, norm) in one.items():
                self.assertLess(abs(many[step][1] - norm), 1e-5 * norm, f"{router}, step {step}")

    def test_A3_A4_replicas_whose_microbatches_have_two_sequences_or_none(self):
        """Three microbatches of two sequences on two replicas, with every balance loss: one process where a loss reads
        no other replica's microbatch of the same step, else two replicas with all of the model each."""
        def all_losses(fractions, scope):
            return ("train.micro_batch=2", "train.steps=3", "model.moe.router.balance={aux_loss: 0.05, seq_loss: 0.05, "
                    f"global_loss: 1.0, global_fractions: {fractions}, batched_loss: 0.05, batched_scope: {scope}, "
                    "z_loss: 0.001}")

        same = {"experts": 6, "batch": 6, "layers": 4}
        two = Layout(2, "DDP", **same)
        divided = (Layout(2, "ZeRO-1", expert=2, **same), Layout(4, "FSDP", expert=2, pipeline=2, **same))
        for how, (one, *others) in {("previous", "group"): (Layout(**same), two, *divided,
                                                           Layout(4, "DDP", pipeline=2, virtual=2, order="zbv", **same)),
                                    ("running", "all"): (two, *divided)}.items():
            self.runs.train(one, how[0], *all_losses(*how))
            for i, layout in enumerate(others):
                name = f"{how[0]}{i}"
                self.runs.train(layout, name, *all_losses(*how))
                with self.subTest(layout=str(layout), how=how):
                    self.assertLess(max(self.runs.apart(how[0], name)), 1e-5)
                    self.assertLess(self.runs.end_of(how[0], name), 1e-4)

    def test_A3_a_bench_of_replicas_with_unequal_microbatches(self):
        words = [w for one in ("train.global_batch=6", "train.micro_batch=2", "parallel.shard=none",
                               "parallel.expert=1") for w in ("--set", one)]
        self.runs.troupe("bench", "layout.yaml", "--ranks", "2", "--steps", "1", "--warmup", "1", "-o", "b.json", *words)
        self.assertEqual(json.loads((self.runs.folder / "b.json").read_text())["ranks"], 2)

    def test_H5_exact_dispatch_is_one_process_bit_for_bit(self):
        sets = ("train.clip=0", "model.moe.top_k=3")
        layout = Layout(4, "FSDP", expert=4, exact=True, batch=1)
        self.runs.train(layout.reference(), "one", *sets)
        self.runs.train(layout, "many", *sets)
        self.assertEqual(self.runs.figures("one"), self.runs.figures("many"))
        self.assertEqual(self.runs.diff("one", "many")["different"], 0)
        # The other dispatch adds in another order: what is equal here could have differed.
        self.runs.train(Layout(4, "FSDP", expert=4, batch=1), "fast", *sets)
        self.assertGreater(self.runs.diff("one", "fast")["different"], 0)

    def test_104_ten_steps_of_zero_1_are_those_of_ddp_bit_for_bit(self):
        for name, share in (("ddp", "DDP"), ("zero", "ZeRO-1")):
            self.runs.train(Layout(2, share, batch=8), name, "train.steps=10")
        self.assertEqual(self.runs.figures("ddp"), self.runs.figures("zero"))
        self.assertEqual(self.runs.diff("ddp", "zero")["different"], 0)

    def test_61_a_run_that_changes_its_layout_has_the_bits_of_one_process(self):
        for name, sets in (("fp32", ()), ("bf16", ("train.precision=bf16",))):
            sets = ("run.bits=layout", *sets)
            self.runs.train(Layout(), f"{name}-one", *sets, "train.steps=6", "checkpoint.at=[2,4]")
            for steps, layout in ((2, Layout(2, "FSDP", expert=2, exact=True)), (4, Layout(3, "ZeRO-1")),
                                  (6, Layout(4, "DDP", pipeline=2, expert=2, exact=True))):
                self.runs.train(layout, f"{name}-many", *sets, f"train.steps={steps}")
            self.assertEqual(self.runs.figures(f"{name}-one"), self.runs.figures(f"{name}-many"))
            for step in (2, 4, 6):
                one, many = (f"{name}-{kind}/step-{step:06d}" for kind in ("one", "many"))
                self.assertEqual(self.runs.diff(one, many)["different"], 0, step)
        # Without it the second layout has other bits.
        self.runs.train(Layout(), "repeat-one", "train.steps=2")
        self.runs.train(Layout(2, "FSDP", expert=2, exact=True), "repeat-many", "train.steps=2")
        self.assertGreater(self.runs.diff("repeat-one", "repeat-many")["different"], 0)

    def test_90_exact_dispatch_keeps_its_bits_while_experts_move(self):
        uneven = ("model.moe.router.balance.aux_loss=0", "model.moe.top_k=3", "train.steps=12")
        moves = ("parallel.rebalance.every=4", "parallel.rebalance.gain=0.01")

        def both(layout, *sets):
            """The run whose experts stay, and the one whose experts change ranks; elements that differ."""
            for name, more in (("stay", ()), ("move", moves)):
                shutil.rmtree(self.runs.folder / name, ignore_errors=True)
                self.runs.train(layout, name, *uneven, *sets, *more)
            events = [r for r in self.runs.records("move") if r.get("event") == "rebalance"]
            self.assertGreater(sum(sum(r["experts_moved"]) for r in events if r["step"] < 12), 0, layout)
            return self.runs.diff("stay", "move")

        for layout in (Layout(2, "ZeRO-1", expert=2, exact=True, experts=8, batch=1),
                       Layout(4, "FSDP", expert=4, exact=True, experts=8, batch=1)):
            # All tokens on one rank and no clipping, as in test_H5: then no sum has another order.
            self.assertEqual(both(layout, "train.clip=0")["different"], 0, layout)
            self.assertEqual(self.runs.figures("stay"), self.runs.figures("move"), layout)
            self.assertLess(both(dataclasses.replace(layout, batch=7))["max_abs"], 1e-5, layout)
            self.assertLess(max(self.runs.apart("stay", "move")), 1e-5, layout)
        # The other dispatch adds by rank first: where an expert is shows.
        fast = Layout(4, "FSDP", expert=4, experts=8, batch=1)
        self.assertGreater(both(fast, "train.clip=0")["different"], 0)

    def test_F124_F125_each_layout_loads_what_each_other_saved(self):
        layouts = [Layout(experts=2), Layout(3, "ZeRO-1", experts=2), Layout(4, "HSDP", 2, expert=4, experts=2),
                   Layout(4, "ZeRO-1", expert=2, experts=2, tensor=2),
                   Layout(4, "FSDP", expert=2, experts=2, tensor=2, context=2),
                   Layout(4, "ZeRO-1", expert=2, experts=2, tensor=2, pipeline=2, virtual=2)]
        for i, layout in enumerate(layouts):
            self.runs.train(layout, f"from{i}", "train.steps=2")
        self.runs.train(layouts[0], "whole", "train.steps=3")
        loss = self.runs.figures("whole")[3][0]
        for i, layout in enumerate(layouts):
            for source in (f"from{j}/step-000002" for j in range(len(layouts)) if i != j):
                name = f"{i}-{source.split('/', maxsplit=1)[0]}"
                found, read = self.runs.load(layout, source, name)
                with self.subTest(layout=str(layout), source=source):
                    self.assertEqual(self.runs.diff(source, f"{name}/step-000003")["different"], 0)
                    self.assertLess(abs(found - loss) / loss, 1e-5)
                    self.assertEqual(read, self.runs.tensor_bytes(source))
        self.assert_same_export("from0/step-000002", f"{len(layouts) - 1}-from0/step-000003")

    def assert_same_export(self, one, other):
        """The folder for transformers that the same weights give, saved in two layouts, byte for byte."""
        files = []
        for i, checkpoint in enumerate((one, other)):
            self.runs.troupe("export", checkpoint, f"hub{i}")
            folder = self.runs.folder / f"hub{i}"
            files.append({path.name: path.read_bytes() for path in folder.iterdir()})
        self.assertIn("model.safetensors", files[0])
        self.assertEqual(files[0], files[1])

    @unittest.skipUnless(STRACE, "strace cannot be used here")
    def test_168_the_system_sees_each_byte_read_once(self):
        self.runs.train(Layout(experts=2), "from", "train.steps=2")
        trace = self.runs.folder / "trace"
        _, read = self.runs.load(Layout(4, "FSDP", expert=2, experts=2), "from/step-000002", "to",
                                 before=("strace", "-ff", "-y", "-e", "trace=read,pread64,mmap", "-o", str(trace)))
        bytes_read = index_read = 0
        for path in self.runs.folder.glob("trace.*"):
            for _, rest in re.findall(r"^(read|pread64)\((.*/from/step-000002/shard-\S+\.jsonl>.*)$", path.read_text(), re.M):
                index_read += int(rest.rsplit("= ", 1)[1])
            for call, rest in re.findall(r"^(\w+)\((.*\.safetensors>.*)$", path.read_text(), re.M):
                self.assertNotEqual(call, "mmap")
                bytes_read += int(rest.rsplit("= ", 1)[1])
        self.assertGreaterEqual(bytes_read, read)  # headers of the files besides
        self.assertLess(bytes_read, 1.05 * self.runs.tensor_bytes("from/step-000002"))
        # So is an index file, where each of the four ranks read them all.
        indexes = sum(p.stat().st_size for p in (self.runs.folder / "from/step-000002").glob("shard-*.jsonl"))
        self.assertEqual(index_read, indexes)
        resumed = next(r for r in self.runs.records("to") if r.get("event") == "resume")
        self.assertEqual(resumed["read_bytes"], read)
        self.assertGreater(resumed["index_bytes"], indexes)


if __name__ == "__main__":
    unittest.main()
