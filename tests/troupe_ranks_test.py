#!/usr/bin/env python3
"""The same recipe on several ranks: losses, gradient norms, weights and moments are those of one."""
import json
import random
import shutil
import unittest

from nano_run import PATIENCE
from ranks_run import RanksRun

DDP, ZERO, FULL = "parallel.shard=none", "parallel.shard=zero1", "parallel.shard=full"


def experts(n):
    return f"parallel.expert={n}"


class TroupeRanks(RanksRun):
    def same_as_one(self, world, *sets):
        shutil.rmtree(self.folder / "many", ignore_errors=True)
        self.train_ranks(world, *sets, name="many")
        self.assertLess(self.apart("one", "many"), 1e-5, sets)
        self.assertLess(self.tensors_apart("one", "many"), 2e-6, sets)

    def test_D3_two_ranks_train_as_one_in_every_way_to_share(self):
        self.train("checkpoint.dir=one")
        for sets in ((DDP, experts(1)), (ZERO, experts(1)), (FULL, experts(1)), (ZERO, experts(2)),
                     (FULL, experts(2), "parallel.dispatch=exact")):
            self.same_as_one(2, *sets)

    def test_H1_four_ranks_share_experts_and_state(self):
        self.train("checkpoint.dir=one")
        two = "parallel.shard_ranks=2"
        for sets in ((ZERO, experts(4)), (ZERO, experts(2), two), (FULL, experts(2), two)):
            self.same_as_one(4, *sets)

    def test_193_what_is_left_open_is_chosen_and_told(self):
        self.train("checkpoint.dir=one")
        self.same_as_one(4, "parallel.shard_ranks=2")
        self.assertIn(" ms a step, forecast for processes of a host (assumed); next ", self.text_of(0, "many"))
        # Rows cost nothing by this machine's rates, and sums of gradients much.
        (self.folder / "mine.yaml").write_text("{name: mine, gpu: false, products: 1e12, bandwidth: 1e12, "
                                               "inside: {bandwidth: 1e6, latency: 1e-9}, exchanging: 1e-6}\n")
        self.same_as_one(4, "run.machine=mine.yaml")
        self.assertRegex(self.text_of(0, "many"), r"experts over 4 ranks, .* ms a step, forecast for mine; next ")
        self.train_ranks(2, "run.machine=no.yaml", name="no", code=2)
        self.assertIn("no.yaml", self.text_of(0, "no"))

    def test_H1_rows_go_once_to_each_node_of_two_ranks(self):
        self.train("checkpoint.dir=one")
        self.same_as_one(4, ZERO, experts(4), "parallel.node_ranks=2")
        self.assertIn("rows go two_level: 4 ranks share experts, over 2 nodes of 2", self.text_of(0, "many"))
        self.same_as_one(2, ZERO, experts(2), "parallel.dispatcher=all_gather")
        self.assertIn("rows go all_gather", self.text_of(0, "many"))

    def test_H1_rows_are_read_from_the_memory_of_other_ranks(self):
        self.train("checkpoint.dir=one")
        for world, *sets in ((4, ZERO, experts(4)), (4, FULL, experts(2), "parallel.dispatch=exact"),
                             (2, DDP, experts(2), "train.recompute=1")):
            self.same_as_one(world, *sets, "parallel.dispatcher=symmetric")
            self.assertIn("rows go symmetric", self.text_of(0, "many"))
        # A killed rank ends the other within seconds, though no connection between them breaks.
        runs = self.start_ranks(2, ZERO, experts(2), "parallel.dispatcher=symmetric", name="killed",
                                TROUPE_FAULT=lambda rank: "dispatch:8=kill" if rank == 1 else "")
        self.assertEqual([run.wait(PATIENCE) for run in runs], [6, -9])
        self.assertIn("E6001", self.text_of(0, "killed"))

    def test_115_offloaded_layers_change_no_bit_in_any_layout(self):
        large = ("model.width=256", "model.max_positions=256", "data.sequence=256", "train.micro_batch=4",
                 "train.global_batch=16", "train.steps=3", "checkpoint.every_steps=3")
        for number, layout in enumerate(((ZERO, experts(2)), (FULL, experts(2)), (DDP, experts(1), "parallel.tensor=2"),
                                         (DDP, experts(1), "parallel.pipeline=2"))):
            with self.subTest(layout):
                for name, *more in ((f"plain{number}",), (f"offloaded{number}", "train.offload_layers=2")):
                    self.train_ranks(2, *layout, *large, *more, name=name)
                self.assertEqual(self.figures(f"plain{number}"), self.figures(f"offloaded{number}"))
                self.assertEqual(self.tensors_apart(f"plain{number}", f"offloaded{number}"), 0)
                said = "".join(self.text_of(rank, f"offloaded{number}") for rank in range(2))
                self.assertRegex(said, r"activation offload: [1-9][\d.]* MiB went to host memory and back")

    def test_115_offloaded_state_changes_no_bit_in_any_layout(self):
        moves = ("parallel.rebalance.every=4", "parallel.rebalance.gain=0.01", "model.moe.experts=8",
                 "model.moe.router.balance.aux_loss=0")
        for number, (world, *layout) in enumerate((
                (2, ZERO, experts(2)), (2, FULL, experts(2), "run.check_replicas=3"), (2, ZERO, experts(2), *moves),
                (2, DDP, experts(1), "run.check_replicas=3"), (4, FULL, experts(2), "parallel.shard_ranks=2"),
                (2, DDP, experts(1), "parallel.pipeline=2"), (2, ZERO, experts(1), "train.optimizer.kind=muon"))):
            with self.subTest(layout):
                for name, *more in ((f"plain{number}",), (f"offloaded{number}", "train.offload_state=true")):
                    self.train_ranks(world, *layout, "train.precision=bf16", *more, name=name)
                self.assertEqual(self.figures(f"plain{number}"), self.figures(f"offloaded{number}"))
                self.assertEqual(self.tensors_apart(f"plain{number}", f"offloaded{number}"), 0)

    def test_115_updates_in_backward_change_no_bit_in_any_layout(self):
        clipped = ("train.clip=0.5", "train.clip_by=last_step")
        for number, (world, *layout) in enumerate((
                (2, ZERO, experts(2), "train.clip=0"), (2, FULL, experts(2), *clipped), (2, DDP, experts(1), *clipped),
                (4, FULL, experts(2), "parallel.shard_ranks=2", "train.clip=0", "train.offload_state=true"),
                (2, DDP, experts(1), "parallel.tensor=2", "train.clip=0"),
                (2, ZERO, experts(1), "train.optimizer.kind=muon", "train.clip=0", "train.offload_state=true"))):
            with self.subTest(layout):
                for name, *more in ((f"plain{number}",), (f"early{number}", "train.update=in_backward")):
                    self.train_ranks(world, *layout, "train.precision=bf16", *more, name=name)
                self.assertEqual(self.figures(f"plain{number}"), self.figures(f"early{number}"))
                self.assertEqual(self.tensors_apart(f"plain{number}", f"early{number}"), 0)

    def test_what_is_said_of_a_data_file_is_said_once(self):
        self.troupe("data", "build", "text.txt", "-t", "bytes", "--no-eod", "-o", "built")
        with (self.folder / "built.bin").open("ab") as file:
            file.write(bytes(4))
        self.train_ranks(2, "data.train=[{path: built}]", "train.steps=4")
        said = [self.text_of(rank).count("its index uses") for rank in range(2)]
        self.assertEqual(said, [1, 0])

    def test_the_null_dispatcher_times_steps_and_trains_nothing(self):
        times = {}
        for kind in ("all_to_all", "none"):
            self.troupe("bench", "nano.yaml", "--ranks", 2, "--steps", 2, "--warmup", 1, "-o", f"{kind}.json",
                        "--set", ZERO, "--set", experts(2), "--set", f"parallel.dispatcher={kind}")
            times[kind] = json.loads((self.folder / f"{kind}.json").read_text())
        self.assertEqual([one["ranks"] for one in times.values()], [2, 2])
        self.train_ranks(2, ZERO, experts(2), "parallel.dispatcher=none", name="no", code=2)
        self.assertIn("parallel.dispatcher: E2005 none leaves each token on its rank", self.text_of(0, "no"))

    def test_Q4_rows_in_int8_leave_the_loss_within_a_percent(self):
        layouts = ((2, ZERO, experts(2)), (2, FULL, experts(2), "parallel.dispatcher=all_gather"),
                   (4, ZERO, experts(4), "parallel.node_ranks=2"))
        self.train("checkpoint.dir=one")
        for part, (world, *sets) in enumerate(layouts):
            name = f"int8 {part}"
            self.train_ranks(world, *sets, "parallel.wire=int8", name=name)
            self.assertRegex(self.text_of(0, name), "rows go [a-z_]+ in int8: ")
            losses = [(loss, self.figures(name)[step][0]) for step, (loss, _) in self.figures("one").items()]
            self.assertEqual(len(losses), 20)
            self.assertNotEqual(*zip(*losses))
            for native, rounded in losses:
                self.assertLess(abs(rounded / native - 1), 0.01, sets)
        # One rank sends no rows: nothing is rounded, whatever the recipe says.
        self.train("checkpoint.dir=alone", "parallel.wire=int8")
        self.assertEqual(self.figures("one"), self.figures("alone"))
        said = self.train("checkpoint.dir=no", "parallel.wire=int8", "parallel.dispatch=exact", code=2)
        self.assertIn("parallel.wire: int8 rounds the rows", said)

    def test_Q8_33_rows_in_fp8_are_those_that_experts_in_8_bits_make(self):
        wide = ("model.width=128", "model.moe.hidden=128", "train.precision=auto")
        layouts = ((2, ZERO, experts(2)), (2, FULL, experts(2), "parallel.dispatcher=symmetric"),
                   (4, ZERO, experts(4), "parallel.node_ranks=2"))
        for part, (world, *sets) in enumerate(layouts):
            for wire in ("native", "fp8"):
                self.train_ranks(world, *sets, *wide, "train.fp8={}", f"parallel.wire={wire}", name=f"{wire} {part}")
            self.assertRegex(self.text_of(0, f"fp8 {part}"), "rows go [a-z_]+ in fp8: ")
            native, rounded = self.figures(f"native {part}"), self.figures(f"fp8 {part}")
            # Outputs have the bits of rows that were not rounded on the way; weight gradients nearly so.
            self.assertEqual(native[1][0], rounded[1][0], sets)
            self.assertLess(abs(rounded[1][1] / native[1][1] - 1), 1e-5, sets)
            for step, (loss, _) in native.items():
                self.assertLess(abs(rounded[step][0] / loss - 1), 2e-2, (sets, step))
        # Without train.fp8 the wire alone rounds.
        for wire in ("native", "fp8"):
            self.train_ranks(2, ZERO, experts(2), f"parallel.wire={wire}", name=f"alone {wire}")
        losses = [(loss, self.figures("alone fp8")[step][0])
                  for step, (loss, _) in self.figures("alone native").items()]
        self.assertNotEqual(*zip(*losses))
        for native, rounded in losses:
            self.assertLess(abs(rounded / native - 1), 0.02)
        said = self.train("checkpoint.dir=no", "parallel.wire=fp8", "parallel.dispatch=exact", code=2)
        self.assertIn("parallel.wire: fp8 rounds the rows", said)

    def test_experts_change_ranks_between_steps_and_the_losses_stay(self):
        uneven = ("model.moe.experts=8", "model.moe.router.balance.aux_loss=0")
        moves = ("parallel.rebalance.every=4", "parallel.rebalance.gain=0.01", experts(2), *uneven)
        self.train("checkpoint.dir=one", *uneven)
        for world, shard in ((4, FULL), (2, ZERO)):
            self.same_as_one(world, shard, *moves)
            events = [r for r in self.records("many") if r.get("event") == "rebalance"]
            self.assertTrue(events)
            for event in events:
                for before, after in zip(event["load_before"], event["load_after"]):
                    self.assertLess(after + 0.01, before + 1e-9)
            self.assertIn("experts moved after step 4: layer ", self.text_of(0, "many"))
        # A run that is killed resumes as it was, bit for bit; so does one in another layout, except for rounding.
        kept = ("checkpoint.every_steps=3", "checkpoint.background=false", ZERO, *moves)
        for run in self.start_ranks(2, *kept, name="killed", TROUPE_FAULT="batch:15=kill"):
            self.assertIn(run.wait(PATIENCE), (-9, 6))
        shutil.copytree(self.folder / "killed", self.folder / "moved")
        self.train_ranks(2, *kept, name="killed")
        self.assert_equal_runs("many", "killed")
        self.train_ranks(1, *uneven, name="moved")
        self.assertLess(self.apart("one", "moved"), 1e-5)
        self.assertLess(self.tensors_apart("one", "moved"), 2e-6)

    def test_C7_a_step_without_room_is_done_again_and_its_loss_is_dropless(self):
        delayed = ("model.width=128", "model.moe.hidden=128", "train.precision=auto", "train.fp8={recipe: delayed}")
        for world, *sets in ((2, ZERO, experts(2)), (2, FULL, experts(2), "train.recompute=1"), (2, ZERO, experts(2), *delayed)):
            for name in ("free", "tight"):
                shutil.rmtree(self.folder / name, ignore_errors=True)
            self.train_ranks(world, *sets, name="free")
            self.train_ranks(world, *sets, "model.moe.capacity.budget=0.9", name="tight")
            self.assertEqual(self.losses("free"), self.losses("tight"))
            self.assertEqual(self.tensors_apart("free", "tight"), 0)
            said = self.text_of(0, "tight") + self.text_of(1, "tight")
            self.assertEqual(said.count("the step was repeated without the limit"), 1)
            reruns = [r["reruns"] for r in self.records("tight") if "event" not in r]
            self.assertGreater(reruns[-1], 0)

    def test_H2_more_ranks_than_experts_cut_their_width(self):
        few = "model.moe.experts=2"
        self.train("checkpoint.dir=one", few)
        self.same_as_one(4, experts(4), few)

    def test_H1_six_experts_on_four_ranks(self):
        six, uneven = "model.moe.experts=6", "parallel.placement=uneven"
        self.train("checkpoint.dir=one", six)
        for sets in ((ZERO,), (FULL, "parallel.dispatch=exact"), (ZERO, "parallel.node_ranks=2"),
                     (DDP, "parallel.dispatcher=all_gather"),
                     (ZERO, "parallel.rebalance.every=4", "parallel.rebalance.gain=0.01")):
            self.same_as_one(4, experts(4), six, uneven, *sets)
        # One rank resumes what four such ranks saved.
        shutil.rmtree(self.folder / "many" / "step-000020")
        self.train_ranks(1, six, name="many")
        self.assertLess(self.apart("one", "many"), 1e-5)
        self.assertLess(self.tensors_apart("one", "many"), 2e-6)
        self.train_ranks(4, experts(4), six, name="no", code=2)
        self.assertIn("6 experts on 4 ranks: neither divides the other; use 2, or parallel.placement: uneven",
                      self.text_of(0, "no"))

    def test_H4_three_ranks_have_unequal_numbers_of_tokens(self):
        self.train("checkpoint.dir=one")
        self.same_as_one(3, ZERO)
        self.same_as_one(3, FULL)

    def test_tied_tables_and_recomputed_blocks_are_shared_too(self):
        more = ("model.tie_embeddings=true", "train.recompute=1")
        self.train("checkpoint.dir=one", *more)
        self.same_as_one(2, FULL, *more)
        self.same_as_one(2, ZERO, experts(2), *more)

    def test_F119_two_runs_of_a_layout_are_equal_bit_for_bit(self):
        self.train_ranks(2, FULL, experts(2), name="a")
        self.train_ranks(2, FULL, experts(2), name="b")
        self.assert_equal_runs("a", "b")

    def test_F119_so_are_two_runs_of_cut_matrices_layers_and_rows(self):
        """Tensor ranks with experts over them, pipeline stages, context ranks: each has transfers of its own."""
        for world, *sets in ((2, "parallel.tensor=2", experts(2)), (2, "parallel.pipeline=2", experts(1)),
                             (2, "parallel.context=2", experts(1))):
            for name in ("a", "b"):
                shutil.rmtree(self.folder / name, ignore_errors=True)
                self.train_ranks(world, *sets, ZERO, "train.steps=5", "log.every=1", name=name)
            self.assertEqual(len(self.losses("a")), 5)
            self.assert_equal_runs("a", "b")

    def test_presets_of_two_layers_on_four_ranks_are_one_process(self):
        """Whole QK norm, head norm, MLA and clipped QKV; each axis by one of them."""
        for preset, more, *sets in (
                ("olmoe-1b-7b", "heads: 4", "parallel.tensor=2", experts(4)),
                ("qwen3-30b-a3b", "heads: 4, kv_heads: 2", "parallel.context=2", experts(2)),
                ("deepseek-v2-lite", "heads: 4, ffn: 64", "parallel.tensor=2", experts(2)),
                ("dbrx", "heads: 4, kv_heads: 2", "parallel.pipeline=2", experts(2))):
            lines = [line for line in self.RECIPE.splitlines() if line.strip() and "model:" not in line]
            model = (f"model: {{preset: {preset}, layers: 2, width: 32, vocab: 256, {more},\n"
                     "        moe: {experts: 8, top_k: 2, hidden: 32}}")
            (self.folder / "nano.yaml").write_text("\n".join([model, *(x for x in lines if not x.startswith("        moe"))]))
            short = ("train.steps=3", "train.optimizer.lr=1e-4", "train.precision=fp32")
            for name in ("one", "many"):
                shutil.rmtree(self.folder / name, ignore_errors=True)
            self.train("checkpoint.dir=one", *short)
            self.train_ranks(4, ZERO, *sets, *short, name="many")
            one, many = self.figures("one"), self.figures("many")
            self.assertEqual(sorted(one), sorted(many))
            for step, (loss, _) in one.items():
                self.assertAlmostEqual(many[step][0] / loss, 1, delta=1e-5, msg=f"{preset} step {step}")

    def same_after_a_kill(self, name, *sets):
        sets = (*sets, "checkpoint.every_steps=4", "checkpoint.background=false")
        self.train_ranks(2, *sets, name=name)
        for run in self.start_ranks(2, *sets, name="cut" + name, TROUPE_FAULT="batch:8=kill"):
            self.assertNotEqual(run.wait(PATIENCE), 0)
        self.train_ranks(2, *sets, name="cut" + name)
        self.assert_equal_runs(name, "cut" + name)

    def test_bf16_masters_in_halves_outlive_a_kill_bit_for_bit(self):
        for layout in ((DDP, experts(1)), (ZERO, experts(2)), (FULL, experts(1))):
            self.same_after_a_kill(layout[0][-4:] + layout[1][-1:], "train.precision=bf16", *layout)

    def test_moments_in_8_bits_outlive_a_kill_bit_for_bit(self):
        for layout in ((ZERO, experts(2)), (FULL, experts(1))):
            self.same_after_a_kill(layout[0][-4:], "train.precision=bf16", "train.optimizer.moments=int8", *layout)

    def test_moments_in_8_bits_go_on_nearly_the_same_in_another_layout(self):
        int8 = "train.optimizer.moments=int8"
        self.train("checkpoint.dir=one", int8)
        for part, (world, *sets) in enumerate(((2, FULL, experts(2)), (1,), (3, ZERO), (2, DDP)), 1):
            self.train_part(4 * part if part < 4 else 20, world, int8, *sets)
        self.assertLess(self.apart("one", "many"), 0.02)

    def test_optimizers_of_whole_matrices_train_as_one_on_ranks(self):
        for kind in ("muon", "adafactor", "soap"):
            one, two = f"one {kind}", f"two {kind}"
            sets = (f"train.optimizer.kind={kind}", "train.optimizer.lr=3e-3")
            self.train(f"checkpoint.dir={one}", *sets)
            self.train_ranks(2, *sets, experts(2), name=two)
            if kind != "soap":
                self.assertLess(self.apart(one, two), 1e-4, kind)
                continue
            # A basis in which a gradient has nearly no part turns with its last bits, as it does in one
            # process with other microbatches: by 2e-3 of a loss in these steps.
            for step, (loss, _) in self.figures(one).items():
                self.assertAlmostEqual(self.figures(two)[step][0] / loss, 1, delta=5e-3)

    def test_F120_an_overflow_of_one_rank_halves_the_scale_of_all(self):
        fp16 = ("train.precision=fp16", "train.loss_scale.initial=4294967296", "train.loss_scale.hysteresis=1")
        self.train("checkpoint.dir=one", *fp16)
        scales = self.scales("one")
        self.assertEqual(scales[1], 2 ** 31)
        for name, *layout in (("experts", DDP, experts(2)), ("full", FULL, experts(1))):
            self.train_ranks(2, *fp16, *layout, name=name)
            # Where scales differed, so would steps, and E9001 would end the run at its first save.
            self.assertEqual(self.scales(name), scales, name)

    def scales(self, name):
        return {r["step"]: r["loss_scale"] for r in self.records(name) if "loss_scale" in r}

    def test_each_rank_saves_its_own_part_and_no_other(self):
        self.train_ranks(4, FULL, experts(2), name="run")
        step = self.folder / "run/step-000020"
        parts = [sum(f.stat().st_size for f in step.glob(f"shard-{rank:05d}-*.safetensors")) for rank in range(4)]
        self.assertEqual(sum(parts), sum(f.stat().st_size for f in step.glob("*.safetensors")))
        self.assertLess(max(parts), 1.15 * sum(parts) / 4)  # a header each, and what does not divide

    def test_muon_trains_as_one_with_its_state_cut_anywhere(self):
        muon = ("train.optimizer.kind=muon", "train.optimizer.lr=3e-3")
        self.train("checkpoint.dir=one", *muon)
        for world, *layout in ((2, ZERO, experts(2)), (3, FULL, experts(1)), (4, ZERO, experts(2))):
            name = f"{world} {layout[0][-4:]}"
            self.train_ranks(world, *muon, *layout, name=name)
            self.assertLess(self.apart("one", name), 1e-4, name)

    def test_muon_goes_on_in_another_layout(self):
        muon = ("train.optimizer.kind=muon", "train.optimizer.lr=3e-3")
        self.train("checkpoint.dir=one", *muon)
        for part, (world, *sets) in enumerate(((2, FULL, experts(2)), (1,), (3, ZERO), (2, DDP)), 1):
            self.train_part(4 * part if part < 4 else 20, world, *muon, *sets)
        self.assertLess(self.apart("one", "many"), 1e-4)

    def test_F124_F125_a_run_goes_on_in_another_layout(self):
        self.train("checkpoint.dir=one")
        layouts = ((2, FULL, experts(2)), (1,), (4, ZERO, experts(2)), (3, FULL), (2, DDP))
        for part, (world, *sets) in enumerate(layouts, 1):
            self.train_part(4 * part, world, *sets)
        self.assertLess(self.apart("one", "many"), 1e-5)
        self.assertLess(self.tensors_apart("one", "many"), 2e-6)

    def test_184_any_number_of_ranks_scores_the_same_sequences(self):
        words, rng = "the cat sat on a mat and saw ten red birds in that old tree".split(), random.Random(7)
        for name, count in (("many", 400), ("few", 12)):  # some 55 sequences, and two
            (self.folder / f"{name}.txt").write_text(" ".join(rng.choice(words) for _ in range(count)))
        sets = ("data.valid=[{kind: text, path: many.txt}, {kind: text, path: few.txt}]", "train.steps=4",
                "eval.every=4", "eval.at_start=true", "eval.prompts=[The cat]", "eval.sample_tokens=8")

        def scores(name):
            return {(r["step"], r["set"]): (r["val/loss"], r["val/bits_per_byte"])
                    for r in self.records(name) if r.get("event") == "eval"}

        def samples(name):
            return [(r["step"], r["text"]) for r in self.records(name) if r.get("event") == "sample"]

        whole = {}
        layouts = ((2, ZERO, experts(2)), (3, FULL), (4, DDP), (4, FULL, experts(4)))
        for part, more in enumerate((("eval.batch=2",), ("eval.batch=2", "eval.batches=5"))):
            one = f"one {part}"
            self.train(f"checkpoint.dir={one}", *sets, *more)
            expected = scores(one)
            self.assertEqual(len(expected), 4)
            whole[part] = expected[0, "many.txt"]
            for world, *layout in layouts[2 * part:]:
                name = f"{part} of {world} {layout[0]}"
                self.train_ranks(world, *sets, *more, *layout, name=name)
                found = scores(name)
                self.assertEqual(sorted(found), sorted(expected))
                for key, values in found.items():
                    # At the start the weights are the same bits; then they differ by rounding.
                    for value, want in zip(values, expected[key]):
                        self.assertLess(abs(value / want - 1), 1e-5 if key[0] > 0 else 1e-6, (name, key))
                self.assertEqual(samples(name), samples(one))
        self.assertNotEqual(whole[0], whole[1])

    def test_F82_a_layout_that_will_not_fit_is_told_before_it_is_made(self):
        large = ("model={preset: olmoe-1b-7b}", "data.sequence=128")
        for rank, run in enumerate(self.start_ranks(2, *large)):
            self.assertEqual(run.wait(PATIENCE), 7, self.text_of(rank))
        self.assertRegex(self.text_of(0), r"E7006 memory [\d.]+ of [\d.]+ GiB: it will not fit")
        self.train_ranks(2, name="small")
        self.assertRegex(self.text_of(0, "small"), r"2 ranks .* ms a step, .*; memory forecast [\d.]+ GiB a rank of [\d.]+")

    def train_part(self, end, world, *sets):
        """Goes on with the run "many" in another layout; all ranks are killed behind step `end`."""
        sets = (*sets, "checkpoint.every_steps=4", "checkpoint.background=false")
        if end == 20:
            return self.train_ranks(world, *sets, name="many")
        if world == 1:
            words = [w for s in (*sets, "checkpoint.dir=many") for w in ("--set", s)]
            runs = [self.start(*words, TROUPE_FAULT=f"batch:{end}=kill")]
        else:
            runs = self.start_ranks(world, *sets, name="many", TROUPE_FAULT=f"batch:{end}=kill")
        for rank, run in enumerate(runs):
            # The first to die may be noticed by another before that one comes to its own end.
            self.assertIn(run.wait(PATIENCE), (-9, 6), rank)
        self.assertIn(f"step-{end:06d}", self.steps("many"))
        return None


if __name__ == "__main__":
    unittest.main()
