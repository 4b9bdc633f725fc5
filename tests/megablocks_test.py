#!/usr/bin/env python3
"""troupe.megablocks: MegaBlocks' names, its numbers beside plain PyTorch, users' scripts and call sites as they stand.
tools/megablocks_suite.py runs MegaBlocks' own tests."""
import dataclasses
import functools
import gc
import importlib
import inspect
import os
import pathlib
import re
import shutil
import subprocess
import sys
import types
import unittest

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils.checkpoint import checkpoint
from troupe_package import troupe

import troupe.megablocks as megablocks  # isort: skip
from troupe.megablocks import Arguments, MoE, dMoE, grouped_gemm, megablocks_ops, ops, stk  # isort: skip
from troupe.megablocks.layers import activation_fn, dmlp_registry, glu, mlp, moe, mpu, router  # isort: skip

HERE = pathlib.Path(__file__).resolve().parent
INIT = functools.partial(torch.nn.init.normal_, mean=0.0, std=0.1)


def arguments(**given):
    return Arguments(**{**dict(hidden_size=16, ffn_hidden_size=24, moe_num_experts=4, moe_top_k=2, fp16=False,
                               init_method=INIT, output_layer_init_method=INIT, device="cpu"), **given})


def routed(T, E, K, seed=1):
    torch.manual_seed(seed)
    experts = torch.randint(0, E, (T * K,)).int()
    bin_ids, indices = ops.sort(experts)
    counts = ops.histogram(experts, E)
    return experts, bin_ids, indices, counts, ops.inclusive_cumsum(counts, 0)


def by_hand(layer, x, scores, p, ids):
    """Each expert on its tokens, in the parameters' type."""
    args, m = layer.args, layer.mlp
    w1, w2 = (getattr(m, n).view(args.moe_num_experts, -1, args.hidden_size) for n in ("w1", "w2"))
    if type(m) is mlp.MLP:
        w1 = m.w1.transpose(1, 2)
    flat = x.reshape(-1, x.shape[-1])
    y = torch.zeros_like(flat)
    for e in range(args.moe_num_experts):
        t, k = torch.where(ids == e)
        h = args.activation_fn(flat[t] @ w1[e].T)
        if hasattr(m, "v1"):
            h = h * (flat[t] @ m.v1.view_as(w1)[e].T)
        y = y.index_add(0, t, p[t, k, None] * (h @ w2[e]))
    return y.view(x.shape)


class Case(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        moe.clear_load_balancing_loss()
        router.clear_router_zloss()

    def close(self, got, want, tolerance=1e-5):
        self.assertLessEqual((got - want).abs().max().item(), tolerance * want.abs().max().clamp_min(1e-30).item())


class Operators(Case):
    def test_gathers_and_scatters_equal_loops_over_tokens(self):
        for T, D, E, K in ((4, 2, 2, 2), (33, 7, 5, 1), (128, 24, 4, 4), (64, 1, 64, 2), (16, 3, 1, 2)):
            _, bin_ids, indices, counts, bins = routed(T, E, K)
            padded = ops.inclusive_cumsum(ops.round_up(counts, 8), 0)
            x, p = torch.randn(T, D), torch.rand(T * K)
            rows = x[indices.long() // K]
            self.assertTrue(torch.equal(ops.gather(x, indices, bin_ids, bins, K), rows))
            want = torch.zeros(T, D).index_add_(0, indices.long() // K, rows * p[indices.long(), None])
            self.close(ops.scatter(rows, indices, bin_ids, p, bins, K), want)
            wide = ops.padded_gather(x, indices, bin_ids, bins, padded, K)
            self.assertEqual(wide.shape[0], int(padded.view(-1)[-1]))
            self.close(ops.padded_scatter(wide, indices, bin_ids, p, bins, padded, K), want)
            self.close(ops.binned_scatter(ops.binned_gather(x, indices, bins, T * K, K), indices, p, bins, K), want)
            C, ends, start = max(T * K // E, 1), bins.view(-1).tolist(), 0
            some = ops.binned_gather(x, indices, bins, C, K)
            for e, end in enumerate(ends):
                kept = rows[start:min(end, start + C)]
                self.assertTrue(torch.equal(some[e, :len(kept)], kept) and not some[e, len(kept):].any())
                start = end

    def test_16_bit_products_are_rounded_before_their_sum_as_there(self):
        T, D, E, K = 64, 5, 4, 4
        _, bin_ids, indices, _, bins = routed(T, E, K)
        rows, p = torch.randn(T * K, D).half(), torch.rand(T * K).half()
        products = (rows.float() * p[indices.long(), None].float()).half().double()
        want = torch.zeros(T, D, dtype=torch.float64).index_add_(0, indices.long() // K, products)
        got = ops.scatter(rows, indices, bin_ids, p, bins, K)
        self.assertTrue(torch.allclose(got.double(), want, rtol=1e-3, atol=1e-7))

    def test_weights_and_rows_have_gradients(self):
        T, D, E, K = 6, 3, 4, 2
        _, bin_ids, indices, counts, bins = routed(T, E, K)
        padded = ops.inclusive_cumsum(ops.round_up(counts, 4), 0)
        x, p = torch.randn(T, D, dtype=torch.float64), torch.rand(T * K, dtype=torch.float64)
        wide = ops.padded_gather(x, indices, bin_ids, bins, padded, K)
        for a in (x, p, wide):
            a.requires_grad_()
        self.assertTrue(torch.autograd.gradcheck(
            lambda w, q: ops.padded_scatter(w, indices, bin_ids, q, bins, padded, K), (wide.detach().requires_grad_(), p)))
        self.assertTrue(torch.autograd.gradcheck(lambda y: ops.binned_gather(y, indices, bins, 2, K), (x,)))

    def test_the_kernels_and_the_extension_of_its_names(self):
        T, D, E, K = 20, 6, 4, 2
        _, bin_ids, indices, counts, bins = routed(T, E, K)
        padded = ops.inclusive_cumsum(ops.round_up(counts, 8), 0)
        kernels = megablocks.backend.kernels
        x, p, grad = torch.randn(T, D), torch.rand(T * K, requires_grad=True), torch.randn(T, D)
        rows = kernels.padded_gather(x, indices, bin_ids, None, bins, padded, K)
        ops.padded_scatter(rows, indices, bin_ids, p, bins, padded, K).backward(grad)
        self.close(kernels.padded_scatter_wgrad(rows, grad, indices, bin_ids, bins, padded, K), p.grad)
        self.close(kernels.scatter_wgrad(ops.gather(x, indices, bin_ids, bins, K), grad, indices, bin_ids, bins, K), p.grad)
        q = p.detach()
        scaled = kernels.gather(x, indices, bin_ids, q, bins, K)
        self.close(scaled, x[indices.long() // K] * q[indices.long(), None])
        self.close(kernels.padded_gather(x, indices, bin_ids, q, bins, padded, K).sum(), scaled.sum())
        some = kernels.binned_gather(x, indices, None, bins, 5, K)
        self.close(kernels.binned_gather(x, indices, q, bins, 5, K).abs().sum(),
                   (some.abs() * ops.binned_gather(q.view(-1, 1), indices, bins, 5, 1)).sum())
        q2 = q.clone().requires_grad_()
        ops.binned_scatter(some, indices, q2, bins, K).backward(grad)
        self.close(kernels.binned_scatter_wgrad(some, grad, indices, bins, K), q2.grad)
        out = torch.empty(T, dtype=torch.int64)
        megablocks_ops.inclusive_cumsum(torch.ones(T, dtype=torch.int64), 0, out)
        self.assertEqual(out.tolist(), list(range(1, T + 1)))
        spread = torch.empty(2, T * K)
        megablocks_ops.replicate_forward(torch.randn(2, E), bins, spread)
        back = torch.empty(2, E)
        megablocks_ops.replicate_backward(torch.ones(2, T * K), bins, back)
        self.assertEqual(back[0].tolist(), counts.tolist())

    def test_integers_sort_count_sum_and_round(self):
        for dtype in (torch.int16, torch.int32, torch.int64):
            x = torch.randint(0, 900, (333,)).to(dtype)
            values, places = ops.sort(x, 10)
            want, order = torch.sort(x, stable=True)
            self.assertTrue(torch.equal(values, want) and torch.equal(places.long(), order))
            self.assertEqual(places.dtype, dtype)
            self.assertTrue(torch.equal(ops.histogram(x, 900).long(), torch.bincount(x.long(), minlength=900)))
            self.assertTrue(torch.equal(ops.exclusive_cumsum(x.view(3, 111), 1), x.view(3, 111).cumsum(1).to(dtype) - x.view(3, 111)))
        self.assertEqual(ops.round_up(torch.tensor([0, 1, 8, 9]).int(), 8).tolist(), [0, 8, 8, 16])
        bins = torch.tensor([128, 128, 384]).int()
        self.assertEqual(ops.topology(bins, 128, 3, 2).tolist(), [0, 1, 4, 5, 4, 5])
        self.assertEqual(ops.topology(bins, 128, 3, 2).dtype, torch.int16)
        self.assertEqual(ops.topology(bins, 128, 3, 20000).dtype, torch.int32)

    def test_grouped_gemm_takes_counts_and_both_transposes(self):
        counts, a = torch.tensor([3, 0, 4]), torch.randn(7, 5)
        b = torch.randn(3, 5, 6, requires_grad=True)
        y = grouped_gemm.ops.gmm(a, b, counts)
        want = torch.cat([a[:3] @ b[0], a[3:] @ b[2]])
        self.close(y, want)
        self.close(grouped_gemm.ops.gmm(a, b.transpose(1, 2).contiguous(), counts, trans_b=True), want)
        y.sum().backward()
        self.close(grouped_gemm.backend.gmm(a, torch.ones(7, 6), counts, trans_a=True), b.grad)
        out = torch.empty(7, 6)
        self.assertIs(grouped_gemm.backend.gmm(a, b, counts, c=out), out)
        self.assertTrue(megablocks.grouped_gemm_util.grouped_gemm_is_available())

    def test_stk_products_equal_dense_ones_in_every_transposition(self):
        s = stk.random.mask(256, 384, 0.5, 128)
        s.validate()
        s = s.with_data(torch.randn(s.data.shape, requires_grad=True))
        dense = stk.ops.to_dense(s)
        a = torch.randn(384, 32)
        self.close(stk.ops.dsd(s, a), dense @ a, 1e-4)
        self.close(stk.ops.dsd(s.t(), torch.ones(256, 8)), dense.T @ torch.ones(256, 8), 1e-4)
        self.close(stk.ops.dds(torch.ones(8, 256), s), torch.ones(8, 256) @ dense, 1e-4)
        self.close(stk.ops.dds(torch.ones(384, 8).t(), s.t()), torch.ones(8, 384) @ dense.T, 1e-4)
        x, w = torch.randn(256, 16), torch.randn(384, 16)
        self.close(stk.ops.to_dense(stk.ops.sdd(x, w.t(), s)), (x @ w.T) * (stk.ops.to_dense(stk.ops.ones_like(s))), 1e-4)
        stk.ops.sum(stk.ops.mul(s, s)).backward()
        self.close(s.grad.data, 2 * s.data.detach())
        back = stk.ops.to_sparse(dense, 128)
        self.assertTrue(torch.equal(stk.ops.to_dense(back), dense))
        self.assertTrue(torch.equal(stk.ops.row_indices(s.shape, s.data, s.offsets, s.column_indices), s.row_indices))


class Layers(Case):
    def test_arguments_have_its_fields_in_its_order(self):
        names = [f.name for f in dataclasses.fields(Arguments)]
        self.assertEqual(names[:34], """hidden_size ffn_hidden_size num_layers bias return_bias activation_fn moe_num_experts
            moe_top_k moe_capacity_factor moe_normalize_expert_weights moe_loss_weight moe_jitter_eps moe_lbl_in_fp32
            moe_expert_model_parallelism expert_parallel_group pipeline_model_parallel_size
            num_layers_per_virtual_pipeline_stage memory_optimized_mlp mlp_type mlp_impl fp16 bf16 device init_method
            output_layer_init_method uniform_expert_assignment shared_expert fc_cls fc_kwargs remat_act_fn
            shared_expert_hidden_size shared_expert_weighted_sum moe_zloss_weight moe_zloss_in_fp32""".split())
        made = megablocks.layers.arguments.from_megatron(types.SimpleNamespace(hidden_size=7, unknown=1))
        self.assertEqual((made.hidden_size, made.ffn_hidden_size), (7, 4096))

    def test_layers_equal_each_expert_by_hand_and_have_its_parameters(self):
        for kind, impl, act in (("mlp", "grouped", None), ("glu", "grouped", torch.nn.functional.silu),
                                ("mlp", "sparse", None), ("glu", "sparse", torch.nn.functional.relu),
                                ("glu", "grouped", torch.tanh), ("mlp", "sparse", torch.tanh)):  # tanh is none of Troupe's: its values alone are used
            given = dict(mlp_type=kind, mlp_impl=impl, return_bias=False, moe_normalize_expert_weights=1,
                         memory_optimized_mlp=True)
            layer = dMoE(arguments(**given, **({} if act is None else {"activation_fn": act})))
            x = torch.randn(5, 3, 16, requires_grad=True)
            y = layer(x)
            scores, p, ids = layer.router(x)
            want = by_hand(layer.experts, x, scores, p, ids)
            self.close(y, want)
            names = sorted(n for n, _ in layer.named_parameters())
            leaves = [x, *(q for n, q in layer.named_parameters() if not n.endswith("bias"))]
            for a, b in zip(*(torch.autograd.grad(out.square().sum(), leaves) for out in (y, want)), strict=True):
                self.close(a, b, 1e-4)
            self.assertEqual(names, sorted(["router.layer.weight", "experts.bias", "experts.mlp.w1", "experts.mlp.w2",
                                            *(["experts.mlp.v1"] if kind == "glu" else [])]))
            self.assertEqual(layer.experts.mlp.w1.shape, (4 * 24, 16))
            moe.clear_load_balancing_loss()

    def test_moe_without_a_capacity_is_dmoe_bit_for_bit_and_with_one_drops_the_last(self):
        args = arguments(moe_capacity_factor=0, bias=False)
        dropless, plain = dMoE(args), MoE(args)
        with torch.no_grad():
            plain.experts.mlp.w1.copy_(dropless.experts.mlp.w1.view(4, 24, 16).transpose(1, 2))
            plain.experts.mlp.w2.copy_(dropless.experts.mlp.w2.view(4, 24, 16))
            plain.router.layer.weight.copy_(dropless.router.layer.weight)
        x = torch.randn(9, 2, 16)
        self.assertTrue(torch.equal(plain(x), dropless(x)))
        args.moe_capacity_factor = 0.5
        scores, p, ids = plain.router(x)
        capacity, seen, kept = plain.experts.expert_capacity(18), [0] * 4, p.clone()
        self.assertEqual(capacity, int(0.5 * 2 * 18 / 4))
        for slot, e in enumerate(ids.flatten().tolist()):
            if seen[e] >= capacity:
                kept.view(-1)[slot] = 0
            seen[e] += 1
        y = plain(x)
        self.close(y, by_hand(plain.experts, x, scores, kept, ids))
        self.assertEqual(moe.get_load_balancing_loss()[-1][0].tolist(), seen)

    def test_shared_experts_biases_and_the_forms_of_the_result(self):
        for kind in ("mlp", "glu"):
            args = arguments(shared_expert=True, shared_expert_weighted_sum=True, mlp_type=kind)
            layer, x = dMoE(args), torch.randn(4, 2, 16)
            y, bias = layer(x)
            scores, p, ids = layer.router(x)
            want = layer.shared_expert(x) / 3 + by_hand(layer.experts, x, scores, p, ids) * 2 / 3
            self.close(y, want)
            self.assertIs(bias, layer.experts.bias)

    def test_losses_are_those_of_their_arguments_and_two_models_do_not_mix(self):
        a, b = arguments(num_layers=2, moe_zloss_weight=1e-3), arguments(num_layers=1)
        first, second = [dMoE(a), dMoE(a)], dMoE(b)
        x = torch.randn(6, 2, 16)
        want, z = 0, []
        for layer in first:
            layer(x)
            second(x) if layer is first[0] else None
            scores, _, ids = layer.router(x)
            want = want + 4 * 0.1 / (2 * 12 * 2) * (torch.bincount(ids.flatten(), minlength=4) * scores.mean(0)).sum()
            z.append(1e-3 * (layer.router.layer(x).flatten(0, 1).logsumexp(1) ** 2).mean())
        self.close(moe.batched_load_balancing_loss(a), want)
        self.assertEqual(len(moe.get_load_balancing_loss()), 3)
        self.close(router.batched_router_zloss(a)[::2], torch.stack(z))  # the test's own calls are recorded too
        moe.clear_load_balancing_loss()
        with self.assertRaisesRegex(ValueError, "Expected 2 token_per_experts but found 0"):
            moe.batched_load_balancing_loss(a)
        second.eval()(x)
        self.assertEqual(moe.get_load_balancing_loss(), [])

    def test_half_scores_of_many_tokens_give_a_finite_loss(self):
        args = arguments(fp16=True, moe_num_experts=2, moe_top_k=1)
        moe._LOAD_BALANCING_LOSS.append((args, (torch.tensor([65520, 65520]), torch.rand(131040, 2).half())))
        self.assertTrue(torch.isfinite(moe.batched_load_balancing_loss(args)))

    def test_a_checkpointed_pass_records_once_and_a_reentrant_one_is_refused(self):
        args = arguments(return_bias=False)
        layer, x = dMoE(args), torch.randn(4, 2, 16, requires_grad=True)
        y = checkpoint(layer, x, use_reentrant=False)
        self.assertEqual(len(moe.get_load_balancing_loss()), 1)
        (y.sum() + moe.batched_load_balancing_loss(args)).backward()
        self.assertEqual(len(moe.get_load_balancing_loss()), 1)
        got = layer.router.layer.weight.grad.clone()
        layer.zero_grad()
        moe.clear_load_balancing_loss()
        (layer(x).sum() + moe.batched_load_balancing_loss(args)).backward()
        self.assertTrue(torch.equal(got, layer.router.layer.weight.grad))
        moe.clear_load_balancing_loss()
        y = checkpoint(layer, x, use_reentrant=True)
        with self.assertRaisesRegex(RuntimeError, "use_reentrant=False"):
            y.sum().backward()

    def test_autocast_computes_in_its_type(self):
        layer, x = dMoE(arguments(return_bias=False, bias=False)), torch.randn(4, 2, 16)
        with torch.autocast("cpu", torch.bfloat16):
            y = layer(x)
        self.assertEqual(y.dtype, torch.bfloat16)
        y.sum().backward()
        self.assertEqual(layer.experts.mlp.w1.grad.dtype, torch.float32)

    def test_quantized_saves_change_only_gradients(self):
        x = torch.randn(64, 2, 16, requires_grad=True)
        said = []
        for bits in (-1, 8):
            torch.manual_seed(3)
            layer = dMoE(arguments(return_bias=False, quantize_rematerialize_num_bits=bits))
            y = layer(x)
            (grad,) = torch.autograd.grad(y.square().sum(), layer.experts.mlp.w2)
            said.append((y, grad))
        self.assertTrue(torch.equal(said[0][0], said[1][0]))
        self.assertFalse(torch.equal(said[0][1], said[1][1]))
        self.close(said[1][1], said[0][1], 0.05)
        with self.assertRaisesRegex(ValueError, "quantize_inputs_num_bits is 5"):
            arguments(quantize_inputs_num_bits=5)


    def test_pyk4_the_router_chooses_in_the_models_type_or_in_f32_where_asked(self):
        x = torch.randn(256, 1, 16).bfloat16()
        for fp32 in (False, True):
            layer = dMoE(arguments(bf16=True, moe_num_experts=32, moe_router_fp32=fp32))
            logits = layer.router.layer(x.view(-1, 16))
            scores = (logits.float() if fp32 else logits).softmax(-1)
            got, p, ids = layer.router(x)
            self.assertEqual((got.dtype, p.dtype), (scores.dtype, scores.dtype))
            self.assertTrue(got.equal(scores) and ids.equal(scores.topk(2).indices) and p.equal(scores.topk(2).values))
            self.assertEqual(layer(x)[0].dtype, torch.bfloat16)

    def test_pyk5_no_tokens_give_a_loss_of_zero_with_a_gradient(self):
        args = arguments(return_bias=False)
        layer = dMoE(args)
        y = layer(torch.empty(0, 2, 16))
        loss = moe.batched_load_balancing_loss(args)
        (y.sum() + loss).backward()
        self.assertEqual((y.shape, loss.item()), ((0, 2, 16), 0.0))
        self.assertEqual(layer.router.layer.weight.grad.abs().sum().item(), 0)

    def test_pyk6_a_topology_is_int16_where_its_columns_fit_by_sizes_alone(self):
        for columns, want in ((128, torch.int16), (16384, torch.int32)):
            padded = ops.inclusive_cumsum(torch.tensor([128, 0, 256], dtype=torch.int32), 0)
            got = ops.topology(padded, 128, 3, columns)
            self.assertEqual((got.dtype, got.numel()), (want, 3 * columns))
            self.assertEqual(got.max().item(), 3 * columns - 1)

    def test_pyk6_frozen_inputs_and_weights_train_what_is_left(self):
        for kind in ("mlp", "glu"):
            layer = dMoE(arguments(mlp_type=kind, mlp_impl="sparse", memory_optimized_mlp=True, return_bias=False))
            layer.experts.mlp.w1.requires_grad_(False)
            layer(torch.randn(7, 2, 16)).sum().backward()  # of an input that needs no gradient
            self.assertIsNone(layer.experts.mlp.w1.grad)
            self.assertGreater(layer.experts.mlp.w2.grad.abs().sum().item(), 0)

    def test_pyk6_arguments_without_effect_change_no_bit(self):
        x = torch.randn(9, 2, 16)
        said = []
        for given in ({}, {"remat_act_fn": False, "memory_optimized_mlp": True, "moe_lbl_in_fp32": True, "mlp_impl": "sparse"}):
            torch.manual_seed(5)
            layer = dMoE(arguments(return_bias=False, shared_expert=True, **given))
            y = layer(x)
            y.square().sum().backward()
            said.append([y, *(p.grad for p in layer.parameters())])
        for a, b in zip(*said, strict=True):
            self.assertTrue(a.equal(b))


    def test_pyk7_nothing_in_a_dropless_layer_reads_a_number_from_the_device(self):
        """On tensors that have no numbers: .item(), .tolist() and sizes that depend on numbers raise."""
        cases = (dict(mlp_type="glu"), dict(mlp_impl="sparse"), dict(moe_capacity_factor=0, shared_expert=True, kind=MoE),
                 dict(activation_fn=torch.tanh), dict(activation_fn=torch.tanh, mlp_type="glu", mlp_impl="sparse"),
                 dict(moe_normalize_expert_weights=1, moe_jitter_eps=0.01, quantize_inputs_num_bits=8))
        for case in cases:
            given = {**dict(kind=dMoE, moe_zloss_weight=0.1, moe_loss_weight=0.1), **case}
            kind, args = given.pop("kind"), arguments(**given)
            activation_fn.name_of(args.activation_fn)  # found once in a process, by numbers
            with self.subTest(**case), FakeTensorMode():
                layer, x = kind(args), torch.randn(7, 2, 16, requires_grad=True)
                y, bias = layer(x)
                loss = (y + bias).square().sum() + moe.batched_load_balancing_loss(args) + router.batched_router_zloss(args).sum()
                loss.backward()
                self.assertTrue(all(p.grad is not None for p in layer.parameters()))
                with self.assertRaises(DataDependentOutputException):
                    loss.item()
            moe.clear_load_balancing_loss()
            router.clear_router_zloss()


class CallSites(Case):
    """Uses of MegaBlocks in other projects, in their words."""

    def run_script(self, *words, plain=False):
        folder = HERE / "megablocks_plain"
        path = [str(HERE.parent / "python"), *sys.path]
        environment = {**os.environ, "PYTHONPATH": ":".join(p for p in path if p)}
        how = [str(folder / "train.py")] if plain else ["-m", "troupe.megablocks", str(folder / "train.py")]
        if not plain:  # the script's folder holds a plain `megablocks`, which must not be the one that is found
            self.assertTrue((folder / "megablocks").is_dir())
        ran = subprocess.run([sys.executable, *how, *words], env=environment, capture_output=True, text=True, timeout=300,
                             check=False)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return [[float(v) for v in re.findall(r": (\S+)", line)] for line in ran.stdout.splitlines()]

    def test_140_a_training_script_as_it_stands_has_the_same_losses(self):
        for words in (["--moe-top-k", "2"], ["--mlp-type", "glu", "--moe-num-experts", "5", "--moe-top-k", "1"]):
            want, got = self.run_script(*words, plain=True), self.run_script(*words)
            self.assertEqual(len(got), 12)
            self.assertLess(got[-1][0], got[0][0])
            for a, b in zip(got, want, strict=True):
                self.assertAlmostEqual(a[0], b[0], delta=2e-5)
                self.assertAlmostEqual(a[1], b[1], delta=2e-5)

    def test_install_gives_the_names_and_refuses_where_the_real_ones_are_loaded(self):
        saved = dict(sys.modules)
        try:
            megablocks.install()
            import grouped_gemm as gg
            import megablocks as mb
            import megablocks.layers.moe as by_path
            import stk.ops
            from megablocks.layers.dmoe import dMoE as theirs
            from megablocks.ops.histogram import histogram
            import grouped_gemm.ops as gmm_ops
            from megablocks.layers import weight_parallel
            from stk import Matrix
            self.assertIs(mb, megablocks)
            self.assertIs(importlib.import_module("megablocks.ops"), ops)
            self.assertIs(theirs, dMoE)
            self.assertIs(by_path, moe)
            self.assertIs(histogram, ops.histogram)
            self.assertIs(Matrix, stk.Matrix)
            self.assertTrue(callable(gg.ops.gmm) and callable(stk.ops.sdd) and callable(weight_parallel.sdd_nt))
            self.assertIs(gmm_ops, grouped_gemm.ops)
            megablocks.install()  # twice is once
            sys.modules["stk"] = types.ModuleType("stk")
            with self.assertRaisesRegex(RuntimeError, "stk is imported already.*replace=True"):
                megablocks.install()
            megablocks.install(replace=True)
            self.assertIs(sys.modules["stk"], stk)
        finally:
            for name in set(sys.modules) - set(saved):
                del sys.modules[name]
            sys.modules.update(saved)

    def test_234_llm_foundrys_calls_train_as_the_plain_layer(self):
        # config_moe_args: what ffn_config has beside Arguments' names is dropped; then mb_setup_args and attach_ffn_mb_args.
        ffn_config = dict(moe_num_experts=4, moe_top_k=2, moe_loss_weight=0.05, mlp_type="glu", mlp_impl="grouped", fp16=False,
                          bf16=False, num_layers=2, moe_world_size=1, lbl_process_group=None, uniform_expert_assignment=False)
        names = inspect.signature(megablocks.layers.arguments.Arguments).parameters
        kept = {k: v for k, v in ffn_config.items() if k in names}
        self.assertEqual(set(ffn_config) - set(kept), {"moe_world_size", "lbl_process_group"})
        args = megablocks.layers.arguments.Arguments(hidden_size=16, **kept)
        args.bias, args.hidden_size, args.device, args.ffn_hidden_size = False, 16, None, 24
        args.activation_fn = torch.nn.functional.silu
        layers = [megablocks.layers.dmoe.dMoE(args) for _ in range(2)]
        for ffn in layers:
            ffn.experts.mlp._fused = (0, [])
            ffn.experts.mlp.hidden_size = args.ffn_hidden_size
            ffn.experts.mlp.expert_parallel_group = args.expert_parallel_group
            ffn.experts._fsdp_kwargs_dict = {}
            for module in ffn.modules():  # param_init_fns.moe_init and mpt_param_count
                if isinstance(module, megablocks.layers.glu.SparseGLU):
                    for w in (module.w1, module.v1, module.w2):
                        torch.nn.init.normal_(w, std=0.1)
            self.assertIsInstance(ffn.experts, megablocks.layers.moe.ParallelMLP)
            self.assertEqual(ffn.experts.args.moe_top_k, 2)
        twin = [w.detach().clone().requires_grad_() for ffn in layers for w in ffn.parameters()]
        optimizers = [torch.optim.SGD([p for ffn in layers for p in ffn.parameters()], lr=0.1), torch.optim.SGD(twin, lr=0.1)]
        x = torch.randn(5, 3, 16)
        for _ in range(2):
            megablocks.layers.moe.clear_load_balancing_loss()
            h = x
            for ffn in layers:
                h = h + ffn(h)
            lbl = megablocks.layers.moe.batched_load_balancing_loss(args)
            g, want_lbl, names = x, 0, [n for n, _ in layers[0].named_parameters()]
            for i in range(2):
                named = dict(zip(names, twin[i * len(names):]))
                own = torch.func.functional_call(layers[i].router, {"layer.weight": named["router.layer.weight"]}, (g,))
                self_ = types.SimpleNamespace(args=args, mlp=types.SimpleNamespace(
                    **{n: named[f"experts.mlp.{n}"] for n in ("w1", "v1", "w2")}))
                g = g + by_hand(self_, g, *own)
                want_lbl = want_lbl + (torch.bincount(own[2].flatten(), minlength=4) * own[0].mean(0)).sum()
            want_lbl = 4 * 0.05 / (2 * 15 * 2) * want_lbl
            self.close(lbl, want_lbl)
            losses = [h.square().mean() + lbl, g.square().mean() + want_lbl]
            self.close(*losses)
            for optimizer, loss in zip(optimizers, losses):
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        for got, want in zip([p for ffn in layers for p in ffn.parameters()], twin):
            self.close(got, want, 1e-4)

    def test_140_olmos_arguments_losses_and_counts(self):
        args = Arguments(activation_fn=torch.nn.functional.silu, mlp_type="glu", mlp_impl="sparse", hidden_size=16,
                         ffn_hidden_size=24, moe_num_experts=4, num_layers=2, moe_expert_model_parallelism=False,
                         expert_parallel_group=None, moe_capacity_factor=1.25, moe_loss_weight=0.01, moe_top_k=2,
                         device="cpu", bias=False, return_bias=False, fp16=False, bf16=False, init_method=INIT,
                         moe_zloss_weight=0.001, moe_lbl_in_fp32=True, moe_zloss_in_fp32=True, shared_expert=False)
        layers, x = [dMoE(args) for _ in range(2)], torch.randn(3, 4, 16)
        for layer in layers:
            x = x + layer(x)
        tokens_per_expert, scores = zip(*moe.get_load_balancing_loss())
        self.assertEqual([int(t.sum()) for t in tokens_per_expert], [24, 24])
        lb, z = moe.batched_load_balancing_loss(args), router.batched_router_zloss(args).sum()
        want = 4 * 0.01 / (2 * 12 * 2) * sum((t.float() * s.mean(0)).sum() for t, s in zip(tokens_per_expert, scores))
        self.close(lb, want)
        (x.square().mean() + lb + z).backward()
        self.assertTrue(all(p.grad is not None for layer in layers for p in layer.parameters()))
        moe.clear_load_balancing_loss()
        router.clear_router_zloss()
        self.assertEqual(moe.get_load_balancing_loss(), [])

    def test_140_neoxs_own_layer_over_ops_and_grouped_gemm(self):
        from troupe.megablocks import grouped_gemm_util as gg
        T, D, F, E, K = 30, 16, 24, 4, 2
        experts, bin_ids, indices, counts, bins = routed(T, E, K)
        x, p = torch.randn(T, D, requires_grad=True), torch.rand(T * K)
        w1, w2 = (torch.randn(E, F, D).mul(0.1).requires_grad_() for _ in range(2))
        batch_sizes = counts.cpu().to(torch.long)
        h = gg.ops.gmm(ops.gather(x, indices, bin_ids, bins, K), w1, batch_sizes, trans_b=True)
        y = gg.ops.gmm(torch.nn.functional.gelu(h, approximate="tanh"), w2, batch_sizes)
        y = ops.scatter(y, indices, bin_ids, p, bins, K)
        holder = types.SimpleNamespace(args=arguments(), mlp=types.SimpleNamespace(w1=w1, w2=w2))
        want = by_hand(holder, x, None, p.view(T, K), experts.view(T, K))
        self.close(y, want)
        for a, b in zip(*(torch.autograd.grad(out.square().sum(), (x, w1, w2)) for out in (y, want))):
            self.close(a, b, 1e-4)

    def test_140_nanotrons_layer_over_ops_and_stk(self):
        """Its example's sparse experts: its own topology with the transposed part, and MegaBlocks 0.5's eighth argument."""
        T, D, F, E, K, block = 30, 16, 128, 3, 2, 128
        experts, bin_ids, indices, counts, bins = routed(T, E, K)
        padded = ops.inclusive_cumsum(ops.round_up(counts, block), 0)
        x, p = torch.randn(T, D, requires_grad=True), torch.rand(T * K, requires_grad=True)
        w1, w2 = (torch.randn(E * F, D).mul(0.1).requires_grad_() for _ in range(2))
        rows = ops.padded_gather(x, indices, bin_ids, bins, padded, K)
        with torch.no_grad():
            across = F // block
            offsets = torch.arange(0, rows.shape[0] // block * across + 1, across, dtype=torch.int32)
            columns = ops.topology(padded, block, rows.shape[0] // block, across)
            data = torch.empty(columns.numel(), block, block, device="meta")
            shape = (rows.shape[0], F * E)
            row_indices = stk.ops.row_indices(shape, data, offsets, columns)
            _, order = ops.sort(columns.int(), 2)
            offsets_t = torch.cat([torch.zeros(1, dtype=torch.int32), ops.inclusive_cumsum(ops.histogram(columns, E * across), 0)])
            topo = stk.Matrix(shape, data, row_indices, columns, offsets, row_indices.gather(0, order.long()), offsets_t,
                              order.int())
        gelu = functools.partial(torch.nn.functional.gelu, approximate="tanh")
        h = activation_fn.act_fn(stk.ops.sdd(rows, w1.t(), topo), gelu)
        y = ops.padded_scatter(stk.ops.dsd(h, w2), indices, bin_ids, p, bins, padded, K, -1)
        holder = types.SimpleNamespace(args=arguments(moe_num_experts=E), mlp=types.SimpleNamespace(w1=w1, w2=w2))
        want = by_hand(holder, x, None, p.view(T, K), experts.view(T, K))
        self.close(y, want)
        for a, b in zip(*(torch.autograd.grad(out.square().sum(), (x, p, w1, w2)) for out in (y, want)), strict=True):
            self.close(a, b, 1e-4)
        with self.assertRaisesRegex(troupe.Unsupported, "num_bits is 8"):
            ops.padded_scatter(rows, indices, bin_ids, p, bins, padded, K, 8)

    def test_140_nanotrons_layer_over_the_fork_of_grouped_gemm(self):
        """permute, two grouped products with SwiGLU between them, unpermute; a fifth of the choices beyond num_out_tokens."""
        from troupe.megablocks.grouped_gemm import ops as gg  # `import grouped_gemm.ops as ops`, where it is installed
        T, D, F, E, K = 30, 16, 24, 4, 2
        ids = torch.stack([torch.randperm(E)[:K] for _ in range(T)]).int()
        x, p = torch.randn(T, D, requires_grad=True), torch.rand(T, K, requires_grad=True)
        w1, w2 = torch.randn(E, D, 2 * F).mul(0.1).requires_grad_(), torch.randn(E, F, D).mul(0.1).requires_grad_()
        for kept in (None, 48):
            rows, place = gg.permute(x, ids, kept)
            self.assertEqual((rows.shape[0], place.shape, place.dtype), (kept or T * K, (T * K,), torch.int32))
            slots = ids.flatten().sort(stable=True).indices
            weights = torch.zeros(T * K).index_fill(0, slots[:kept], 1).view(T, K) * p
            at = place.view(K, T).t().flatten()
            self.assertTrue(torch.equal(at[slots[:kept]], torch.arange(kept or T * K).int()))
            self.assertTrue((at[slots[kept:]] == -1).all() if kept else True)
            counts = torch.bincount(ids.flatten()[slots[:kept]], minlength=E)
            gate, up = gg.gmm(rows, w1, counts.cpu(), trans_b=False).chunk(2, -1)
            y = gg.unpermute(gg.gmm(torch.nn.functional.silu(gate) * up, w2, counts.cpu(), trans_b=False), place, p)
            want = torch.zeros(T, D)
            for e in range(E):
                gate, up = (x @ w1[e]).chunk(2, -1)
                want = want + (weights * (ids == e)).sum(1, keepdim=True) * ((torch.nn.functional.silu(gate) * up) @ w2[e])
            self.close(y, want)
            for a, b in zip(*(torch.autograd.grad(out.square().sum(), (x, p, w1, w2)) for out in (y, want)), strict=True):
                self.close(a, b, 1e-4)
        one, place = gg.permute(x, ids[:, 0])
        self.assertTrue(torch.equal(gg.unpermute(one, place), x))
        with self.assertRaisesRegex(ValueError, "input_act has 30 rows and indices 29"):
            gg.permute(x, ids[1:])
        with self.assertRaisesRegex(ValueError, "row_id_map has 30 places and probs 30 x 2"):
            gg.unpermute(one, place, p)

    def test_fms_puts_its_own_class_into_the_registry(self):
        class Own(glu.GroupedGLU):
            def forward(self, x, tokens_per_expert):
                Own.rows = x.shape[0]
                return super().forward(x, tokens_per_expert)

        dmlp_registry._REGISTRY["own"] = {"grouped": Own}
        try:
            layer = dMoE(arguments(mlp_type="own", return_bias=False))
            x = torch.randn(3, 2, 16)
            y = layer(x)
            self.assertEqual(Own.rows, 12)
            scores, p, ids = layer.router(x)
            self.close(y, by_hand(layer.experts, x, scores, p, ids))
        finally:
            del dmlp_registry._REGISTRY["own"]
        with self.assertRaisesRegex(ValueError, "Unsupported mlp type: own"):
            dMoE(arguments(mlp_type="own"))

    def test_vllms_old_mixtral_builds_its_topology_itself(self):
        args = arguments(ffn_hidden_size=128, moe_num_experts=3, hidden_size=32)
        layer = mlp.SparseMLP(args)
        T, K = 40, 2
        experts, bin_ids, indices, counts, bins = routed(T, 3, K)
        padded = ops.inclusive_cumsum(ops.round_up(counts, 128), 0)
        x = torch.randn(T, 32)
        rows = ops.padded_gather(x, indices, bin_ids, bins, padded, K)
        columns = ops.topology(padded, 128, rows.shape[0] // 128, 1)
        offsets = torch.arange(columns.numel() + 1, dtype=torch.int32)
        data = torch.empty(columns.numel(), 128, 128, device="meta")
        row = stk.ops.row_indices((rows.shape[0], 384), data, offsets, columns)
        topo = stk.Matrix((rows.shape[0], 384), data, row, columns, offsets)
        y = ops.padded_scatter(layer(rows, topo), indices, bin_ids, torch.ones(T * K), bins, padded, K)
        holder = types.SimpleNamespace(args=args, mlp=layer)
        self.close(y, by_hand(holder, x, None, torch.ones(T, K), experts.view(T, K)), 1e-4)


def over_ranks(rank, ranks, experts, file, kind):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", f"file://{file}", rank=rank, world_size=ranks)
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    equals_one_process(rank, ranks, experts, kind)
    resumes(rank, ranks, experts, kind, os.path.dirname(file))
    if kind == "dmoe" and experts >= ranks:
        dtensors_as_llm_foundry_makes_them(rank, ranks, experts)
    gathered_rows_are_the_whole(rank, ranks)
    moe.clear_load_balancing_loss()  # a record holds its Arguments, and they the group, whose threads must end before Python does
    gc.collect()
    dist.destroy_process_group()


def layers_of(experts, kind, **more):
    """(one process's layer, this rank's of the same values)"""
    make = {"dmoe": dMoE, "moe": MoE}[kind]
    given = {**dict(moe_num_experts=experts, moe_top_k=2, return_bias=False, moe_capacity_factor=0, bias=False), **more}
    made = []
    for over in ({}, {"moe_expert_model_parallelism": True, "expert_parallel_group": dist.group.WORLD}):
        torch.manual_seed(4)
        made.append(make(arguments(**given, **over)))
    return made


def near(got, want, tolerance=1e-14):
    worst = (got - want).abs().max().item() if want.numel() else 0.0
    assert got.shape == want.shape and worst <= tolerance * (want.abs().max().item() if want.numel() else 1.0), worst


def own_part(t, layer, rank, ranks, kind):
    """Rank r holds experts r mod (ranks that divide experts), and of each its part of the hidden units."""
    share = mpu.hidden_sharding_degree(layer.experts.args)
    by = ranks // share
    E, F = layer.experts.args.moe_num_experts // by, 24 // share
    full = t.view(layer.experts.args.moe_num_experts, *((16, 24) if kind == "moe" else (24, 16)))
    part, first = full[rank % by * E:(rank % by + 1) * E], rank // by * F
    return part[:, :, first:first + F] if kind == "moe" else part[:, first:first + F]


def equals_one_process(rank, ranks, experts, kind):
    torch.manual_seed(9)
    whole = torch.randn(ranks, 5, 2, 16)
    for toward_one in (False, True):  # all tokens to the last expert, and so to one rank
        alone, layer = layers_of(experts, kind, **({"moe_top_k": 1} if toward_one else {}))
        x = (whole.abs() if toward_one else whole).clone().requires_grad_()
        mine = x[rank].detach().clone().requires_grad_()
        if toward_one:
            with torch.no_grad():
                for one in (alone, layer):
                    one.router.layer.weight[-1] = 100
            assert layer.router(mine)[2].eq(experts - 1).all()
        want, got = alone(x.view(-1, 2, 16)).view(whole.shape)[rank], layer(mine)
        near(got, want)
        alone(x.view(-1, 2, 16)).square().sum().backward()
        got.square().sum().backward()
        near(mine.grad, x.grad[rank])
        for name in ("w1", "w2"):  # gradients are the mean over ranks, as MegaBlocks has them
            part, full = (getattr(one.experts.mlp, name).grad for one in (layer, alone))
            if name == "w2" and kind == "moe":
                full = own_part(full.view(experts, 24, 16).transpose(1, 2), layer, rank, ranks, kind).transpose(1, 2)
            else:
                full = own_part(full, layer, rank, ranks, kind)
            near(part.view(full.shape), full / ranks)
    # Rank 0 without tokens: the others' results are theirs alone.
    x = whole[rank].abs()[:0 if rank == 0 else 5].clone().requires_grad_()
    got = layer(x)
    near(got, want[:len(x)].detach())
    got.sum().backward()
    assert x.grad.shape == x.shape


def resumes(rank, ranks, experts, kind, folder):
    """Each rank saves what it holds and its optimizer, as scripts do; a new layer goes on with the same bits."""
    def steps(layer, optimizer, first):
        for step in range(first, first + 2):
            torch.manual_seed(50 + step)
            layer(torch.randn(ranks, 5, 2, 16)[rank]).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    def made():
        layer = layers_of(experts, kind)[1]
        return layer, torch.optim.Adam(layer.parameters(), lr=1e-2)

    layer, optimizer = made()
    steps(layer, optimizer, 0)
    torch.save({"model": layer.state_dict(), "optimizer": optimizer.state_dict()}, f"{folder}/{rank}.pt")
    steps(layer, optimizer, 2)
    again, optimizer = made()
    state = torch.load(f"{folder}/{rank}.pt", weights_only=True)
    again.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    steps(again, optimizer, 2)
    assert all(a.equal(b) for a, b in zip(again.parameters(), layer.parameters(), strict=True))


def dtensors_as_llm_foundry_makes_them(rank, ranks, experts):
    """set_ffn_device_mesh: each weight of the experts becomes a DTensor of this rank's rows, and computes the same; a
    checkpoint of PyTorch's has the whole."""
    import tempfile

    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard
    alone, layer = layers_of(experts, "dmoe", mlp_type="glu")
    torch.manual_seed(9)
    x = torch.randn(ranks, 5, 2, 16)[rank]
    want = layer(x)
    want.square().sum().backward()
    grads = {n: p.grad.clone() for n, p in layer.experts.mlp.named_parameters()}
    mesh = init_device_mesh("cpu", (ranks,))
    for name in ("w1", "v1", "w2"):
        local = getattr(layer.experts.mlp, name).detach()
        setattr(layer.experts.mlp, name, torch.nn.Parameter(DTensor.from_local(local, mesh, [Shard(0)], run_check=False)))
    got = layer(x)
    assert got.equal(want)
    got.square().sum().backward()
    for name, p in layer.experts.mlp.named_parameters():
        assert p.grad.to_local().equal(grads[name]) and p.shape == getattr(alone.experts.mlp, name).shape, name
    held = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(held)
    checkpoint.save({"model": layer.state_dict()}, checkpoint_id=held[0])
    before = {n: p.detach().clone() for n, p in alone.named_parameters()}
    with torch.no_grad():
        for p in alone.parameters():
            p.fill_(0.5)
    checkpoint.load({"model": alone.state_dict()}, checkpoint_id=held[0])
    assert all(p.equal(before[n]) for n, p in alone.named_parameters())
    dist.barrier()
    if rank == 0:
        shutil.rmtree(held[0])


def gathered_rows_are_the_whole(rank, ranks):
    """weight_parallel: products of weights whose rows are over the group, and the mean of their gradients."""
    from troupe.megablocks.layers import weight_parallel as wp
    torch.manual_seed(3)
    topo = stk.random.mask(128, 128 * ranks, 0.0, 128)
    x, w1, w2 = torch.randn(128, 8), torch.randn(128 * ranks, 8), torch.randn(128 * ranks, 8)
    full = [w.clone().requires_grad_() for w in (w1, w2)]
    mine = [w[rank * 128:(rank + 1) * 128].clone().requires_grad_() for w in (w1, w2)]
    want = stk.ops.dsd(stk.ops.sdd(x, full[0].t(), topo), full[1])
    got = wp.dsd_nn(wp.sdd_nt(x, mine[0], topo, dist.group.WORLD), mine[1], group=dist.group.WORLD)
    assert got.equal(want)
    for y in (want, got):
        y.square().sum().backward()
    for a, b in zip(mine, full):  # every rank has the same rows and so the same gradient
        near(a.grad, b.grad[rank * 128:(rank + 1) * 128])


class Ranks(unittest.TestCase):
    def test_234_experts_over_ranks_equal_one_process_also_with_more_ranks_than_experts(self):
        import tempfile
        for ranks, experts, kind in ((2, 4, "dmoe"), (4, 4, "dmoe"), (4, 2, "dmoe"), (2, 4, "moe")):
            with self.subTest((ranks, experts, kind)), tempfile.TemporaryDirectory() as folder:
                torch.multiprocessing.spawn(over_ranks, (ranks, experts, f"{folder}/store", kind), nprocs=ranks)


if __name__ == "__main__":
    unittest.main()
