#!/usr/bin/env python3
"""troupe.MoE and its parts: the bits of the layer in C++ (tests/moe_block.cpp), state dicts of other frameworks, losses and
counters, and what PyTorch does with modules."""
import copy
import io
import json
import os
import pathlib
import subprocess
import tempfile
import unittest
import warnings

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from troupe_package import troupe

import troupe.layouts as layouts

PROGRAM = pathlib.Path(os.environ["TROUPE_BUILD"], "moe_block")
D, B, S = 24, 3, 17
# Our parameter -> the C++ layer's.
NAMES = {"gate.weight": "router.weight", "gate.bias": "router.bias", "gate.e_score_correction_bias": "router.balance_bias",
         "gate.beta": "router.beta", "experts.gate_up_proj": "experts.w1", "experts.up_proj": "experts.w1",
         "experts.down_proj": "experts.w2", "experts.gate_up_proj_bias": "experts.b1", "experts.up_proj_bias": "experts.b1",
         "experts.down_proj_bias": "experts.b2", "shared_experts.down_proj.weight": "shared.w2",
         "shared_expert_gate.weight": "shared.gate", "output_bias": "bias",
         **{f"experts.{ours}_lora_{side}": f"experts.{theirs}_lora_{side}"
            for ours, theirs in (("gate_up_proj", "w1"), ("up_proj", "w1"), ("down_proj", "w2")) for side in "ab"}}
# `moe:` blocks of recipes.
BLOCKS = {
    "after": {"experts": 8, "top_k": 2, "hidden": 20, "router": {"kind": "topk_softmax", "order": "after"}},
    "before, norm, groups": {"experts": 8, "top_k": 2, "hidden": 20, "router": {
        "kind": "topk_softmax", "order": "before", "p_norm": 1, "scale": 2.5, "bias": True,
        "limit": {"groups": 4, "keep": 2, "top": 1}, "balance": {"aux_loss": 0, "seq_loss": 0.1, "z_loss": 0.01}}},
    "sigmoid": {"experts": 8, "top_k": 3, "hidden": 20, "shared": {"experts": 1}, "router": {
        "kind": "sigmoid_bias", "scale": 2.5, "limit": {"groups": 4, "keep": 2, "top": 2},
        "balance": {"global_loss": 0.1}}},
    "sqrtsoftplus": {"experts": 5, "top_k": 1, "hidden": 20, "shared": {"experts": 2, "form": "gate"}, "bias": True,
                     "output_bias": True, "router": {"kind": "sigmoid_bias", "score": "sqrtsoftplus"}},
    "quantile": {"experts": 6, "top_k": 2, "hidden": 20, "activation": "gelu", "router": {
        "kind": "quantile", "z_loss": 0.01}},
    "sinkhorn": {"experts": 6, "top_k": 2, "hidden": 20, "gated": False, "activation": "relu2", "router": {
        "kind": "sinkhorn", "z_loss": 0.01}},
    "expert choice": {"experts": 6, "top_k": 2, "hidden": 20, "router": {"kind": "expert_choice", "rho": 1.5}},
    "capacity": {"experts": 4, "top_k": 2, "hidden": 12, "capacity": {"factor": 1.0, "renormalise": True},  # an old name
                 "recompute": "layer",
                 "shared": {"experts": 1, "form": "weighted"}, "activation": "quick_gelu", "clamp": 0.5, "offset": 1.0,
                 "router": {"kind": "topk_softmax", "balance": {"aux_loss": 0, "batched_loss": 0.1}}},
    "adapters": {"experts": 8, "top_k": 2, "hidden": 20, "bias": True, "clamp": 1.5, "lora": {"rank": 3, "alpha": 6, "rslora": True},
                 "router": {"kind": "topk_softmax", "order": "after"}},
    "adapters, no gate": {"experts": 6, "top_k": 2, "hidden": 20, "gated": False, "activation": "gelu_tanh", "recompute": "act",
                          "lora": {"rank": 2, "alpha": 3}, "router": {"kind": "sinkhorn"}},
}


def layer(name, dtype=torch.float32, **more):
    torch.manual_seed(3)
    return troupe.MoE(width=D, **copy.deepcopy(BLOCKS[name] | more), dtype=dtype)


def in_cpp(block, tensors):
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(pathlib.Path(folder, name)) for name in ("config.yaml", "in.pt", "out.pt")]
        pathlib.Path(paths[0]).write_text(json.dumps(block))
        torch.save(tensors, paths[1])
        subprocess.run([PROGRAM, *paths], check=True)
        return torch.load(paths[2], weights_only=False)  # C++ tags the dictionary's type


def values(module):
    return {n: p for n, p in [*module.named_parameters(), *module.named_buffers()] if n in NAMES}


class SameBits(unittest.TestCase):
    """PyL4: outputs, losses and all gradients are those of the layer in C++."""

    def compare(self, name, dtype):
        moe = layer(name, dtype)
        with torch.no_grad():
            for n, t in values(moe).items():
                t.normal_(std=0.1 if n.endswith(("bias", "beta")) else 0.3)
        torch.manual_seed(4)
        x = torch.randn(B, S, D).to(dtype).requires_grad_()
        grad = torch.randn(B, S, D).to(dtype)
        sent = {NAMES[n]: t.detach() for n, t in values(moe).items()}
        shared = moe.shared_experts
        if shared is not None:
            sent["shared.w1"] = torch.cat([shared.gate_proj.weight, shared.up_proj.weight]).detach()
        want = in_cpp(BLOCKS[name], {"x": x.detach(), "grad": grad, **sent})
        y, aux = moe(x)
        self.backward(y, grad, aux)
        self.equal(y, want["y"], "y")
        self.equal(x.grad, want["x.grad"], "x.grad")
        said = {n.removeprefix("loss."): t for n, t in want.items() if n.startswith("loss.")}
        ours = {k: t for k, t in ((moe.options.balance, aux.balance), ("z", aux.z)) if t is not None}
        self.assertEqual(set(said), set(ours))
        for n, t in said.items():
            self.equal(ours[n].detach(), t, n)
        for n, p in moe.named_parameters():
            if n in NAMES and p.requires_grad:
                self.equal(p.grad, want[NAMES[n] + ".grad"], n)
            elif n in NAMES:  # frozen there as here
                self.assertIsNone(p.grad)
                self.assertNotIn(NAMES[n] + ".grad", want)
        if shared is not None:
            self.equal(torch.cat([shared.gate_proj.weight.grad, shared.up_proj.weight.grad]), want["shared.w1.grad"], "shared")

    def backward(self, y, grad, aux):
        losses = [t for t in (aux.balance, aux.z) if t is not None]
        torch.autograd.backward([y, *losses], [grad, *(torch.ones_like(t) for t in losses)])

    def equal(self, got, want, what):
        self.assertEqual(got.dtype, want.dtype, what)
        self.assertTrue(got.equal(want.view(got.shape)), f"{what}: {(got.double() - want.view(got.shape).double()).abs().max()}")

    def test_pyl4_every_router_in_f32_and_bf16(self):
        for name in BLOCKS:
            for dtype in (torch.float32, torch.bfloat16):
                with self.subTest(name, dtype=dtype):
                    self.compare(name, dtype)

    def test_pyl4_initial_values(self):
        for name in ("sigmoid", "sinkhorn"):
            moe = layer(name)
            moe.reset_parameters(seed=7)
            x = torch.zeros(1, 2, D)
            want = in_cpp(BLOCKS[name], {"x": x, "grad": x, "seed": torch.tensor(7)})
            for n, p in values(moe).items():
                self.equal(p.detach(), want[NAMES[n]], n)
            if moe.shared_experts is not None:
                both = torch.cat([moe.shared_experts.gate_proj.weight, moe.shared_experts.up_proj.weight])
                self.equal(both.detach(), want["shared.w1"], "shared")
        self.assertFalse(layer("after").gate.weight.equal(troupe.MoE(D, 8, 2, 20).gate.weight))


class Parts(unittest.TestCase):
    def test_router_and_experts_alone_make_the_layer(self):
        moe = layer("after")
        x = torch.randn(B, S, D)
        r = moe.gate(x)
        self.assertEqual(r.ids.shape, (B * S, 2))
        y = moe.experts(x.view(-1, D), r.ids, r.weights)
        self.assertTrue(y.view(B, S, D).equal(moe(x)[0]))

    def test_a_router_of_ones_own(self):
        class Mine(nn.Module):
            def forward(self, x):
                return troupe.route(x[:, :8], 2, order="after")

        moe = troupe.MoE(D, 8, 2, 20, router=Mine())
        y, aux = moe(torch.randn(5, D))
        y.sum().backward()
        self.assertIsNotNone(aux.balance)

        class Bad(nn.Module):
            def forward(self, x):
                return x

        with self.assertRaisesRegex(TypeError, "router Bad returned a Tensor; it must return a troupe.Routing"):
            troupe.MoE(D, 8, 2, 20, router=Bad())(torch.randn(5, D))

    def test_padding_changes_nothing_and_gets_nothing(self):
        moe = layer("sigmoid")
        x, valid = torch.randn(12, D), torch.rand(12) > 0.4
        whole, aux = moe(x, valid=valid)
        part, of_part = moe(x[valid])
        self.assertTrue(aux.counts.equal(of_part.counts))
        shared = moe.shared_experts(x)
        self.assertTrue(whole[valid].equal(part))
        self.assertTrue(whole[~valid].equal(shared[~valid]))


class Adapters(unittest.TestCase):
    def made(self):
        moe = layer("adapters", losses="none")
        with torch.no_grad():
            for n, p in moe.named_parameters():
                if n.endswith("_lora_b"):
                    p.normal_(std=0.3)
        return moe

    def test_245_adapters_begin_at_the_base_and_learn_alone(self):
        base = layer("adapters", losses="none", lora=None)
        moe = layer("adapters", losses="none")
        self.assertTrue(moe.experts.gate_up_proj_lora_a.abs().max() <= D ** -0.5)
        self.assertGreater(moe.experts.gate_up_proj_lora_a.abs().max(), 0.9 * D ** -0.5)
        before = moe.experts.down_proj_lora_a.clone()
        moe.load_state_dict(base.state_dict())  # which has no adapters: ours stay
        self.assertTrue(moe.experts.down_proj_lora_a.equal(before))
        x = torch.randn(B, S, D)
        torch.testing.assert_close(moe(x), base(x), rtol=1e-5, atol=1e-6)
        trained = {n for n, p in layer("adapters").experts.named_parameters() if p.requires_grad}
        self.assertEqual(trained, {"gate_up_proj_lora_a", "gate_up_proj_lora_b", "down_proj_lora_a", "down_proj_lora_b",
                                   "gate_up_proj_bias", "down_proj_bias"})
        again = layer("adapters")
        again.reset_parameters(seed=5)
        for seed, same in ((5, True), (6, False)):
            moe.reset_parameters(seed=seed)
            self.assertEqual(moe.experts.down_proj_lora_a.equal(again.experts.down_proj_lora_a), same)

    def test_245_merged_they_give_the_same_and_are_saved_in_any_layout(self):
        moe, x = self.made(), torch.randn(B, S, D)
        other = layer("adapters", losses="none")
        other.load_state_dict(moe.state_dict())
        want = moe(x)
        self.assertTrue(other(x).equal(want))
        with self.assertRaisesRegex(troupe.Unsupported, "mixtral_each has no adapters: moe.merge_lora\\(\\) first"):
            troupe.state_dict(moe, "mixtral_each")
        self.assertIs(moe.merge_lora(), moe)
        torch.testing.assert_close(moe(x), want, rtol=1e-4, atol=1e-5)
        self.assertFalse([n for n in moe.state_dict() if "lora" in n])
        base = layer("adapters", losses="none", lora=None)
        base.load_state_dict(troupe.state_dict(moe, "mixtral_each"))
        torch.testing.assert_close(base(x), moe(x))
        with self.assertRaisesRegex(ValueError, "have no adapters"):
            moe.merge_lora()

    def test_dropout_is_of_training_alone(self):
        block = {**BLOCKS["adapters"], "lora": {"rank": 3, "dropout": 0.5}}
        moe, plain = (troupe.MoE(D, **copy.deepcopy(block | more), losses="none") for more in ({}, {"lora": {"rank": 3}}))
        plain.load_state_dict(moe.state_dict())
        x = torch.randn(B, S, D)
        self.assertTrue(moe(x).equal(plain(x)))  # B is zero
        with torch.no_grad():
            moe.experts.down_proj_lora_b.normal_(), plain.experts.down_proj_lora_b.copy_(moe.experts.down_proj_lora_b)
        self.assertFalse(moe(x).equal(moe(x)))
        self.assertTrue(moe.eval()(x).equal(plain(x)))

    def test_what_adapters_do_not_take_is_told(self):
        for options, kind, text in (({"lora": {"rnk": 3}}, TypeError, "lora has no 'rnk'; did you mean 'rank'"),
                                    ({"lora": 3}, TypeError, "lora is a int; it must be a dict"),
                                    ({"lora": {"rank": 3, "dropout": 1.0}}, ValueError, "dropout 1.0"),
                                    ({"lora": {"rank": 3}, "recompute": "expert"}, troupe.Unsupported, "recompute must be none, act or layer"),
                                    ({"lora": {"rank": 3}, "quantize": (8, 8)}, troupe.Unsupported, "quantize left out")):
            with self.subTest(text), self.assertRaisesRegex(kind, text):
                troupe.MoE(D, 8, hidden=4, **options)
        self.assertIsNone(troupe.MoE(D, 8, hidden=4, lora={"rank": 0}).experts.lora)


class Options(unittest.TestCase):
    def test_pyt1_what_is_unknown_is_told_with_the_nearest(self):
        for options, text in (({"tok_k": 2}, "MoE has no 'tok_k'; did you mean 'top_k'"),
                              ({"router": {"kind": "topk_softmax", "ordre": "after"}}, "router has no 'ordre'; did you mean 'order'"),
                              ({"capacity": {"factr": 1}}, "capacity has no 'factr'; did you mean 'factor'")):
            with self.assertRaisesRegex(TypeError, text):
                troupe.MoE(D, 8, hidden=4, **options)

    def test_what_a_layer_alone_cannot_do_is_refused(self):
        for options, kind, text in (({"latent": 4}, troupe.Unsupported, "latent=4"), ({"impl": "loop"}, troupe.Unsupported, "impl"),
                                    ({"router": "hash"}, ValueError, "router is 'hash'"), ({"balance": "aux", "router": "sinkhorn"},
                                    ValueError, "balances by itself"), ({"top_k": 9}, ValueError, "top_k is 9 and experts is 8"),
                                    ({"group": object()}, TypeError, "group is a object; it must be a torch.distributed ProcessGroup"),
                                    ({"hidden": None}, ValueError, "hidden is missing"),
                                    ({"router": {"kind": "topk_softmax", "balance": {"seq_loss": 0.1}}}, troupe.Unsupported,
                                     "aux_loss 0.01 and seq_loss 0.1: one at a time"),
                                    ({"top_k": 1, "order": "after"}, ValueError, "order 'after' with top_k 1")):
            with self.subTest(text), self.assertRaisesRegex(kind, text):
                troupe.MoE(D, 8, **{"hidden": 4, **options})


class Losses(unittest.TestCase):
    def gradients(self, moe, x, run):
        moe.zero_grad()
        run(moe, x).backward()
        return [p.grad.clone() for p in moe.parameters()]

    def test_pyl1_attached_losses_have_the_gradients_of_returned_ones(self):
        torch.manual_seed(1)
        x = torch.randn(B, S, D)
        returned = layer("after", z_loss=0.01)
        attached = layer("after", z_loss=0.01, losses="attach")
        attached.load_state_dict(returned.state_dict())
        attached.loss_scale = 2.0
        want = self.gradients(returned, x, lambda m, x: (lambda y, aux: y.square().sum() + 2 * aux.loss)(*m(x)))
        got = self.gradients(attached, x, lambda m, x: m(x).square().sum())
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)
        self.assertIn("losses=attach", repr(attached))
        with self.subTest("in nn.Sequential, checkpointed either way"):
            for reentrant in (True, False):
                inside = nn.Sequential(attached)
                leaf = x.clone().requires_grad_()
                again = self.gradients(attached, leaf, lambda m, x: checkpoint(inside, x, use_reentrant=reentrant).square().sum())
                for a, b in zip(again, got, strict=True):
                    self.assertTrue(a.equal(b))

    def test_pyl1_attached_losses_follow_a_loss_scale_and_microbatches(self):
        torch.manual_seed(1)
        parts, microbatches, scale = torch.randn(4, B, S, D), 4, 65536.0
        returned, attached = layer("after", z_loss=0.01), layer("after", z_loss=0.01, losses="attach")
        attached.load_state_dict(returned.state_dict())
        want = self.gradients(returned, parts, lambda m, parts: sum(
            (y.square().sum() + aux.loss) / microbatches for y, aux in map(m, parts)) * scale)
        model, held = nn.Sequential(attached), torch.tensor(scale / microbatches)
        for said in (scale / microbatches, held, lambda: held.item()):
            troupe.set_loss_scale(model, said)
            got = self.gradients(attached, parts, lambda m, parts: sum(
                model(x).square().sum() / microbatches for x in parts) * scale)
            for a, b in zip(got, want, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7 * scale)
        troupe.set_loss_scale(model, 1.0)  # the balance loss alone, as where the task's gradient is 0
        alone = self.gradients(attached, parts[0], lambda m, x: (m(x).sum() * 0))
        troupe.set_loss_scale(model, lambda: scale)
        for a, b in zip(self.gradients(attached, parts[0], lambda m, x: (m(x).sum() * 0)), alone, strict=True):
            torch.testing.assert_close(a, b * scale)
        with self.assertRaisesRegex(ValueError, "Linear has no troupe.MoE"):
            troupe.set_loss_scale(nn.Linear(2, 2), 2.0)

    def test_attached_losses_follow_pytorchs_scaler_through_steps_and_accumulation(self):
        """Weights after six steps of two microbatches, in which the scale grows and a step of an infinite gradient is left out."""
        torch.manual_seed(1)
        parts = torch.randn(6, 2, B, S, D)
        returned, attached = layer("after", z_loss=0.01), layer("after", z_loss=0.01, losses="attach")
        attached.load_state_dict(returned.state_dict())
        scales = []
        for moe in (returned, attached):
            scaler = torch.amp.GradScaler("cpu", init_scale=65536.0, growth_interval=2)
            sgd = torch.optim.SGD(moe.parameters(), lr=0.1)
            if moe is attached:
                with self.assertRaisesRegex(troupe.Unsupported, "GradScaler, whose scale a layer cannot see"):
                    moe(parts[0, 0])
                troupe.set_loss_scale(moe, lambda scaler=scaler: scaler.get_scale() / 2)
            for step, pair in enumerate(parts):
                for x in pair:
                    y, loss = moe(x) if moe is returned else (moe(x), 0.0)
                    scaler.scale((y.square().mean() + (loss and loss.loss)) / 2 * (float("inf") if step == 3 else 1)).backward()
                scaler.step(sgd)
                scaler.update()
                sgd.zero_grad()
                scales.append(scaler.get_scale())
            del scaler
        troupe.set_loss_scale(attached, 1.0)  # and so no scaler stays in this process
        self.assertEqual(scales[:6], scales[6:])
        self.assertEqual(scales[:4], [65536.0, 131072.0, 131072.0, 65536.0])
        for a, b in zip(attached.parameters(), returned.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)

    def test_14_a_loss_that_nobody_uses_is_told_once(self):
        moe = layer("after")
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            for _ in range(30):
                moe(torch.randn(4, D))[0].sum().backward()
        self.assertEqual(len([w for w in seen if "aux.loss" in str(w.message)]), 1)
        moe = layer("after")
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            for _ in range(30):
                y, aux = moe(torch.randn(4, D))
                (y.sum() + aux.loss).backward()
        self.assertEqual(seen, [])


class State(unittest.TestCase):
    def test_pyl5_counts_are_of_training_passes_once(self):
        for reentrant in (True, False):
            moe = layer("sigmoid", losses="attach")
            x = torch.randn(B, S, D, requires_grad=True)
            checkpoint(moe, x, use_reentrant=reentrant).sum().backward()
            self.assertEqual(moe.gate.step_counts.sum().item(), B * S * 3)
            moe.eval()
            moe(x)
            self.assertEqual(moe.gate.step_counts.sum().item(), B * S * 3)

    def test_pyl6_the_end_of_a_step_moves_biases_and_forgetting_it_is_told_once(self):
        moe = layer("sigmoid")
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            for _ in range(120):
                moe(torch.randn(4, D), sequences=1)
        self.assertEqual(len([w for w in seen if "end_of_step" in str(w.message)]), 1)
        counts = moe.gate.step_counts.clone()
        troupe.end_of_step(moe)
        want = 1e-3 * torch.sign(counts.double().mean() - counts.double()).float()
        self.assertTrue(moe.gate.e_score_correction_bias.equal(want))
        self.assertEqual(moe.gate.step_counts.sum().item(), 0)
        moe = layer("quantile")
        moe(torch.randn(64, D))
        troupe.end_of_step(moe)
        self.assertGreater(moe.gate.beta.abs().sum().item(), 0)

    def test_biases_and_counters_keep_their_types(self):
        moe = layer("sigmoid")
        moe.gate.e_score_correction_bias.fill_(0.1001)
        before = moe.gate.e_score_correction_bias.clone()
        moe.to(torch.bfloat16)
        self.assertEqual(moe.gate.weight.dtype, torch.bfloat16)
        self.assertTrue(moe.gate.e_score_correction_bias.equal(before))
        y, aux = moe(torch.randn(5, D, dtype=torch.bfloat16))
        self.assertEqual((y.dtype, aux.loss.dtype), (torch.bfloat16, torch.float32))

    def test_pym13_copies_pickles_and_meta(self):
        moe = layer("sigmoid")
        x = torch.randn(5, D)
        want = moe(x)[0]
        other = copy.deepcopy(moe)
        other.gate.weight.data.zero_()
        self.assertTrue(moe(x)[0].equal(want))
        self.assertFalse(other(x)[0].equal(want))
        file = io.BytesIO()
        torch.save(moe, file)
        file.seek(0)
        self.assertTrue(torch.load(file, weights_only=False)(x)[0].equal(want))
        empty = layer("sigmoid", device="meta").to_empty(device="cpu")
        empty.load_state_dict(moe.state_dict())
        for t in empty.buffers():
            if t.dtype == torch.int64:
                t.zero_()
        self.assertTrue(empty(x)[0].equal(want))
        self.assertEqual(layer("after", device="meta")(torch.empty(5, D, device="meta"))[0].shape, (5, D))


class Layouts(unittest.TestCase):
    def modules(self):
        # Also the sizes at which shapes say nothing: 2F = D, F = D, E = 1, F odd.
        for e, f, d, gated in ((1, 4, 8, True), (3, 8, 8, True), (3, 4, 8, True), (3, 5, 8, True), (3, 8, 8, False), (1, 3, 4, False)):
            torch.manual_seed(e + f)
            moe = troupe.MoE(d, e, 1, f, order="before", gated=gated, activation="silu" if gated else "gelu", bias=True)
            with torch.no_grad():
                for p in moe.parameters():
                    p.normal_()
            yield moe

    def test_53_each_layout_there_and_back_is_the_same_bytes(self):
        tried = 0
        for moe in self.modules():
            for layout in layouts.LAYOUTS:
                gated = moe.experts.form["gated"]
                if (layout in layouts.GATED_ONLY and not gated) or (layout == "megablocks_mlp" and gated):
                    with self.assertRaisesRegex(ValueError, f"layout {layout} is of experts"):
                        troupe.state_dict(moe, layout)
                    continue
                with self.subTest(layout, moe=repr(moe.experts)):
                    state = {n: t.clone() for n, t in troupe.state_dict(moe, layout).items()}
                    other = copy.deepcopy(moe)
                    for p in other.parameters():
                        p.data.zero_()
                    other.load_state_dict(state)
                    for (n, a), b in zip(moe.state_dict().items(), other.state_dict().values(), strict=True):
                        self.assertTrue(a.equal(b), n)
                    tried += 1
        self.assertGreater(tried, 45)

    def test_53_shapes_and_meaning_of_each(self):
        moe = next(m for m in self.modules() if m.experts.experts == 3 and m.experts.hidden == 5)
        w1, w2 = moe.experts.gate_up_proj, moe.experts.down_proj
        of = {layout: troupe.state_dict(moe, layout) for layout in layouts.LAYOUTS if layout != "megablocks_mlp"}
        self.assertTrue(of["hf_each"]["experts.2.up_proj.weight"].equal(w1[2, 5:]))
        self.assertTrue(of["mixtral_each"]["experts.1.w1.weight"].equal(w1[1, :5]))
        self.assertTrue(of["gpt_oss"]["experts.gate_up_proj"][0, :, 3].equal(w1[0, 5 + 1]))
        self.assertIn("router.weight", of["gpt_oss"])
        self.assertTrue(of["megablocks"]["experts.mlp.v1"][5:10].equal(w1[1, 5:]))
        self.assertTrue(of["megablocks"]["experts.mlp.w2"][5:10].equal(w2[1].T))
        self.assertTrue(of["titan"]["experts.w3_EFD"].equal(w1[:, 5:]))
        self.assertTrue(of["megatron"]["experts.local_experts.1.linear_fc1.weight"].equal(w1[1]))
        self.assertTrue(of["megatron_grouped"]["experts.weight1"].view(3, 8, 10)[2].equal(w1[2].T))

    def test_a_layer_within_a_model(self):
        moe = layer("after")
        model, other = nn.Sequential(nn.Linear(D, D), moe), nn.Sequential(nn.Linear(D, D), layer("after"))
        state = {f"0.{n}": t for n, t in model[0].state_dict().items()}
        state |= {f"1.{n}": t for n, t in troupe.state_dict(moe, "megablocks").items()}
        other.load_state_dict(state)
        self.assertTrue(other[1].experts.down_proj.equal(moe.experts.down_proj))

    def test_faults_are_told_all_at_once(self):
        moe = layer("after")
        state = dict(troupe.state_dict(moe, "hf_each"))
        del state["experts.3.up_proj.weight"]
        state["experts.9.up_proj.weight"] = torch.zeros(1)
        state["experts.1.down_proj.weight"] = torch.zeros(2, 2)
        with self.assertRaisesRegex(RuntimeError, r"layout hf_each, with 3 faults.*\[2, 2\], not \[24, 20\].*left over: experts.9.*"
                                                  r"missing experts.3.up_proj"):
            moe.load_state_dict(state)
        mixed = {**troupe.state_dict(moe, "titan"), **troupe.state_dict(moe, "hf_each")}
        with self.assertRaisesRegex(ValueError, "names of hf_each and titan"):
            moe.load_state_dict(mixed)


if __name__ == "__main__":
    unittest.main()
