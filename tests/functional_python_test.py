#!/usr/bin/env python3
"""troupe.functional: values and gradients beside plain PyTorch, the table of types, layouts, and refusals."""
import functools
import itertools
import math
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

import torch
import torch.nn.functional as F_torch
from torch._dynamo.utils import counters
from troupe_package import troupe
from troupe_program import minor

E, D, F, K = 5, 8, 6, 2
ACTIVATIONS = {"silu": F_torch.silu, "gelu": F_torch.gelu, "gelu_tanh": lambda g: F_torch.gelu(g, approximate="tanh"),
               "quick_gelu": lambda g: g * torch.sigmoid(1.702 * g), "relu": F_torch.relu,
               "relu2": lambda g: F_torch.relu(g) ** 2}


def reference(x, ids, weights, w1, w2, b1=None, b2=None, activation="silu", gated=True, clamp=math.inf, offset=0.0):
    """One expert after the other, in the tensors' own type."""
    y = torch.zeros_like(x)
    for e in range(w1.shape[0]):
        t, k = torch.where(ids == e)
        h = x[t] @ w1[e].T + (0 if b1 is None else b1[e])
        g, u = h.chunk(2, -1) if gated else (h, None)
        a = ACTIVATIONS[activation](g.clamp(max=clamp))
        if gated:
            a = a * (u.clamp(-clamp, clamp) + offset)
        out = a @ w2[e].T + (0 if b2 is None else b2[e])
        y = y.index_add(0, t, out * weights[t, k].unsqueeze(1).to(out.dtype))
    return y


class Problem:
    def __init__(self, tokens=11, gated=True, bias=False, dtype=torch.float64, seed=1, f=F, d=D, e=E):
        torch.manual_seed(seed)

        def normal(*sizes):
            return torch.randn(*sizes, dtype=torch.float64).to(dtype).requires_grad_()

        self.x = normal(tokens, d)
        self.ids = torch.rand(tokens, max(e, K)).argsort(1)[:, :K]  # with E < K some are out of range
        self.p = torch.rand(tokens, K, dtype=torch.float64).to(dtype).requires_grad_()
        self.w1, self.w2 = normal(e, 2 * f if gated else f, d), normal(e, d, f)
        self.b1, self.b2 = (normal(*self.w1.shape[:2]), normal(e, d)) if bias else (None, None)
        self.grad = torch.randn(tokens, d, dtype=torch.float64).to(dtype)

    def leaves(self):
        return [t for t in (self.x, self.p, self.w1, self.w2, self.b1, self.b2) if t is not None]

    def gradients(self, y):
        return torch.autograd.grad(y, self.leaves(), self.grad.to(y.dtype).view(y.shape))


class Values(unittest.TestCase):
    def same(self, got, want, **tolerance):
        torch.testing.assert_close(got, want, **(tolerance or {"rtol": 1e-9, "atol": 1e-10}))

    def test_moe_ffn_of_every_form_and_its_gradients(self):
        for activation, gated, bias in itertools.product(ACTIVATIONS, (True, False), (True, False)):
            with self.subTest(activation=activation, gated=gated, bias=bias):
                q = Problem(gated=gated, bias=bias)
                form = {"activation": activation, "gated": gated, "clamp": 1.5, "offset": 1.0 if gated else 0.0}
                got = troupe.moe_ffn(q.x, q.ids, q.p, q.w1, q.w2, gate_up_bias=q.b1, down_bias=q.b2, **form)
                want = reference(q.x, q.ids, q.p, q.w1, q.w2, q.b1, q.b2, **form)
                self.same(got, want)
                self.same(q.gradients(got), q.gradients(want))

    def test_245_factors_are_added_to_a_frozen_weight(self):
        """Beside the weights with s B A in them, in every form; of the frozen weights no gradient is made."""
        for gated, bias, columns, recompute in itertools.product((True, False), (True, False), (True, False), ("none", "act")):
            with self.subTest(gated=gated, bias=bias, columns=columns, recompute=recompute):
                q, r = Problem(gated=gated, bias=bias), 3
                factors = [torch.randn(*sizes, dtype=torch.float64, requires_grad=True) for sizes in (
                    (E, q.w1.shape[1], r), (E, r, D), (E, D, r), (E, r, F))]
                b1, a1, b2, a2 = factors
                w1, w2 = q.w1.detach(), q.w2.detach()
                form = {"gated": gated, "clamp": 1.5, "offset": 1.0 if gated else 0.0}
                want = reference(q.x, q.ids, q.p, w1 + 0.5 * b1 @ a1, w2 + 2.0 * b2 @ a2, q.b1, q.b2, **form)
                lora = (troupe.lora.Factors(b1, a1, 0.5), troupe.lora.Factors(b2, a2, 2.0))
                given = (w1, w2)
                if columns:
                    lora = [f._replace(lhs=f.rhs.transpose(1, 2), rhs=f.lhs.transpose(1, 2)) for f in lora]
                    given = [w.transpose(1, 2).contiguous() for w in given]
                    form |= {"up_layout": "columns", "down_layout": "columns"}
                got = troupe.moe_ffn(q.x, q.ids, q.p, *given, gate_up_bias=q.b1, down_bias=q.b2, lora=lora, recompute=recompute, **form)
                self.same(got, want)
                leaves = [t for t in (q.x, q.p, q.b1, q.b2, *factors) if t is not None]
                self.same(*(torch.autograd.grad(y, leaves, q.grad) for y in (got, want)))
        with self.subTest("an adapter of one weight, with dropout of its input"):
            mean = torch.stack([troupe.moe_ffn(q.x, q.ids, q.p, w1, w2, gated=gated, lora=(None, troupe.lora.Factors(b2, a2, 2.0, 0.5)))
                                for _ in range(3000)]).mean(0)
            want = reference(q.x, q.ids, q.p, w1, w2 + 2.0 * b2 @ a2, gated=gated)
            self.assertLess((mean - want).abs().max(), 0.1 * want.abs().max())
            self.assertGreater((mean - want).abs().max(), 0)
        for lora, kind, text in (((None, troupe.lora.Factors(b1, a1, 1.0)), ValueError, r"down is \[5, 8, 6\]; its factors must be"),
                                 ([None], TypeError, "lora must be"),
                                 ((None, troupe.lora.Factors(b2.detach().long(), a2, 1.0)), troupe.Unsupported, "lora: down's lhs")):
            with self.subTest(text), self.assertRaisesRegex(kind, text):
                troupe.moe_ffn(q.x, q.ids, q.p, w1, w2, gated=gated, lora=lora)
        for options in ({"recompute": "expert"}, {"quantize": (8, -1)}):
            with self.assertRaisesRegex(troupe.Unsupported, "lora: backward reads H and x"):
                troupe.moe_ffn(q.x, q.ids, q.p, w1, w2, gated=gated, lora=(None, None), **options)

    def test_flops_are_those_of_plain_pytorch(self):
        from torch.utils.flop_counter import FlopCounterMode

        def counted(run):
            with FlopCounterMode(display=False) as counter:
                run()
            return counter.get_total_flops()

        for gated, bias in itertools.product((True, False), (True, False)):
            q = Problem(gated=gated, bias=bias)
            form = {"gated": gated, "gate_up_bias": q.b1, "down_bias": q.b2}
            ours = functools.partial(troupe.moe_ffn, q.x, q.ids, q.p, q.w1, q.w2, **form)
            plain = functools.partial(reference, q.x, q.ids, q.p, q.w1, q.w2, q.b1, q.b2, gated=gated)
            product = 2 * q.ids.numel() * (q.w1[0].numel() + q.w2[0].numel())
            self.assertEqual(counted(ours), product)
            self.assertEqual(counted(plain), product)
            self.assertEqual(counted(lambda: q.gradients(ours())), 3 * product)
            self.assertEqual(counted(lambda: q.gradients(plain())), 3 * product)
        with self.subTest("weights alone, as of a first layer; and frozen experts, as under LoRA"):
            for needed in ((False, True), (True, False)):
                q = Problem()
                for t, on in ((q.x, needed[0]), (q.p, False), (q.w1, needed[1]), (q.w2, needed[1])):
                    t.requires_grad_(on)
                ours, plain = (counted(lambda f=f: f(q.x, q.ids, q.p, q.w1, q.w2).sum().backward())
                               for f in (troupe.moe_ffn, reference))
                self.assertEqual(ours, plain)
        with self.subTest("adapters on frozen weights: by hand"):
            q, r, rows = Problem(), 3, 11 * K
            a1, b1, a2, b2 = (torch.randn(*sizes, dtype=torch.float64, requires_grad=True) for sizes in (
                (E, r, D), (E, 2 * F, r), (E, r, F), (E, D, r)))
            lora = troupe.lora.Factors(b1, a1, 1.0), troupe.lora.Factors(b2, a2, 1.0)
            ours = functools.partial(troupe.moe_ffn, q.x, q.ids, q.p, q.w1.detach(), q.w2.detach(), lora=lora)
            base, low = 2 * rows * (2 * F * D + D * F), 2 * rows * r * (D + 2 * F + F + D)
            self.assertEqual(counted(ours), base + low)
            self.assertEqual(counted(lambda: ours().sum().backward()), 2 * base + 3 * low)
        with self.subTest("grouped_mm"):
            a, b, offs = torch.randn(7, 4), torch.randn(3, 4, 5), torch.tensor([2, 2, 7], dtype=torch.int32)
            self.assertEqual(counted(lambda: troupe.grouped_mm(a, b, offs=offs)), 2 * 7 * 4 * 5)
            self.assertEqual(counted(lambda: troupe.grouped_mm(a.t(), torch.randn(7, 5), offs=offs)), 2 * 7 * 4 * 5)
        with self.subTest("attention"):
            q, k = torch.randn(2, 5, 4, 8, requires_grad=True), torch.randn(2, 5, 4, 8, requires_grad=True)
            v = torch.randn(2, 5, 4, 6, requires_grad=True)
            self.assertEqual(counted(lambda: torch.ops.troupe.attention(q, k, v, 1.0)[0].sum().backward()),
                             2 * 2 * 4 * 5 * 5 * (8 + 6 + 3 * 8 + 2 * 6))

    def test_leading_dimensions_do_not_matter(self):
        q = Problem(tokens=12)
        flat = troupe.moe_ffn(q.x, q.ids, q.p, q.w1, q.w2)
        cube = troupe.moe_ffn(q.x.view(3, 4, D), q.ids.view(3, 4, K), q.p.view(3, 4, K), q.w1, q.w2)
        one = troupe.moe_ffn(q.x[0], q.ids[0], q.p[0], q.w1, q.w2)
        self.assertTrue(cube.equal(flat.view(3, 4, D)))
        self.assertEqual(one.shape, (D,))
        self.same(one, flat[0])

    def test_no_tokens_and_an_expert_without_rows(self):
        q = Problem(tokens=0)
        for gradient in q.gradients(troupe.moe_ffn(q.x, q.ids, q.p, q.w1, q.w2)):
            self.assertTrue(gradient.eq(0).all())
        q = Problem()
        q.ids = q.ids.remainder(2)
        gradients = q.gradients(troupe.moe_ffn(q.x, q.ids, q.p, q.w1, q.w2))
        self.assertTrue(gradients[2][2:].eq(0).all())
        self.assertFalse(gradients[2][:2].eq(0).all())

    def test_an_id_out_of_range_has_no_row_and_its_weight_no_gradient(self):
        for outside, dtype in itertools.product((-1, E, 2**31, -2**40, 2**32 + 1), (torch.int64, torch.int32)):
            if dtype == torch.int32 and abs(outside) >= 2**31:
                continue
            with self.subTest(outside=outside, dtype=dtype):
                q = Problem()
                q.ids = q.ids.to(dtype)
                q.ids[3, 1] = outside
                got = troupe.moe_ffn(q.x, q.ids, q.p, q.w1, q.w2)
                want = reference(q.x, q.ids, q.p, q.w1, q.w2)
                self.same(got, want)
                gradients = q.gradients(got)
                self.assertEqual(gradients[1][3, 1].item(), 0.0)
                self.same(gradients[2:], q.gradients(want)[2:])

    def test_scores_of_every_type(self):
        q = Problem(dtype=torch.float32)
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
            with self.subTest(dtype=dtype):
                narrow = q.p.detach().to(dtype).requires_grad_()
                wide = narrow.detach().float().requires_grad_()
                got, want = (troupe.moe_ffn(q.x, q.ids, p, q.w1, q.w2) for p in (narrow, wide))
                self.assertTrue(got.equal(want))
                (a,), (b,) = torch.autograd.grad(got, [narrow], q.grad), torch.autograd.grad(want, [wide], q.grad)
                self.assertEqual(a.dtype, dtype)
                self.assertTrue(a.equal(b.to(dtype)))

    def test_every_layout_gives_the_same_gradients(self):
        # Sizes at which a guess from sizes would be wrong too: 2F = D, F = D.
        for f, d, e in ((F, D, E), (4, 8, 3), (8, 8, 1), (7, 5, 3)):
            for up, down, form in itertools.product(("rows", "columns"), ("rows", "columns"), ("halves", "turns", "two")):
                with self.subTest(f=f, d=d, up=up, down=down, form=form):
                    q = Problem(bias=True, f=f, d=d, e=e)
                    want = troupe.moe_ffn(q.x, q.ids, q.p, q.w1, q.w2, gate_up_bias=q.b1, down_bias=q.b2)
                    self.same_in_layout(q, want, up, down, form)

    def same_in_layout(self, q, want, up, down, form):
        def turns(t):
            return torch.stack(t.chunk(2, 1), 2).flatten(1, 2)

        gate_up, bias = (turns(q.w1), turns(q.b1)) if form == "turns" else (q.w1, q.b1)
        second = None
        if form == "two":
            gate_up, second = q.w1.chunk(2, 1)
        if up == "columns":
            gate_up, second = (None if t is None else t.transpose(1, 2).contiguous() for t in (gate_up, second))
        out = q.w2.transpose(1, 2).contiguous() if down == "columns" else q.w2
        got = troupe.moe_ffn(q.x, q.ids, q.p, gate_up, out, up=second, gate_up_bias=bias, down_bias=q.b2,
                             up_layout=up, down_layout=down, interleaved=form == "turns")
        self.same(got, want)
        self.same(q.gradients(got), q.gradients(want))

    def test_grouped_ffn_is_moe_ffn_on_sorted_rows(self):
        q = Problem(dtype=torch.float32, bias=True)
        order = torch.argsort(q.ids.flatten(), stable=True)
        counts = torch.bincount(q.ids.flatten(), minlength=E)
        rows = q.x.detach()[order // K].requires_grad_()
        scores = q.p.detach().flatten()[order].requires_grad_()
        ids = q.ids.flatten()[order].unsqueeze(1)
        form = {"gate_up_bias": q.b1, "down_bias": q.b2}
        got = troupe.grouped_ffn(rows, counts, q.w1, q.w2, scores=scores, **form)
        want = troupe.moe_ffn(rows, ids, scores.unsqueeze(1), q.w1, q.w2, **form)
        self.assertTrue(got.equal(want))
        leaves = [rows, scores, q.w1, q.w2, q.b1, q.b2]
        for a, b in zip(*(torch.autograd.grad(y, leaves, torch.ones_like(y)) for y in (got, want)), strict=True):
            self.assertTrue(a.equal(b))
        tail = troupe.grouped_ffn(torch.cat([rows, rows[:3]]), counts, q.w1, q.w2)
        self.assertTrue(tail[len(rows):].eq(0).all())
        self.assertTrue(tail[:len(rows)].equal(troupe.grouped_ffn(rows, counts.tolist(), q.w1, q.w2)))

    def test_grouped_mm_means_what_pytorchs_does(self):
        torch.manual_seed(2)
        offs = torch.tensor([3, 3, 7, 12], dtype=torch.int32)
        a, b = torch.randn(12, 8), torch.randn(4, 8, 16)
        cases = {"rows": (a, b, offs), "rows, b transposed": (a, b.transpose(1, 2).contiguous().transpose(1, 2), offs),
                 "sums": (torch.randn(8, 12), torch.randn(12, 16), offs),
                 "columns": (torch.randn(4, 8, 16), torch.randn(16, 12), offs),
                 "batches": (torch.randn(4, 3, 8), b, None)}
        for name, (left, right, ends) in cases.items():
            with self.subTest(name):
                left, right = left.detach().requires_grad_(), right.detach().requires_grad_()
                got = troupe.grouped_mm(left, right, offs=ends)
                want = self.grouped(left, right, ends)
                self.same(got, want, rtol=1e-5, atol=1e-5)
                grad = torch.randn_like(got)
                self.same(torch.autograd.grad(got, [left, right], grad), torch.autograd.grad(want, [left, right], grad),
                          rtol=1e-5, atol=1e-5)
        short = troupe.grouped_mm(a, b, offs=offs - 1, bias=torch.ones(4, 16), out_dtype=torch.bfloat16)
        self.assertEqual(short.dtype, torch.bfloat16)
        self.assertTrue(short[11:].eq(0).all())

    def grouped(self, a, b, offs):
        if offs is None:
            return torch.bmm(a, b)
        spans = list(itertools.pairwise([0, *offs.tolist()]))
        if b.dim() == 3:
            return torch.cat([a[i:j] @ b[g] for g, (i, j) in enumerate(spans)])
        if a.dim() == 3:
            return torch.cat([a[g] @ b[:, i:j] for g, (i, j) in enumerate(spans)], 1)
        return torch.stack([a[:, i:j] @ b[i:j] for i, j in spans])

    def test_plan_has_each_choice_once(self):
        q = Problem()
        ids = q.ids
        for dtype in (torch.int32, torch.int64):
            p = troupe.plan(ids.to(dtype), E)
            self.assertEqual(p.counts.tolist(), torch.bincount(ids.flatten(), minlength=E).tolist())
            self.assertTrue(ids.flatten()[p.row_slot.long()].sort(stable=True).values.equal(
                ids.flatten()[p.row_slot.long()]))
            y = troupe.moe_ffn(q.x, q.ids, q.p, q.w1, q.w2, plan=p)
            self.assertTrue(y.equal(troupe.moe_ffn(q.x, q.ids, q.p, q.w1, q.w2)))

    def test_route_of_every_rule(self):
        torch.manual_seed(3)
        z = torch.randn(13, 8, dtype=torch.float64, requires_grad=True)
        bias = torch.randn(8) * 0.2
        for score, order, norm in (("softmax", "after", None), ("softmax", "before", None), ("softmax", "before", True),
                                   ("softmax", "before", 2), ("sigmoid", "before", None), ("sigmoid", "before", False),
                                   ("sqrtsoftplus", "before", True)):
            with self.subTest(score=score, order=order, norm=norm):
                b = None if score == "softmax" else bias
                r = troupe.route(z, 3, score=score, order=order, norm=norm, scale=2.5, bias=b)
                s = {"softmax": z.softmax(1), "sigmoid": z.sigmoid(), "sqrtsoftplus": F_torch.softplus(z).sqrt()}[score]
                ids = (s if b is None else s + b.double()).topk(3, 1).indices
                self.assertTrue(r.ids.long().equal(ids))
                p = z.gather(1, ids).softmax(1) if order == "after" else s.gather(1, ids)
                if norm is True or (norm is None and score != "softmax"):
                    p = p / p.sum(1, keepdim=True)
                elif norm == 2:
                    p = p / p.norm(dim=1, keepdim=True)
                self.same(r.weights, 2.5 * p)
                grad = torch.randn_like(p)
                self.same(torch.autograd.grad(r.weights, z, grad), torch.autograd.grad(2.5 * p, z, grad))
                self.assertEqual(r.counts.tolist(), torch.bincount(ids.flatten(), minlength=8).tolist())
                self.same(r.scores, (s / s.sum(1, keepdim=True)).sum(0))
                self.same(r.lse2, z.logsumexp(1).square().sum())

    def test_route_takes_padding_and_given_choices(self):
        z = torch.randn(6, E)
        valid = torch.tensor([True, True, False, True, True, False])
        r = troupe.route(z, 2, valid=valid)
        self.assertTrue(r.ids[~valid].eq(-1).all() and r.weights[~valid].eq(0).all())
        self.assertEqual((r.tokens.item(), r.counts.sum().item()), (4, 8))
        given = torch.tensor([[0, 1]] * 6)
        self.assertTrue(troupe.route(z, 2, given=given).ids.long().equal(given))

    def test_two_calls_have_the_same_bits(self):
        q = Problem(tokens=300, dtype=torch.float32)
        first, second = ([y, *q.gradients(y)] for y in (troupe.moe_ffn(q.x, q.ids, q.p, q.w1, q.w2) for _ in range(2)))
        torch.use_deterministic_algorithms(True)
        self.addCleanup(torch.use_deterministic_algorithms, False)
        y = troupe.moe_ffn(q.x, q.ids, q.p, q.w1, q.w2)
        for a, b, c in zip(first, second, [y, *q.gradients(y)], strict=True):
            self.assertTrue(a.equal(b) and a.equal(c))


class Types(unittest.TestCase):
    def test_the_table_cell_by_cell(self):
        kinds = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
        for x_type, w_type, autocast in itertools.product(kinds, kinds, (None, torch.bfloat16, torch.float16)):
            with self.subTest(x=x_type, w=w_type, autocast=autocast):
                self.cell(x_type, w_type, autocast)

    def cell(self, x_type, w_type, autocast):
        q = Problem(dtype=torch.float32)
        x, w1, w2 = (t.detach().to(k).requires_grad_() for t, k in ((q.x, x_type), (q.w1, w_type), (q.w2, w_type)))
        kind = autocast or x_type
        with torch.autocast("cpu", autocast or torch.bfloat16, enabled=autocast is not None):
            if autocast is None and x_type != w_type:
                with self.assertRaisesRegex(troupe.Unsupported, f"x is {x_type} and gate_up is {w_type}.*x.to"):
                    troupe.moe_ffn(x, q.ids, q.p, w1, w2)
                return
            y = troupe.moe_ffn(x, q.ids, q.p, w1, w2)
        self.assertEqual(y.dtype, x_type if autocast is None or x_type in (torch.bfloat16, torch.float16) else autocast)
        want = troupe.moe_ffn(x.to(kind), q.ids, q.p, w1.to(kind), w2.to(kind)).to(y.dtype)  # p as it is: f32
        self.assertTrue(y.equal(want))
        leaves = [x, q.p, w1, w2]
        got = torch.autograd.grad(y, leaves, torch.ones_like(y))
        for g, leaf, other in zip(got, leaves, torch.autograd.grad(want, leaves, torch.ones_like(y)), strict=True):
            self.assertEqual(g.dtype, leaf.dtype)
            self.assertTrue(g.equal(other))

    def test_what_is_not_a_number_is_refused(self):
        q = Problem(dtype=torch.float32)
        for dtype in (torch.float8_e4m3fn, torch.int8, torch.uint8):
            with self.assertRaisesRegex(troupe.Unsupported, f"gate_up is a .* of {dtype}.*experts_implementation"):
                troupe.moe_ffn(q.x, q.ids, q.p, q.w1.detach().to(dtype), q.w2)

    def test_a_tensor_subclass_is_refused_by_name(self):
        from torch.testing._internal.two_tensor import TwoTensor
        q = Problem(dtype=torch.float32)
        pair = TwoTensor(q.w1.detach(), q.w1.detach())
        with self.assertRaisesRegex(troupe.Unsupported, "gate_up is a TwoTensor"):
            troupe.moe_ffn(q.x, q.ids, q.p, pair, q.w2)


class Refusals(unittest.TestCase):
    def refused(self, kind, text, **changes):
        q = Problem(dtype=torch.float32)
        arguments = {"x": q.x, "ids": q.ids, "weights": q.p, "gate_up": q.w1, "down": q.w2, **changes}
        with self.assertRaisesRegex(kind, text):
            troupe.moe_ffn(**arguments)

    def test_messages_say_what_was_wrong(self):
        q = Problem(dtype=torch.float32)
        self.refused(ValueError, r"ids \[11, 2\] and weights \[11, 3\]", weights=torch.rand(11, 3))
        self.refused(ValueError, r"leading dimensions; x is \[5, 8\]", x=torch.rand(5, 8))
        self.refused(ValueError, r"gate_up is \[5, 8, 12\].*as rows, gate_up must be", gate_up=q.w1.transpose(1, 2))
        self.refused(ValueError, "up_layout is 'cols'", up_layout="cols")
        self.refused(ValueError, "here there is no gate", interleaved=True, gated=False)
        self.refused(ValueError, "a tensor `up` beside it", interleaved=True, up=q.w1)
        self.refused(ValueError, "recompute is 'all'", recompute="all")
        self.refused(ValueError, "mode is 'slow'", mode="slow")
        self.refused(troupe.Unsupported, "no activation 'mish'; there are silu, gelu", activation="mish")
        self.refused(RuntimeError, "bits", quantize=(5, -1))

    def test_second_derivatives_are_refused_by_name(self):
        q = Problem()
        (first,) = torch.autograd.grad(troupe.moe_ffn(q.x, q.ids, q.p, q.w1, q.w2).sum(), [q.x], create_graph=True)
        with self.assertRaisesRegex(RuntimeError, "troupe::moe_ffn has no second derivative"):
            first.sum().backward()


def routed(q, x):
    """route, then moe_ffn, under a router of one's own."""
    r = troupe.route(x @ q.router, K, order="before", norm=True)
    return troupe.moe_ffn(x, r.ids, r.weights, q.w1, q.w2) + r.lse2 * 1e-3


def in_turns(q, x):
    """gpt-oss's form: weights as columns, gate and up in turns, biases."""
    r = troupe.route(x @ q.router, K, order="after")
    return troupe.moe_ffn(x, r.ids, r.weights, q.w1.transpose(1, 2), q.w2.transpose(1, 2), gate_up_bias=q.b1, down_bias=q.b2,
                          activation="quick_gelu", clamp=7.0, offset=1.0, up_layout="columns", down_layout="columns",
                          interleaved=True)


def of_sorted_rows(q, x, counts):
    return troupe.grouped_ffn(x, counts, q.w1, q.w2)


def of_grouped_mm(q, x, counts):
    return troupe.grouped_mm(x, q.w2, offs=counts.cumsum(0).int())


class Traced(unittest.TestCase):
    """PyM1, PyM2, PyM5: the functions by themselves in a graph, without a break and for any number of tokens."""

    LENGTHS = (11, 2, 3, 4, 5, 6, 7, 8, 12, 13, 40, 100, 300, 1, 0)
    CALLS = (routed, in_turns, of_sorted_rows, of_grouped_mm)

    def setUp(self):
        torch._dynamo.reset()
        self.q = Problem(dtype=torch.float32, bias=True)
        self.q.router = torch.randn(D, E, requires_grad=True)

    def given(self, call, tokens):
        torch.manual_seed(tokens)
        x = torch.randn(tokens, D, requires_grad=True)
        return (x,) if call in (routed, in_turns) else (x, torch.bincount(torch.arange(tokens) % E, minlength=E))

    def results(self, run, given):
        y = run(self.q, *given)
        leaves = [given[0], self.q.router, self.q.w1, self.q.w2, self.q.b1, self.q.b2]
        return [y, *torch.autograd.grad(y, leaves, torch.ones_like(y), allow_unused=True)]

    def test_pym2_one_graph_serves_fifteen_lengths_with_the_bits_of_eager(self):
        for call in self.CALLS:
            with self.subTest(call.__name__):
                torch._dynamo.reset()
                counters.clear()
                run = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
                graphs = []
                for tokens in self.LENGTHS:
                    given = self.given(call, tokens)
                    for i, (a, b) in enumerate(zip(self.results(run, given), self.results(call, given), strict=True)):
                        self.assertTrue(a is b is None or a.equal(b), (tokens, i))
                    graphs.append(counters["stats"]["unique_graphs"])
                self.assertEqual(set(graphs[:-2]), {1})  # 2 to 300
                self.assertLessEqual(graphs[-1], 3)      # 1 and 0, which PyTorch takes as numbers

    def test_pym5_an_export_serves_any_number_of_tokens(self):
        class Call(torch.nn.Module):
            def forward(module, *given):
                return call(self.q, *given)

        for call in self.CALLS:
            with self.subTest(call.__name__), torch.no_grad():
                for t in (*self.q.leaves(), self.q.router):
                    t.requires_grad_(False)
                given = self.given(call, 8)
                sizes = tuple({0: torch.export.Dim("tokens", min=2, max=4096)} if i == 0 else None for i in range(len(given)))
                exported = torch.export.export(Call(), given, dynamic_shapes=(sizes,)).module()
                for tokens in (2, 9, 300):
                    given = self.given(call, tokens)
                    self.assertTrue(exported(*given).equal(call(self.q, *given)), tokens)


class TreeImport(unittest.TestCase):
    def imported(self, package, **variables):
        env = {k: v for k, v in os.environ.items() if k not in ("TROUPE_LIBRARY", "TROUPE_BUILD")}
        return subprocess.run([sys.executable, "-c", "import troupe; print(troupe.library)"], capture_output=True, text=True,
                              env=dict(env, PYTHONPATH=str(package), **variables), timeout=300, check=False)

    def test_a_checkout_finds_its_library_or_says_where_it_looked(self):
        python, built = pathlib.Path(troupe.__file__).resolve().parents[1], pathlib.Path(troupe.library).resolve()
        with tempfile.TemporaryDirectory() as folder:
            tree = pathlib.Path(folder).resolve()
            (tree / "CMakeLists.txt").touch()
            shutil.copytree(python, tree / "python")
            said = self.imported(tree / "python").stderr
            for place in ("TROUPE_LIBRARY", "TROUPE_BUILD", "build/*/libtroupe.so"):
                self.assertIn(place, said)
            for name, age in (("old", 1), ("new", 2)):
                (tree / "build" / name).mkdir(parents=True)
                shutil.copy(built, tree / "build" / name / "libtroupe.so")
                os.utime(tree / "build" / name / "libtroupe.so", (age, age))
            for name, variables in (("new", {}), ("old", {"TROUPE_BUILD": str(tree / "build/old")})):
                out = self.imported(tree / "python", **variables)
                self.assertEqual(out.stdout.strip(), str(tree / "build" / name / "libtroupe.so"), out.stderr)
            out = self.imported(tree / "python", TROUPE_LIBRARY=str(built), TROUPE_BUILD=str(tree / "build/old"))
            self.assertEqual(out.stdout.strip(), str(built), out.stderr)

    def test_a_checkout_passes_over_builds_for_another_pytorch(self):
        """Each was made with one, which CMake writes beside it."""
        python, built = pathlib.Path(troupe.__file__).resolve().parents[1], pathlib.Path(troupe.library).resolve()
        ours = minor(torch.__version__)
        record = "VERSION, TORCH, SUPPORTED = '9.8.7', '{}.0', ['2.11', '2.99']\n"
        with tempfile.TemporaryDirectory() as folder:
            tree = pathlib.Path(folder).resolve()
            (tree / "CMakeLists.txt").touch()
            shutil.copytree(python, tree / "python")
            other = tree / "build/other"
            other.mkdir(parents=True)
            shutil.copy(built, other / "libtroupe.so")
            (other / "troupe_build.py").write_text(record.format("2.99"))
            said = self.imported(tree / "python").stderr
            self.assertIn(f"no library of troupe for PyTorch {torch.__version__}: build/other for 2.99.0. Run: ./dev build", said)
            for variables in ({"TROUPE_BUILD": str(other)}, {"TROUPE_LIBRARY": str(other / "libtroupe.so")}):
                said = self.imported(tree / "python", **variables).stderr
                self.assertIn(f"{other}/libtroupe.so: PyTorch here is {torch.__version__}; this build of troupe 9.8.7 is for 2.99, because",
                              said)
            (tree / "build/own").mkdir()
            shutil.copy(built, tree / "build/own/libtroupe.so")
            (tree / "build/own/troupe_build.py").write_text(record.format(ours))
            os.utime(tree / "build/own/libtroupe.so", (1, 1))
            out = self.imported(tree / "python")
            self.assertEqual(out.stdout.strip(), str(tree / "build/own/libtroupe.so"), out.stderr)
            shutil.rmtree(tree / "build/other")
            version = subprocess.run([sys.executable, "-c", "import troupe; print(troupe.__version__)"], capture_output=True, text=True,
                                     env=dict(os.environ, PYTHONPATH=str(tree / "python"),
                                              TROUPE_LIBRARY=str(tree / "build/own/libtroupe.so")), timeout=300, check=False)
            self.assertEqual(version.stdout.strip(), "9.8.7", version.stderr)


class Import(unittest.TestCase):
    def test_import_costs_little_above_torch_and_brings_nothing_else(self):
        script = ("import time; a = time.perf_counter(); import torch; b = time.perf_counter(); had = set(__import__('sys').modules); "
                  "import troupe; c = time.perf_counter(); new = set(__import__('sys').modules) - had; "
                  "print(c - b, 'numpy' in new, 'transformers' in new)")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        best = math.inf
        for _ in range(8):  # on a busy machine the best of several
            said = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
            seconds, *brought = said.stdout.split()
            self.assertEqual(brought, ["False", "False"])
            best = min(best, float(seconds))
            if best < 0.06:
                break
            time.sleep(0.5)
        self.assertLess(best, 0.06)


if __name__ == "__main__":
    unittest.main()
