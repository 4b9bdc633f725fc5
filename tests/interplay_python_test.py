#!/usr/bin/env python3
"""troupe.MoE with the rest of PyTorch: compile, export, AOTInductor, checkpointing, what backward keeps, offload, threads."""
import copy
import math
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest
import warnings

import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from troupe_package import troupe

D, E, K, F = 16, 5, 2, 12


def layer(**options):
    torch.manual_seed(2)
    moe = troupe.MoE(D, E, K, F, std=0.3, **options)
    if hasattr(moe.gate, "e_score_correction_bias"):
        moe.gate.e_score_correction_bias.normal_(std=0.1)
    return moe


class Block(nn.Module):
    """A residual block, as models have them."""

    def __init__(self, **options):
        super().__init__()
        self.norm, self.moe = nn.LayerNorm(D), layer(**options)

    def forward(self, x):
        y, aux = self.moe(self.norm(x))
        return x + y, aux.loss


def results(module, run, x):
    module.zero_grad()
    x = x.detach().clone().requires_grad_()
    y, loss = run(x)
    (y.square().sum() + loss).backward()
    return [y.detach(), loss.detach(), x.grad, *(p.grad for p in module.parameters() if p.grad is not None)]


class Compile(unittest.TestCase):
    KINDS = {"topk_softmax": {"z_loss": 0.01}, "sigmoid_bias": {"router": "sigmoid_bias", "shared": 1},
             "capacity": {"capacity": 1.0, "bias": True}}

    def same(self, got, want):
        for i, (a, b) in enumerate(zip(got, want, strict=True)):
            self.assertTrue(a.equal(b), i)

    def test_pym1_pym2_one_frame_for_20_numbers_of_tokens_and_the_bits_of_eager(self):
        for name, options in self.KINDS.items():
            with self.subTest(name):
                block, counter = Block(**options), CompileCounterWithBackend("aot_eager")
                torch._dynamo.reset()
                run = torch.compile(block, fullgraph=True, backend=counter, dynamic=True)
                first = 0
                for tokens in range(2, 22):
                    x = torch.randn(tokens, D)
                    self.same(results(block, run, x), results(block, block, x))
                    first = first or counter.frame_count  # PyTorch counts the router's own Function apart
                self.assertEqual(counter.frame_count, first)
                for tokens in (0, 1):
                    x = torch.randn(tokens, D)
                    self.same(results(block, run, x), results(block, block, x))
                self.assertLessEqual(counter.frame_count, 3 * first)

    def test_pym1_evaluation_and_batches_compile_once_each(self):
        block, counter = Block(), CompileCounterWithBackend("aot_eager")
        torch._dynamo.reset()
        run = torch.compile(block, fullgraph=True, backend=counter, dynamic=True)
        first = 0
        for batch in (2, 3, 4):
            for training in (True, False, True):
                block.train(training)
                x = torch.randn(batch, 5, D)
                self.same(run(x), block(x))
                first = first or counter.frame_count
        self.assertLessEqual(counter.frame_count, 2 * first)

    def test_pym1_inductor_agrees(self):
        block = Block(z_loss=0.01)
        torch._dynamo.reset()
        run = torch.compile(block, fullgraph=True, dynamic=True)
        for tokens in (7, 12):
            x = torch.randn(tokens, D)
            for a, b in zip(results(block, run, x), results(block, block, x), strict=True):
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)

    def test_pym3_autocast_is_in_the_graph(self):
        block = Block()
        torch._dynamo.reset()
        run = torch.compile(block, fullgraph=True, backend="aot_eager", dynamic=True)
        x = torch.randn(6, D)
        with torch.autocast("cpu", torch.bfloat16):
            got, want = run(x), block(x)
            self.assertEqual(block.moe.experts(x, *block.moe.gate(x)[:2]).dtype, torch.bfloat16)
        self.same(got, want)


class Export(unittest.TestCase):
    def test_pym5_an_exported_layer_has_the_bits_of_eager_for_any_number_of_tokens(self):
        moe = layer(losses="none", router="sigmoid_bias").eval()
        tokens = torch.export.Dim("tokens", min=2, max=4096)
        exported = torch.export.export(moe, (torch.randn(8, D),), dynamic_shapes=({0: tokens},))
        for n in (2, 9, 300):
            x = torch.randn(n, D)
            self.assertTrue(exported.module()(x).equal(moe(x)))

    def test_pym5_onnx_is_refused_with_what_exports(self):
        class Call(nn.Module):
            def __init__(self, module, *given):
                super().__init__()
                self.module, self.given = module, given

            def forward(self, x):
                return self.module(x, *self.given)

        moe, ids, weights = layer(losses="none").eval(), torch.zeros(8, K, dtype=torch.int32), torch.rand(8, K)
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(action="ignore"):
            for module in (Call(moe), Call(moe.experts, ids, weights)):
                with self.assertRaisesRegex(troupe.Unsupported, "ONNX has no operators.*batched_mm"):
                    torch.onnx.export(module, (torch.randn(8, D),), f"{folder}/moe.onnx", dynamo=False)

    @unittest.skipUnless(shutil.which("g++"), "AOTInductor compiles C++")
    def test_pym5_an_aotinductor_package_loads_in_another_process(self):
        moe = layer(losses="none").eval()
        tokens = torch.export.Dim("tokens", min=2, max=4096)
        exported = torch.export.export(moe, (torch.randn(8, D),), dynamic_shapes=({0: tokens},))
        with tempfile.TemporaryDirectory() as folder:
            package = torch._inductor.aoti_compile_and_package(exported, package_path=f"{folder}/moe.pt2")
            x = torch.randn(11, D)
            torch.save((x, moe(x).detach()), f"{folder}/case.pt")
            script = ("import sys, torch; torch.ops.load_library(sys.argv[1]); "
                      "run = torch._inductor.aoti_load_package(sys.argv[2]); x, want = torch.load(sys.argv[3]); "
                      "torch.testing.assert_close(run(x), want, rtol=1e-5, atol=1e-5)")
            library = os.environ.get("TROUPE_LIBRARY")
            subprocess.run([sys.executable, "-c", script, library, package, f"{folder}/case.pt"], check=True)


class Checkpoint(unittest.TestCase):
    def test_pym4_gradients_are_those_without_a_checkpoint(self):
        def save_experts(context, operator, *arguments, **named):
            keep = operator == torch.ops.troupe.moe_ffn_forward.default
            return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

        ways = {"non-reentrant": {"use_reentrant": False}, "reentrant": {"use_reentrant": True},
                "determinism": {"use_reentrant": False, "determinism_check": "default"},
                "selective": {"use_reentrant": False,
                              "context_fn": lambda: create_selective_checkpoint_contexts(save_experts)}}
        for recompute in ("none", "expert", "layer"):
            block = Block(recompute=recompute, z_loss=0.01)
            x = torch.randn(9, D)
            want = results(block, block, x)
            for name, way in ways.items():
                with self.subTest(name, recompute=recompute):
                    for a, b in zip(results(block, lambda t: checkpoint(block, t, **way), x), want, strict=True):
                        self.assertTrue(a.equal(b))

    def test_pym4_two_backwards_of_one_graph_are_the_same(self):
        moe, x = layer(), torch.randn(9, D, requires_grad=True)
        y = moe(x)[0].square().sum()
        first = torch.autograd.grad(y, [x, *moe.experts.parameters()], retain_graph=True)
        for a, b in zip(first, torch.autograd.grad(y, [x, *moe.experts.parameters()]), strict=True):
            self.assertTrue(a.equal(b))


class Kept(unittest.TestCase):
    def test_pyn6_backward_keeps_the_parameters_themselves_in_every_layout(self):
        for up, down in (("rows", "rows"), ("columns", "columns")):
            w1 = torch.randn(E, 2 * F, D) if up == "rows" else torch.randn(E, D, 2 * F)
            w2 = torch.randn(E, D, F) if down == "rows" else torch.randn(E, F, D)
            w1, w2 = nn.Parameter(w1), nn.Parameter(w2)
            kept = []
            with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
                x = torch.randn(7, D, requires_grad=True)
                r = troupe.route(torch.randn(7, E), K)
                troupe.moe_ffn(x, r.ids, r.weights, w1, w2, up_layout=up, down_layout=down)
            for w in (w1, w2):
                found = [t for t in kept if t.data_ptr() == w.data_ptr()]
                self.assertTrue(found and all(t.shape == w.shape and t.stride() == w.stride() for t in found))

    def test_pyn4_no_layout_allocates_a_weight(self):
        big = 256
        ids, p, x = torch.tensor([[0, 1]] * 4), torch.rand(4, 2), torch.randn(4, big)
        halves, turns = torch.randn(4, 2 * big, big), torch.randn(4, 2 * big, big)
        down = torch.randn(4, big, big)
        cases = {"rows": (halves, down, {}), "columns": (halves.transpose(1, 2).contiguous(), down,
                                                        {"up_layout": "columns", "down_layout": "columns"}),
                 "turns": (turns, down, {"interleaved": True}),
                 "two": (halves[:, :big].contiguous(), down, {"up": halves[:, big:].contiguous()})}
        for name, (w1, w2, form) in cases.items():
            with self.subTest(name), torch.profiler.profile(profile_memory=True) as profile:
                with torch.no_grad():
                    troupe.moe_ffn(x, ids, p, w1, w2, **form)
            largest = max(e.self_cpu_memory_usage for e in profile.key_averages())
            self.assertGreater(largest, 0)
            self.assertLess(largest, down.nbytes)

    def test_x8_what_is_frozen_costs_no_gradient_and_no_memory(self):
        moe, x = layer(), torch.randn(7, D)
        moe.experts.gate_up_proj.requires_grad_(False)
        moe(x)[0].sum().backward()
        self.assertIsNone(moe.experts.gate_up_proj.grad)
        self.assertIsNotNone(moe.experts.down_proj.grad)
        moe.requires_grad_(False)
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
            moe(x)
        self.assertEqual(kept, [])

    def test_pym10_weights_that_arrive_with_the_call_are_read_then(self):
        moe = layer().eval()
        x, resident = torch.randn(7, D), None
        resident = moe(x)[0]
        away = {n: p.detach().clone() for n, p in moe.experts.named_parameters()}
        moe.experts.to("meta")

        def arrive(module, arguments):
            for n, t in away.items():
                setattr(module, n, nn.Parameter(t))

        moe.experts.register_forward_pre_hook(arrive)
        self.assertTrue(moe(x)[0].equal(resident))


class Machine(unittest.TestCase):
    def test_pym12_any_thread_gives_the_same_bits(self):
        moe, x = layer(), torch.randn(64, D)
        want, got = results(moe, lambda t: (moe(t)[0], torch.zeros(())), x), [None] * 4

        def work(i):
            other = copy.deepcopy(moe)
            got[i] = results(other, lambda t: (other(t)[0], torch.zeros(())), x)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        for one in got:
            for a, b in zip(one, want, strict=True):
                self.assertTrue(a.equal(b))

    def test_pym12_workers_that_fork_compute_too(self):
        moe = layer().eval()
        x = torch.randn(3, 4, D)
        want = moe(x[0])[0].detach()

        class Data(torch.utils.data.Dataset):
            def __len__(self):
                return 3

            def __getitem__(self, i):
                with torch.no_grad():
                    return moe(x[i])[0]

        loaded = list(torch.utils.data.DataLoader(Data(), num_workers=2))
        self.assertTrue(loaded[0][0].equal(want))

    def test_pym14_other_devices_are_refused_at_the_first_call(self):
        self.assertEqual(layer(device="meta")(torch.empty(3, D, device="meta"))[0].device.type, "meta")
        moe = layer()
        for device in ("xpu", "mps"):
            with FakeTensorMode():  # tensors of a device that is not here
                x, ids = torch.empty(3, D, device=device), torch.zeros(3, K, dtype=torch.int64, device=device)
                for call in (lambda: moe(x), lambda: moe.experts(x, ids, torch.ones(3, K, device=device))):
                    with self.assertRaisesRegex(troupe.Unsupported, f"x is on {device}:0; experts here run on CPU and CUDA"):
                        call()

    def test_pyn9_forward_mode_is_refused_by_name(self):
        moe, x = layer().eval(), torch.randn(3, 4, D)
        r = moe.gate(x[0])
        with self.assertRaisesRegex(troupe.Unsupported, "x has a forward-mode tangent"):
            torch.func.jvp(lambda t: moe.experts(t, r.ids, r.weights), (x[0],), (x[1],))


if __name__ == "__main__":
    unittest.main()
