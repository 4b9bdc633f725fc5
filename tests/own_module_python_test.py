#!/usr/bin/env python3
"""troupe.MoE as PyTorch has its own modules: torch.func, the meta device, to_empty and reset_parameters, FSDP2 of a model without
memory, copies with a process group, FLOPs, the types of losses."""
import copy
import io
import itertools
import sys
import unittest

import two_ranks

D, E, K, F = 16, 4, 2, 12
KINDS = {"plain": {}, "biased": {"router": "sigmoid_bias", "shared": 1, "bias": True}, "quantile": {"router": "quantile", "gated": False,
         "shared": 2}, "global": {"balance": "global", "output_bias": True}, "lora": {"lora": {"rank": 2}}}


def layer(**options):
    import torch
    from troupe_package import troupe
    torch.manual_seed(2)
    return troupe.MoE(D, E, K, F, std=0.3, **options)


def whole(t):
    return t.full_tensor() if hasattr(t, "full_tensor") else t


def same_values(test, got, want):
    named = dict(want.named_parameters()) | dict(want.named_buffers())
    for name, t in itertools.chain(got.named_parameters(), got.named_buffers()):
        test.assertTrue(whole(t.detach()).equal(named[name]), name)


def meta(rank):
    """A model without memory, divided, made real and drawn, has the values of one process; with no seed all ranks draw one."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard
    test = unittest.TestCase()
    for options in KINDS.values():
        for placed in (None, lambda p: Shard(1) if p.dim() == 3 else None):
            with torch.device("meta"):
                moe = layer(**options)
            fully_shard(moe.experts, shard_placement_fn=placed)
            fully_shard(moe)
            moe.to_empty(device="cpu").reset_parameters(seed=7)
            want = layer(**options)
            want.reset_parameters(seed=7)
            same_values(test, moe, want)
            want.load_state_dict({n: whole(t) for n, t in moe.state_dict().items()})
            x = torch.randn(5, D)
            y, aux = moe(x)
            test.assertTrue(y.detach().equal(want(x)[0].detach()))
            (y.sum() + aux.loss).backward()
    moe = layer()
    fully_shard(moe, mesh=init_device_mesh("cpu", (2, 1), mesh_dim_names=("copy", "part")))  # two replicas
    moe.reset_parameters()
    for name, p in moe.named_parameters():
        both = [torch.empty_like(p.to_local()) for _ in range(2)]
        torch.distributed.all_gather(both, p.detach().to_local().contiguous())
        test.assertTrue(both[0].equal(both[1]), name)


def copies(rank):
    """A layer over a group is copied, averaged, pickled and saved as any module; what is loaded computes the same."""
    import torch
    import torch.distributed as dist
    test = unittest.TestCase()
    moe = layer(group=dist.group.WORLD)
    x = torch.randn(5, D)
    want = moe(x)[0]
    file = io.BytesIO()
    torch.save(moe, file)
    file.seek(0)
    averaged = torch.optim.swa_utils.AveragedModel(moe)
    averaged.update_parameters(moe)
    for other in (copy.deepcopy(moe), torch.load(file, weights_only=False), averaged):
        test.assertTrue(other(x)[0].equal(want))


class Func(unittest.TestCase):
    def test_pyn9_gradients_by_torch_func_are_those_of_backward(self):
        import torch
        for losses, options in itertools.product(("none", "return", "attach"), ({}, KINDS["biased"])):
            with self.subTest(losses=losses, **options):
                moe, x = layer(losses=losses, **options), torch.randn(5, D)

                def loss(parameters, x, buffers, moe=moe):  # buffers that count are arguments, as BatchNorm's must be
                    y = torch.func.functional_call(moe, (parameters, buffers), (x,))
                    return y.square().sum() if isinstance(y, torch.Tensor) else y[0].square().sum() + y[1].loss

                parameters = {n: p.detach() for n, p in moe.named_parameters()}
                buffers = {n: t.clone() for n, t in moe.named_buffers()}
                of_parameters, of_x = torch.func.grad(loss, (0, 1))(parameters, x, buffers)
                x.requires_grad_()
                loss(dict(moe.named_parameters()), x, dict(moe.named_buffers())).backward()
                self.assertTrue(of_x.equal(x.grad))
                for name, p in moe.named_parameters():
                    self.assertTrue(of_parameters[name].equal(p.grad), name)

    def test_pyn9_vmap_is_refused_by_name(self):
        import torch
        from troupe_package import troupe
        moe, x = layer(losses="none").eval(), torch.randn(3, 5, D)
        stacked = {n: torch.stack([p.detach()] * 3) for n, p in moe.named_parameters()}
        for name, call in (("x", lambda: torch.func.vmap(moe)(x)),
                           ("weight", lambda: torch.func.vmap(lambda p: torch.func.functional_call(moe, p, (x[0],)))(stacked)),
                           ("x", lambda: torch.func.vmap(torch.func.grad(lambda t: moe(t).sum()))(x)),
                           ("logits", lambda: torch.func.vmap(lambda t: troupe.route(t, 2).weights)(x))):
            with self.assertRaisesRegex(troupe.Unsupported, rf"^{name} is mapped by torch\.func\.vmap.*give the layer all of them at once"):
                call()


class Made(unittest.TestCase):
    def test_a_layer_of_the_meta_device_is_made_real_and_drawn(self):
        import torch
        for kind, options in KINDS.items():
            with self.subTest(kind=kind):
                with torch.device("meta"):
                    moe = layer(**options)
                self.assertTrue(all(t.is_meta for t in moe.parameters()))
                moe.to_empty(device="cpu")
                for t in itertools.chain(moe.parameters(), moe.buffers()):
                    t.detach().fill_(3)
                moe.reset_parameters(seed=7)
                want = layer(**options)
                want.reset_parameters(seed=7)
                same_values(self, moe, want)

    def test_each_part_resets_itself(self):
        """What FSDP2's examples do: each module that has reset_parameters, in turn."""
        moe = layer(**KINDS["biased"])
        for module in moe.modules():
            for t in itertools.chain(module.parameters(recurse=False), module.buffers(recurse=False)):
                t.detach().fill_(float("nan") if t.is_floating_point() else 9)
        for module in moe.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
        self.assertTrue(all(t.isfinite().all() for t in itertools.chain(moe.parameters(), moe.buffers())))
        self.assertEqual(int(moe.gate.step_counts.sum()), 0)

    def test_its_sizes_are_attributes(self):
        moe = layer()
        self.assertEqual((moe.width, moe.top_k, moe.hidden), (D, K, F))

    def test_losses_of_f64_are_f64(self):
        import torch
        for options in ({"z_loss": 0.01}, {"balance": "none"}):
            moe = layer(dtype=torch.float64, **options)
            x = torch.randn(5, D, dtype=torch.float64)
            y, aux = moe(x)
            self.assertEqual((y.dtype, aux.loss.dtype), (torch.float64, torch.float64))
            if aux.balance is not None:
                self.assertEqual(aux.loss.item(), (aux.balance + aux.z).item())  # nothing is rounded
            self.assertEqual(moe.float()(x.float())[1].loss.dtype, torch.float32)


class Flops(unittest.TestCase):
    def test_a_layer_counts_as_the_same_model_of_linears(self):
        import torch
        from torch.utils.flop_counter import FlopCounterMode
        T = 10
        for shared, gated in itertools.product((0, 1), (True, False)):
            moe, x = layer(shared=shared, gated=gated), torch.randn(T, D, requires_grad=True)
            out = 2 * F if gated else F
            linears = [torch.nn.Linear(D, E, bias=False)]
            for _ in range(K + shared):
                linears += [torch.nn.Linear(D, out, bias=False), torch.nn.Linear(F, D, bias=False)]
            with FlopCounterMode(display=False) as ours:
                y, aux = moe(x)
                (y.sum() + aux.loss).backward()
            with FlopCounterMode(display=False) as plain:  # each token takes K experts: their rows as K linears of T rows
                sum(f(torch.randn(T, f.in_features, requires_grad=True)).sum() for f in linears).backward()
            self.assertEqual(ours.get_total_flops(), plain.get_total_flops(), (shared, gated))


class Ranks(two_ranks.TwoRanks):
    script = __file__

    def test_pym7_a_model_without_memory_under_fsdp2_has_the_values_of_one_process(self):
        self.start("meta")

    def test_pym13_copies_of_a_layer_over_ranks_compute_the_same(self):
        self.start("copies")


def join():
    import torch.distributed as dist
    dist.init_process_group("gloo")


if __name__ == "__main__":
    sys.exit(two_ranks.main({"meta": meta, "copies": copies}, join))
