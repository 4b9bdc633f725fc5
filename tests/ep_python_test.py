#!/usr/bin/env python3
"""Experts over ranks from Python: two and four Gloo processes beside one, through troupe.moe_ffn, troupe.MoE and what wraps them."""
import copy
import datetime
import functools
import json
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import traceback
import unittest

from ports import free_port

HERE = pathlib.Path(__file__).resolve().parent
D, E, K, F, T = 16, 8, 3, 12, 10
CASES = {}  # name -> (numbers of ranks, function of (rank, ranks, folder))


def case(*sizes):
    def add(function):
        CASES[function.__name__] = (sizes, function)
        return function
    return add


def check(condition, text=""):
    if not condition:
        raise AssertionError(text)


def raises(kind, text, call):
    with unittest.TestCase().assertRaisesRegex(kind, text):
        call()


def own(t, rank, ranks):
    """This rank's experts of all."""
    return t.detach()[rank * E // ranks:(rank + 1) * E // ranks].clone()


@functools.cache
def world():
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    return init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("ep",))


@functools.cache
def grid():
    from torch.distributed.device_mesh import init_device_mesh
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "ep"))


def problem(kind, tokens):
    """x, ids, p, w1, w2, b1, b2, dy of so many tokens; ids outside [0, E) among them."""
    import torch
    torch.manual_seed(1)
    ids = torch.stack([torch.randperm(E + 1)[:K] - int(i % 3 == 0) for i in range(tokens)]) if tokens else torch.zeros(0, K).long()
    p = torch.rand(tokens, K, dtype=torch.float64 if kind == torch.float64 else torch.float32)
    normal = [torch.randn(*sizes).to(kind) for sizes in ((tokens, D), (E, 2 * F, D), (E, D, F), (E, 2 * F), (E, D), (tokens, D))]
    return normal[0], ids, p, *normal[1:]


def gradients(x, ids, p, *rest, form=None, **options):
    from troupe_package import troupe
    *weights, dy = rest
    x, p, *weights = (t.clone().requires_grad_() for t in (x, p, *weights))
    w1, w2, b1, b2 = weights
    y = troupe.moe_ffn(x, ids, p, w1, w2, gate_up_bias=b1, down_bias=b2, **(form or {}), **options)
    y.backward(dy)
    return [y.detach(), x.grad, p.grad, *(w.grad for w in weights)]


def beside_one(kind, rank, ranks, share, ids=None, form=None, turn=lambda w: w, **options):
    """(this rank's results, one process's part of the same); share[r] tokens are rank r's."""
    whole = list(problem(kind, sum(share)))
    whole[1] = whole[1] if ids is None else ids(whole[1])
    whole[3:5] = map(turn, whole[3:5])
    want = gradients(*whole, form=form)
    x, i, p, *weights, dy = whole
    begin = sum(share[:rank])
    mine = slice(begin, begin + share[rank])
    got = gradients(x[mine], i[mine], p[mine], *(own(w, rank, ranks) for w in weights), dy[mine], form=form,
                    group=world(), grad="sum", **options)
    return got, [t[mine] for t in want[:3]] + [own(t, rank, ranks) for t in want[3:]]


def near(got, want, tolerance, text):
    """Each tensor within the tolerance of its largest number."""
    for name, a, b in zip(("y", "x", "weights", "w1", "w2", "b1", "b2"), got, want, strict=True):
        worst = (a - b).abs().max().item() if b.numel() else 0.0
        check(a.shape == b.shape and worst <= tolerance * (b.abs().max().item() if b.numel() else 1.0), f"{text}, {name}: {worst}")


@case(2, 4)
def the_function_is_one_process(rank, ranks, folder):
    import torch
    tolerance = {torch.float64: 1e-14, torch.float32: 1e-5, torch.bfloat16: 2e-2}
    shares = {"equal": [T] * ranks, "rank 0 without tokens": [0] + [T] * (ranks - 1), "nobody has any": [0] * ranks,
              "one rank has all": [0] * (ranks - 1) + [T * ranks]}
    for kind, most in tolerance.items():
        for name, share in shares.items():
            got, want = beside_one(kind, rank, ranks, share, mode="exact")
            check(all(a.equal(b) for a, b in zip(got, want, strict=True)), f"{name}, {kind}: the exact mode has other bits")
            got, want = beside_one(kind, rank, ranks, share)
            near(got, want, most, f"{name}, {kind}")
            check(all(a.equal(b) for a, b in zip(got[3:], want[3:], strict=True)), f"{name}, {kind}: gradients of experts")


@case(2, 4)
def all_tokens_to_one_rank(rank, ranks, folder):
    from troupe_package import troupe
    import torch
    import torch.distributed as dist
    for one in (0, E - 1):
        got, want = beside_one(torch.float64, rank, ranks, [T] * ranks, ids=lambda ids, one=one: torch.full_like(ids, one))
        near(got, want, 1e-14, f"all to expert {one}")
    x, ids, p, w1, w2, *_ = problem(torch.float32, T)
    weights = own(w1, rank, ranks), own(w2, rank, ranks)
    by_mesh = troupe.moe_ffn(x, ids, p, *weights, group=world())
    check(troupe.moe_ffn(x, ids, p, *weights, group=dist.group.WORLD).equal(by_mesh), "a ProcessGroup is another than its mesh")
    with torch.autocast("cpu", torch.bfloat16):
        check(troupe.moe_ffn(x, ids, p, *weights, group=world()).dtype == torch.bfloat16, "autocast")


@case(2)
def layouts_of_weights_and_what_is_kept(rank, ranks, folder):
    import torch
    columns = {"up_layout": "columns", "down_layout": "columns", "interleaved": True, "activation": "quick_gelu", "clamp": 1.0,
               "offset": 1.0}
    got, want = beside_one(torch.float32, rank, ranks, [T] * ranks, form=columns, mode="exact",
                           turn=lambda w: w.transpose(1, 2).contiguous())
    check(all(a.equal(b) for a, b in zip(got, want, strict=True)), "columns")
    got, want = beside_one(torch.float32, rank, ranks, [T] * ranks, form={"recompute": "expert"}, mode="exact")
    check(all(a.equal(b) for a, b in zip(got, want, strict=True)), "recompute")


@case(2, 4)
def adapters_are_one_process(rank, ranks, folder):
    from troupe_package import troupe
    import torch
    x, ids, p, w1, w2, b1, b2, dy = problem(torch.float64, T * ranks)
    factors = [torch.randn(*sizes, dtype=torch.float64) for sizes in ((E, 2 * F, 2), (E, 2, D), (E, D, 2), (E, 2, F))]

    def run(x, ids, p, weights, factors, dy, **options):
        x, p, *factors = (t.clone().requires_grad_() for t in (x, p, *factors))
        lora = [troupe.lora.Factors(*pair, 0.5) for pair in (factors[:2], factors[2:])]
        y = troupe.moe_ffn(x, ids, p, *weights[:2], gate_up_bias=weights[2], down_bias=weights[3], lora=lora, **options)
        y.backward(dy)
        return [y.detach(), x.grad, p.grad, *(t.grad for t in factors)]

    want = run(x, ids, p, (w1, w2, b1, b2), factors, dy)
    mine = slice(T * rank, T * (rank + 1))
    part = [t[mine] for t in want[:3]] + [own(t, rank, ranks) for t in want[3:]]
    for mode, grad in (("fast", "sum"), ("exact", "sum"), ("fast", "mean")):
        got = run(x[mine], ids[mine], p[mine], [own(w, rank, ranks) for w in (w1, w2, b1, b2)], [own(t, rank, ranks) for t in factors],
                  dy[mine], group=world(), mode=mode, grad=grad)
        of = part[:3] + [t / ranks if grad == "mean" else t for t in part[3:]]
        near(got, of, 1e-13, f"adapters, {mode}, {grad}")


def block(**options):
    import torch
    from torch import nn
    from troupe_package import troupe

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.moe = nn.LayerNorm(D), troupe.MoE(D, E, K, F, std=0.3, **options)
            self.moe.reset_parameters(seed=5)

        def forward(self, x):
            y, aux = self.moe(self.norm(x))
            return x + y, aux.loss

    torch.manual_seed(5)
    return Block()


def batch(ranks, step=0):
    import torch
    torch.manual_seed(100 + step)
    return torch.randn(ranks, T, D)


def steps(run, parameters, x_of, count=3, clip=None):
    import torch
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)
    for step in range(count):
        for x, share in x_of(step):
            y, aux = run(x)
            ((y.square().mean() + aux) * share).backward()
        if clip is not None:
            clip()
        optimizer.step()
        optimizer.zero_grad()


@functools.cache
def trained_alone(ranks, clip=0.0):
    """One process on every rank's tokens: the mean of their losses."""
    import torch
    module = block()
    steps(module, module.parameters(), lambda step: [(x, 1 / ranks) for x in batch(ranks, step)],
          clip=(lambda: torch.nn.utils.clip_grad_norm_(module.parameters(), clip)) if clip else None)
    return {n: p.detach() for n, p in module.named_parameters()}


def same_as_alone(module, rank, ranks, apart, whole=lambda p: p, **alone):
    """`apart`: over how many ranks the experts are, of which this one has the part `rank`."""
    import torch
    want = trained_alone(ranks, **alone)
    for name, p in module.named_parameters():
        name, p = name.replace("module.", ""), whole(p.detach())
        w = want[name] if p.shape == want[name].shape else own(want[name], rank, apart)
        torch.testing.assert_close(p, w, rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")


@case(2, 4)
def ddp_around_experts_over_ranks_is_one_process(rank, ranks, folder):
    from torch.nn.parallel import DistributedDataParallel
    from troupe_package import troupe
    module = block(group=world())
    check([n for n, _ in troupe.expert_parameters(module)] == ["moe.experts.gate_up_proj", "moe.experts.down_proj"])
    run = DistributedDataParallel(troupe.leave_experts_to_ranks(module))
    steps(run, run.parameters(), lambda step: [(batch(ranks, step)[rank], 1)])
    same_as_alone(run, rank, ranks, ranks)


@case(2)
def a_clipped_norm_is_that_of_one_process(rank, ranks, folder):
    from torch.nn.parallel import DistributedDataParallel
    from troupe_package import troupe
    run = DistributedDataParallel(troupe.leave_experts_to_ranks(block(group=world())))
    steps(run, run.parameters(), lambda step: [(batch(ranks, step)[rank], 1)], clip=lambda: troupe.clip_grad_norm_(run, 0.05))
    same_as_alone(run, rank, ranks, ranks, clip=0.05)


@case(2)
def a_clipped_norm_has_the_experts_of_ranks_without_gradients(rank, ranks, folder):
    import torch
    from troupe_package import troupe
    module = block(group=world())
    experts = [p for _, p in troupe.expert_parameters(module)]
    for p in experts:
        p.grad = torch.ones_like(p) if rank == 0 else None
    norm = troupe.clip_grad_norm_(module, 1.0)
    torch.testing.assert_close(norm, torch.tensor(float(sum(p.numel() for p in experts))).sqrt())


@case(4)
def replicas_of_experts_are_averaged_over_the_other_axis(rank, ranks, folder):
    from torch.nn.parallel import DistributedDataParallel
    from troupe_package import troupe
    module = block(group=grid()["ep"])
    module.moe.experts = DistributedDataParallel(module.moe.experts, process_group=grid()["dp"].get_group())
    run = DistributedDataParallel(troupe.leave_experts_to_ranks(module))
    steps(run, run.parameters(), lambda step: [(batch(ranks, step)[rank], 1)])
    same_as_alone(run, rank % 2, ranks, 2)


@case(4)
def fsdp2_over_the_other_axis_is_one_process(rank, ranks, folder):
    from torch.distributed.fsdp import fully_shard
    from troupe_package import troupe
    for clip in (0.0, 0.05):
        module = block(group=grid()["ep"])  # plain tensors of its own experts
        fully_shard(module.moe.experts, mesh=grid()["dp"])
        fully_shard(module, mesh=world())
        steps(module, module.parameters(), lambda step: [(batch(ranks, step)[rank], 1)],
              clip=(lambda m=module: troupe.clip_grad_norm_(m, 0.05)) if clip else None)
        same_as_alone(module, rank % 2, ranks, 2, lambda p: p.full_tensor(), clip=clip)


@case(4)
def dtensors_under_fsdp2_are_one_process(rank, ranks, folder):
    from torch.distributed.fsdp import fully_shard
    from troupe_package import troupe
    module = troupe.shard_experts(block(), grid())
    fully_shard(module.moe.experts, mesh=grid()["dp"])
    fully_shard(module, mesh=world())
    steps(module, module.parameters(), lambda step: [(batch(ranks, step)[rank], 1)], clip=lambda: troupe.clip_grad_norm_(module, 0.05))
    same_as_alone(module, rank % 2, ranks, 2, lambda p: p.full_tensor(), clip=0.05)


@case(2, 4)
def sharded_experts_have_global_shapes_and_the_same_bits(rank, ranks, folder):
    import torch
    from troupe_package import troupe
    module, plain = troupe.shard_experts(block(), world()), block(group=world())
    x = batch(ranks)[rank]
    got, want = module(x), plain(x)
    check(got[0].equal(want[0]))
    got[0].sum().backward()
    want[0].sum().backward()
    for (name, a), b in zip(module.named_parameters(), plain.parameters(), strict=True):
        if "experts" in name:
            check(a.shape[0] == E and b.shape[0] == E // ranks, name)
            check(a.grad.to_local().equal(b.grad), name)
    state = module.state_dict()
    torch.distributed.checkpoint.save({"model": state}, checkpoint_id=f"{folder}/dcp{ranks}")
    whole = block()
    want = {n: p.detach().clone() for n, p in whole.named_parameters()}
    for p in whole.parameters():
        p.data.zero_()
    torch.distributed.checkpoint.load({"model": whole.state_dict()}, checkpoint_id=f"{folder}/dcp{ranks}")
    check(all(p.equal(want[n]) for n, p in whole.named_parameters()), "a checkpoint of ranks in one process")
    other = torch.device("cpu")
    for p in module.parameters():
        (p.to_local() if hasattr(p, "to_local") else p).data.zero_()
    torch.distributed.checkpoint.load({"model": module.state_dict()}, checkpoint_id=f"{folder}/dcp{ranks}")
    check(module(x)[0].equal(got[0]) and other.type == "cpu")


def resumed(module, optimizer, state):
    """Every number of the module is another, until they are those of `state`."""
    import torch
    with torch.no_grad():
        for p in module.parameters():
            (p.to_local() if hasattr(p, "to_local") else p).fill_(0.5)
    module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])


def some_steps(module, optimizer, rank, ranks, first, count=2):
    for step in range(first, first + count):
        y, aux = module(batch(ranks, step)[rank])
        (y.square().mean() + aux).backward()
        optimizer.step()
        optimizer.zero_grad()


@case(2, 4)
def a_run_resumes_with_the_same_bits(rank, ranks, folder):
    """Plain tensors of this rank's experts: each rank saves its own, as torch.save does, and a new process goes on."""
    import torch

    def made():
        module = block(group=world(), router="sigmoid_bias")
        return module, torch.optim.AdamW(module.parameters(), lr=1e-2)

    module, optimizer = made()
    some_steps(module, optimizer, rank, ranks, 0)
    file = f"{folder}/rank{rank}of{ranks}.pt"
    torch.save({"model": module.state_dict(), "optimizer": optimizer.state_dict()}, file)
    some_steps(module, optimizer, rank, ranks, 2)
    again, optimizer = made()
    resumed(again, optimizer, torch.load(file, weights_only=True))
    some_steps(again, optimizer, rank, ranks, 2)
    check(all(a.equal(b) for a, b in zip(again.state_dict().values(), module.state_dict().values(), strict=True)))


@case(2)
def a_run_resumes_over_another_number_of_ranks(rank, ranks, folder):
    """DTensors and their moments by torch.distributed.checkpoint: from two ranks to one, and back."""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from troupe_package import troupe

    def made(mesh):
        module = block() if mesh is None else troupe.shard_experts(block(), mesh)
        return module, torch.optim.AdamW(module.parameters(), lr=1e-2)

    def together(module):
        """The mean over ranks of a parameter's gradient, as DDP computes it."""
        for p in module.parameters():
            if not hasattr(p, "to_local"):
                dist.all_reduce(p.grad)
                p.grad /= ranks

    def step(module, optimizer, number):
        y, aux = module(batch(ranks, number)[rank])
        (y.square().mean() + aux).backward()
        together(module)
        optimizer.step()
        optimizer.zero_grad()

    def whole(module):
        return {n: (p.full_tensor() if hasattr(p, "full_tensor") else p).detach() for n, p in module.named_parameters()}

    def saved(module, optimizer, name):
        weights, moments = get_state_dict(module, optimizer)
        checkpoint.save({"model": weights, "optimizer": moments}, checkpoint_id=f"{folder}/{name}{ranks}")

    def loaded(mesh, name):
        module, optimizer = made(mesh)
        with torch.no_grad():
            for p in module.parameters():
                (p.to_local() if hasattr(p, "to_local") else p).fill_(0.5)
        weights, moments = get_state_dict(module, optimizer)
        checkpoint.load({"model": weights, "optimizer": moments}, checkpoint_id=f"{folder}/{name}{ranks}")
        set_state_dict(module, optimizer, model_state_dict=weights, optim_state_dict=moments)
        return module, optimizer

    first, optimizer = made(world())
    step(first, optimizer, 0)
    saved(first, optimizer, "all")
    alone, alone_optimizer = loaded(None, "all")  # a process of its own has every expert
    check(all(a.equal(b) for a, b in zip(whole(alone).values(), whole(first).values(), strict=True)), "one process has other bits")
    step(first, optimizer, 1)
    step(alone, alone_optimizer, 1)
    saved(alone, alone_optimizer, "one")
    again, again_optimizer = loaded(world(), "one")
    for n, t in whole(again).items():
        check(t.equal(whole(alone)[n]), f"{n} over {ranks} ranks has other bits than one process")
        torch.testing.assert_close(t, whole(first)[n], rtol=1e-4, atol=1e-6, msg=lambda m, n=n: f"{n}: {m}")
    step(again, again_optimizer, 2)
    check(all(t.isfinite().all() for t in whole(again).values()))


@case(2)
def initial_values_and_state_dicts_are_those_of_the_whole(rank, ranks, folder):
    from troupe_package import troupe
    whole, part = block(bias=True), block(bias=True, group=world())
    for (name, a), b in zip(whole.named_parameters(), part.parameters(), strict=True):
        check((own(a, rank, ranks) if "experts" in name else a).equal(b), name)
    for layout in ("hf", "hf_each", "gpt_oss"):
        other = block(bias=True, group=world())
        for p in other.parameters():
            p.data.zero_()
        other.moe.load_state_dict(troupe.state_dict(whole.moe, layout))
        check(all(a.equal(b) for a, b in zip(other.moe.parameters(), part.moe.parameters(), strict=True)), layout)
    raises(troupe.Unsupported, "this rank has 4 of 8", lambda: troupe.state_dict(part.moe, "hf_each"))
    again = pickle.loads(pickle.dumps(part.moe))
    x = batch(ranks)[rank]
    check(again(x)[0].equal(part.moe(x)[0]) and copy.deepcopy(part.moe)(x)[0].equal(part.moe(x)[0]))


@case(2)
def a_block_of_transformers_goes_over_ranks(rank, ranks, folder):
    import torch
    from transformers import OlmoeConfig
    from transformers.models.olmoe.modeling_olmoe import OlmoeSparseMoeBlock
    from troupe_package import troupe
    theirs = OlmoeConfig(hidden_size=D, intermediate_size=F, num_experts=E, num_experts_per_tok=K)
    theirs._experts_implementation = "eager"
    torch.manual_seed(2)
    whole = OlmoeSparseMoeBlock(theirs)
    with torch.no_grad():
        for p in whole.parameters():
            p.normal_(std=0.3)
    moe = troupe.MoE.from_hf(whole, group=world())
    x = batch(ranks)[rank].unsqueeze(0)
    torch.testing.assert_close(moe(x)[0], whole(x), rtol=1e-4, atol=1e-5)
    check(len(moe.experts.down_proj) == E // ranks)
    raises(troupe.Unsupported, "to_hf_state_dict is of whole experts, and this rank has 4 of 8", moe.to_hf_state_dict)


@case(2)
def checkpointed_passes_have_the_same_bits(rank, ranks, folder):
    from torch.utils.checkpoint import checkpoint
    module = block(group=world())

    def run(call):
        module.zero_grad()
        x = batch(ranks)[rank].requires_grad_()
        y, aux = call(x)
        (y.square().sum() + aux).backward()
        return [y.detach(), x.grad, *(p.grad.clone() for p in module.parameters())]

    want = run(module)
    for reentrant in (False, True):
        got = run(lambda x, r=reentrant: checkpoint(module, x, use_reentrant=r))
        check(all(a.equal(b) for a, b in zip(got, want, strict=True)), f"use_reentrant={reentrant}")
    module.moe.options.recompute = "layer"
    check(all(a.equal(b) for a, b in zip(run(module), want, strict=True)), "recompute=layer")


@case(2)
def compiled_is_eager(rank, ranks, folder):
    import torch
    from torch._dynamo.testing import CompileCounterWithBackend
    for mode in ("fast", "exact"):
        module = block(group=world(), mode=mode)
        torch._dynamo.reset()
        counter, frames = CompileCounterWithBackend("aot_eager"), 0
        compiled = torch.compile(module, backend=counter, dynamic=True, fullgraph=True)

        def run(call, step):
            module.zero_grad()
            x = batch(ranks, step)[rank][step:].clone().requires_grad_()
            y, aux = call(x)
            (y.square().sum() + aux).backward()
            return [y.detach(), x.grad, *(p.grad.clone() for p in module.parameters())]

        for step in range(3):
            for a, b in zip(run(compiled, step), run(module, step), strict=True):
                check(a.equal(b), mode)
            frames = counter.frame_count if step == 0 else frames
        check(counter.frame_count == frames, f"{counter.frame_count} frames, {frames} after the first step")


@case(2)
def one_operator_in_a_graph_has_the_bits_of_eager(rank, ranks, folder):
    """Every layout, both modes, a rank without tokens, and frozen parts, which cost no gradient."""
    import torch
    from troupe_package import troupe
    x, ids, p, w1, w2, b1, b2, dy = problem(torch.float32, T)
    w1, w2, b1, b2 = (own(w, rank, ranks) for w in (w1, w2, b1, b2))
    mine = slice(0, T if rank == 0 else 0)
    gate, up = w1.chunk(2, 1)
    forms = [((w1, w2), {"gate_up_bias": b1, "down_bias": b2}), ((gate, w2), {"up": up}), ((w1, w2), {"clamp": 1.0, "offset": 1.0}),
             ((w1.transpose(1, 2).contiguous(), w2.transpose(1, 2).contiguous()),
              {"up_layout": "columns", "down_layout": "columns", "interleaved": True})]
    for weights, named in forms:
        for mode in ("fast", "exact"):
            for frozen in ((), (0,), (1,), (2, 3)):
                def run(call):
                    leaves = [t.clone().requires_grad_(i not in frozen) for i, t in enumerate((x[mine], p[mine], *weights))]
                    more = {k: v.clone().requires_grad_() if torch.is_tensor(v) else v for k, v in named.items()}
                    y = call(leaves[0], ids[mine], *leaves[1:], group=world(), mode=mode, **more)
                    y.backward(dy[mine])
                    return [y.detach(), *(t.grad for t in (*leaves, *more.values()) if torch.is_tensor(t))]

                torch._dynamo.reset()
                got = run(torch.compile(troupe.moe_ffn, backend="aot_eager", fullgraph=True))
                for a, b in zip(got, run(troupe.moe_ffn), strict=True):
                    check((a is None) == (b is None) and (a is None or a.equal(b)), f"{sorted(named)}, {mode}, frozen {frozen}")


@case(2)
def a_rank_that_refuses_tells_the_others(rank, ranks, folder):
    import torch
    from troupe_package import troupe
    x, ids, p, w1, w2, *_ = problem(torch.float32, T)
    w1, w2 = own(w1, rank, ranks), own(w2, rank, ranks)

    def call(x=x, ids=ids, p=p, **options):
        return troupe.moe_ffn(x, ids, p, w1, w2, **{"group": world(), **options})

    want = call()
    if rank == 0:
        raises(ValueError, "x has 15 columns", lambda: call(x[:, 1:]))
    else:
        raises(RuntimeError, "rank 0 refused this call", call)
    mode = "fast" if rank == 0 else "exact"
    other = "exact" if rank == 0 else "fast"
    raises(ValueError, f"rank {1 - rank} calls with mode {other}, rank {rank} with mode {mode}", lambda: call(mode=mode))
    raises(ValueError, "calls with top_k", lambda: call(ids=ids[:, :K - rank], p=p[:, :K - rank]))
    check(call().equal(want))  # and the group goes on
    raises(ValueError, "mode is 'slow'; it must be one of fast, exact", lambda: call(mode="slow"))
    raises(ValueError, "grad is 'max'", lambda: call(grad="max"))
    raises(ValueError, "leave plan out", lambda: call(plan=troupe.plan(ids, E)))
    raises(TypeError, "group is a str", lambda: call(group="ep"))
    layer = troupe.MoE(D, E, K, F, group=world(), capacity=4.0, losses="none")
    wrong = x[:3, 1:] if rank == 1 else x  # its router refuses it, and the rank lives on
    raises(RuntimeError, "mat1 and mat2|shapes|columns" if rank == 1 else "rank 1 refused this call", lambda: layer(wrong))
    raises(troupe.Unsupported if rank == 1 else RuntimeError, "x is a list" if rank == 1 else "rank 1 refused this call",
           lambda: layer([1.0] if rank == 1 else x))
    short = torch.ones(T - rank, dtype=torch.bool)  # of one row too few
    raises(RuntimeError, "valid must have sizes" if rank == 1 else "rank 1 refused this call", lambda: layer(x, valid=short))
    check(layer(x).shape == x.shape)


@case(2, 4)
def wrappers_over_all_ranks_are_refused(rank, ranks, folder):
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel
    from troupe_package import troupe
    x = batch(ranks)[rank]
    raises(troupe.Unsupported, "DistributedDataParallel over ranks .* have different ones", lambda: DistributedDataParallel(
        block(group=world()))(x))
    module = block(group=world())
    fully_shard(module)
    raises(troupe.Unsupported, "fully_shard over ranks .* have different ones", lambda: module(x))
    raises(ValueError, rf"6 experts over {ranks} ranks: .* must divide them \(1, 2, 3, 6\)" if ranks == 4 else "9 experts over 2",
           lambda: troupe.MoE(D, 6 if ranks == 4 else 9, K, F, group=world()))
    raises(ValueError, "no troupe.Experts", lambda: troupe.shard_experts(module.norm, world()))
    raises(ValueError, "is over ranks already", lambda: troupe.shard_experts(block(group=world()), world()))
    if ranks == 4:
        raises(ValueError, "a DeviceMesh of 2 dimensions", lambda: troupe.MoE(D, E, K, F, group=grid()))
    check("over" not in repr(troupe.MoE(D, E, K, F).experts))
    check("waits for row counts once a call" in repr(block(group=world()).moe.experts))


class Ranks(unittest.TestCase):
    """Every case in the same processes, started once for each number of them."""

    results = {}

    @classmethod
    def run_ranks(cls, ranks):
        if ranks in cls.results:
            return cls.results[ranks]
        with tempfile.TemporaryDirectory() as folder:
            env = {**os.environ, "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
                   "OMP_NUM_THREADS": "1"}
            runs = [subprocess.Popen([sys.executable, __file__, "--rank", folder], stdout=subprocess.PIPE,
                                     stderr=subprocess.STDOUT, text=True, env={**env, "RANK": str(r)}) for r in range(ranks)]
            try:
                said = [run.communicate(timeout=300)[0] for run in runs]
            finally:
                for run in runs:
                    run.kill()
            found = [pathlib.Path(folder, f"{r}.json") for r in range(ranks)]
            cls.results[ranks] = [json.loads(f.read_text()) if f.exists() else {} for f in found], "\n".join(said)
        return cls.results[ranks]

    def of(self, function):
        name = function.__name__
        for ranks in CASES[name][0]:
            with self.subTest(ranks=ranks):
                results, said = self.run_ranks(ranks)
                for r, result in enumerate(results):
                    if result.get(name) != "ok":
                        self.fail(f"rank {r}: {result.get(name, said)}")

    def test_pyn7_the_function_is_one_process(self):
        self.of(the_function_is_one_process)

    def test_pyn7_all_tokens_to_one_rank(self):
        self.of(all_tokens_to_one_rank)

    def test_245_adapters_are_one_process(self):
        self.of(adapters_are_one_process)

    def test_pyn7_layouts_of_weights_and_what_is_kept(self):
        self.of(layouts_of_weights_and_what_is_kept)

    def test_pye4_ddp_around_experts_over_ranks_is_one_process(self):
        self.of(ddp_around_experts_over_ranks_is_one_process)

    def test_pye4_a_clipped_norm_is_that_of_one_process(self):
        self.of(a_clipped_norm_is_that_of_one_process)

    def test_pye4_a_clipped_norm_has_the_experts_of_ranks_without_gradients(self):
        self.of(a_clipped_norm_has_the_experts_of_ranks_without_gradients)

    def test_pye4_replicas_of_experts_are_averaged_over_the_other_axis(self):
        self.of(replicas_of_experts_are_averaged_over_the_other_axis)

    def test_pym7_fsdp2_over_the_other_axis_is_one_process(self):
        self.of(fsdp2_over_the_other_axis_is_one_process)

    def test_pye5_dtensors_under_fsdp2_are_one_process(self):
        self.of(dtensors_under_fsdp2_are_one_process)

    def test_pye5_sharded_experts_have_global_shapes_and_the_same_bits(self):
        self.of(sharded_experts_have_global_shapes_and_the_same_bits)

    def test_234_a_run_resumes_with_the_same_bits(self):
        self.of(a_run_resumes_with_the_same_bits)

    def test_234_a_run_resumes_over_another_number_of_ranks(self):
        self.of(a_run_resumes_over_another_number_of_ranks)

    def test_pyl4_initial_values_and_state_dicts_are_those_of_the_whole(self):
        self.of(initial_values_and_state_dicts_are_those_of_the_whole)

    def test_pyl3_a_block_of_transformers_goes_over_ranks(self):
        self.of(a_block_of_transformers_goes_over_ranks)

    def test_pym4_checkpointed_passes_have_the_same_bits(self):
        self.of(checkpointed_passes_have_the_same_bits)

    def test_pym1_compiled_is_eager(self):
        self.of(compiled_is_eager)

    def test_pye2_one_operator_in_a_graph_has_the_bits_of_eager(self):
        self.of(one_operator_in_a_graph_has_the_bits_of_eager)

    def test_pye8_a_rank_that_refuses_tells_the_others(self):
        self.of(a_rank_that_refuses_tells_the_others)

    def test_pye4_wrappers_over_all_ranks_are_refused(self):
        self.of(wrappers_over_all_ranks_are_refused)


class Lost(unittest.TestCase):
    """A rank that is killed between two steps: every other rank names it."""

    def survivors(self, kind, ranks, victim):
        """{rank: (the kind of error, the ranks that it names, its text)}"""
        with tempfile.TemporaryDirectory() as folder:
            env = {**os.environ, "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
                   "OMP_NUM_THREADS": "1"}
            runs = [subprocess.Popen([sys.executable, __file__, "--lost", folder, kind, str(victim)], stdout=subprocess.PIPE,
                                     stderr=subprocess.STDOUT, text=True, env={**env, "RANK": str(r)}) for r in range(ranks)]
            try:
                said = [run.communicate(timeout=200)[0] for run in runs]
            finally:
                for run in runs:
                    run.kill()
            found = {r: json.loads(f.read_text()) for r in range(ranks) if (f := pathlib.Path(folder, f"{r}.json")).exists()}
            self.assertEqual((runs[victim].returncode, len(found)), (-9, ranks - 1), "\n".join([*said, str(found)]))
            return found

    def test_234_a_killed_rank_is_named_by_every_other(self):
        for kind, ranks, victim in (("MoE", 4, 2), ("dMoE", 2, 1)):
            with self.subTest(kind=kind, ranks=ranks):
                for rank, (name, named, text) in self.survivors(kind, ranks, victim).items():
                    self.assertEqual((name, named), ("RankLost", [victim]), text)
                    self.assertRegex(text, rf"^experts over ranks \(group \S+ of ranks \[0, 1.*\]\): rank {victim} \(process \d+\) has "
                                           rf"ended\. Rank {rank} was exchanging rows with it: .+ start all ranks again")

    def test_234_the_rank_that_has_the_store_is_named_too(self):
        (name, named, text), = self.survivors("MoE", 2, 0).values()
        self.assertEqual((name, named), ("RankLost", [0]), text)
        self.assertRegex(text, r"rank 0 \(process \d+\) has ended")


def lost_main(folder, kind, victim):
    """Steps until the victim is killed after its second; what the others raise goes to a file."""
    sys.path.insert(0, str(HERE))
    import signal

    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    from troupe_package import troupe
    if kind == "dMoE":
        from troupe.megablocks import Arguments, dMoE
        module = dMoE(Arguments(hidden_size=D, ffn_hidden_size=F, moe_num_experts=E, moe_top_k=K, fp16=False, device="cpu",
                                return_bias=False, moe_loss_weight=0, moe_expert_model_parallelism=True,
                                expert_parallel_group=dist.group.WORLD))
    else:
        module = troupe.MoE(D, E, K, F, group=world(), losses="none")
    try:
        for step in range(100):
            module(batch(ranks, step)[rank].unsqueeze(0)).sum().backward()
            if step == 1 and rank == int(victim):
                os.kill(os.getpid(), signal.SIGKILL)
    except Exception as raised:
        found = [type(raised).__name__, getattr(raised, "ranks", None), str(raised)]
        pathlib.Path(folder, f"{rank}.json").write_text(json.dumps(found))
    os._exit(0)  # a group that lost a rank is not taken down in order


def rank_main(folder):
    sys.path.insert(0, str(HERE))
    import torch
    import torch.distributed.checkpoint
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    rank, ranks, results = torch.distributed.get_rank(), torch.distributed.get_world_size(), {}
    for name, (sizes, function) in CASES.items():
        if ranks not in sizes:
            continue
        try:
            function(rank, ranks, folder)
            results[name] = "ok"
        except Exception:
            results[name] = traceback.format_exc()
        pathlib.Path(folder, f"{rank}.json").write_text(json.dumps(results))
        torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        rank_main(sys.argv[2])
    elif sys.argv[1:2] == ["--lost"]:
        lost_main(*sys.argv[2:])
    else:
        unittest.main()
