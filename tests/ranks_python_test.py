#!/usr/bin/env python3
"""troupe.MoE under DDP, FSDP2 and with DTensors: two Gloo processes beside one."""
import os
import tempfile
import unittest

import two_ranks

D, E, K, F, T, STEPS = 16, 5, 2, 12, 24, 3


def model(**options):
    import torch
    from torch import nn
    from troupe_package import troupe

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.moe = nn.LayerNorm(D), troupe.MoE(D, E, K, F, **options)

        def forward(self, x):
            y, aux = self.moe(self.norm(x))
            return x + y, aux.loss

    torch.manual_seed(5)
    return Block()


def batch(step):
    import torch
    torch.manual_seed(100 + step)
    return torch.randn(2, T // 2, D)  # half for each rank


def train(run, mine, optimizer):
    """STEPS steps on this rank's half."""
    for step in range(STEPS):
        x = batch(step)[mine]
        y, aux = run(x.reshape(-1, D))
        (y.square().mean() + aux).backward()
        optimizer.step()
        optimizer.zero_grad()


def alone():
    """One process on both halves: the mean of the halves' losses."""
    import torch
    module = model()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    for step in range(STEPS):
        for half in batch(step):
            y, aux = module(half)
            ((y.square().mean() + aux) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    return module


def same(module, whole=lambda p: p):
    import torch
    want = dict(alone().named_parameters())
    for n, p in module.named_parameters():
        n = n.removeprefix("module.")
        torch.testing.assert_close(whole(p.detach()), want[n].detach(), rtol=1e-4, atol=1e-6, msg=lambda m, n=n: f"{n}: {m}")


def ddp(rank):
    import torch
    from torch.nn.parallel import DistributedDataParallel
    for options in ({}, {"static_graph": True}):
        run = DistributedDataParallel(model(), **options)
        train(run, rank, torch.optim.AdamW(run.parameters(), lr=1e-2))
        same(run)
    run = DistributedDataParallel(model())
    with run.no_sync():
        y, aux = run(batch(0)[rank])
        (y.sum() + aux).backward()
    assert all(p.grad is not None for p in run.parameters())  # of every expert, also those without rows


def fsdp(rank):
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.distributed.tensor import DTensor
    for options in ({}, {"reshard_after_forward": False}):
        module, seen = model(), []
        fully_shard(module.moe.experts, **options)
        fully_shard(module, **options)
        module.moe.experts.register_forward_pre_hook(lambda m, _: seen.append(type(m.down_proj)))
        assert all(isinstance(p, DTensor) for p in module.parameters())
        train(module, rank, torch.optim.AdamW(module.parameters(), lr=1e-2))
        same(module, lambda p: p.full_tensor())
    module = model()
    fully_shard(module, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float32))
    y, aux = module(batch(0)[rank])
    (y.sum() + aux).backward()
    assert y.dtype == torch.float32 and module.moe.experts.down_proj.grad.dtype == torch.float32


def dcp(rank):
    """A checkpoint of PyTorch's own, of a layer that FSDP2 divides and its optimizer: three steps, saved, and loaded into a
    layer that is divided another way, into a whole one of one process, and back; all go on with the same bits."""
    import torch
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.fsdp import fully_shard
    from troupe_package import troupe

    def made(parts):
        module = model(router="sigmoid_bias")
        for part in parts(module):
            fully_shard(part)
        return module, torch.optim.AdamW(module.parameters(), lr=1e-2)

    def stepped(module, optimizer):
        train(module, rank, optimizer)
        troupe.end_of_step(module)

    def loaded(parts):
        module, optimizer = made(parts)
        with torch.no_grad():
            for t in (*module.parameters(), module.moe.gate.e_score_correction_bias):
                t.fill_(0.5)
        weights, moments = get_state_dict(module, optimizer)
        checkpoint.load({"model": weights, "optimizer": moments}, checkpoint_id=folder)
        set_state_dict(module, optimizer, model_state_dict=weights, optim_state_dict=moments)
        return module, optimizer

    def of(module):
        return {n: t.full_tensor() if hasattr(t, "full_tensor") else t for n, t in module.state_dict().items()}

    folder = os.environ["DCP_FOLDER"]
    first, optimizer = made(lambda m: (m.moe.experts, m))
    stepped(first, optimizer)
    assert first.moe.gate.e_score_correction_bias.abs().sum() > 0
    weights, moments = get_state_dict(first, optimizer)
    checkpoint.save({"model": weights, "optimizer": moments}, checkpoint_id=folder)
    others = [loaded(parts) for parts in (lambda m: (m,), lambda m: (m.moe.gate, m.moe, m))]
    whole, _ = loaded(lambda m: ())
    for n, t in of(first).items():
        assert of(whole)[n].equal(t), n
    stepped(first, optimizer)
    for other in others:
        stepped(*other)
        for n, t in of(first).items():
            torch.testing.assert_close(of(other[0])[n], t, rtol=0, atol=0, msg=lambda m, n=n: f"{n}: {m}")


def dtensor(rank):
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from troupe_package import troupe
    mesh = init_device_mesh("cpu", (2,))
    module, x = model().moe, batch(0)[0]
    want = module(x)[0]
    experts = module.experts
    for name in ("gate_up_proj", "down_proj"):
        setattr(experts, name, torch.nn.Parameter(distribute_tensor(getattr(experts, name).detach(), mesh, [Replicate()])))
    assert module(x)[0].equal(want)
    experts.down_proj = torch.nn.Parameter(distribute_tensor(experts.down_proj.full_tensor().detach(), mesh, [Shard(1)]))
    for bad, text in ((lambda: module(x), "Experts.down_proj is a DTensor with placements \\(Shard\\(dim=1\\),\\)"),
                      (lambda: model().moe(distribute_tensor(x, mesh, [Shard(0)])), "x is a DTensor.*to_local")):
        with unittest.TestCase().assertRaisesRegex(troupe.Unsupported, text):
            bad()


def bias(rank):
    """PyL6: what a step counted is summed over the ranks."""
    from troupe_package import troupe
    module = troupe.MoE(D, E, K, F, router="sigmoid_bias")
    module.reset_parameters(seed=1)
    one = troupe.MoE(D, E, K, F, router="sigmoid_bias")
    one.reset_parameters(seed=1)
    module(batch(0)[rank])
    for half in batch(0):
        one(half)
    troupe.end_of_step(module)
    over = one.gate.step_counts.sum() - one.gate.step_counts * E
    assert module.gate.e_score_correction_bias.equal(1e-3 * over.sign().float())


def lora(rank):
    """PyH9: adapters on experts that FSDP2 divides; what is saved of them are the whole ones."""
    import peft
    import torch
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.fsdp import fully_shard
    from transformers import OlmoeConfig, OlmoeForCausalLM
    from troupe_package import troupe
    config = OlmoeConfig(hidden_size=32, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
                         vocab_size=64, num_experts=4, num_experts_per_tok=2, pad_token_id=0)
    targets = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]

    def trained(divided, tokens):
        torch.manual_seed(1)
        model = OlmoeForCausalLM._from_config(config)
        model = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=[], target_parameters=targets))
        assert {r.path for r in troupe.patch(model)} == {"products"}
        if divided:
            for block in model.get_base_model().model.layers:
                fully_shard(block)
            fully_shard(model)
        adam = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
        for _ in range(2):
            model(input_ids=tokens, labels=tokens).loss.backward()
            adam.step()
            adam.zero_grad()
        whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        return peft.get_peft_model_state_dict(model, state_dict=whole) if whole else {}

    torch.manual_seed(2)
    tokens = torch.randint(3, 64, (4, 17))
    got = trained(True, tokens.chunk(2)[rank])
    if rank == 0:
        want = trained(False, tokens)
        assert len(got) == 8 and got.keys() == want.keys(), (got.keys(), want.keys())
        for n, t in want.items():
            torch.testing.assert_close(got[n], t, rtol=1e-3, atol=1e-5, msg=lambda m, n=n: f"{n}: {m}")
            assert not (got[n] == 0).all(-1).any(), f"{n} has rows of zeros"


class Ranks(two_ranks.TwoRanks):
    script = __file__

    def test_pym6_ddp_is_one_process(self):
        self.start("ddp")

    def test_pym7_fsdp2_is_one_process(self):
        self.start("fsdp")

    def test_pym7_pytorchs_checkpoints_hold_layer_and_optimizer_for_any_division(self):
        with tempfile.TemporaryDirectory() as folder:
            self.start("dcp", DCP_FOLDER=folder)

    def test_pym8_dtensors_that_are_whole_are_taken_and_others_refused(self):
        self.start("dtensor")

    def test_pyh9_adapters_under_fsdp2_are_saved_whole_and_are_one_process(self):
        self.start("lora")

    def test_pyl6_the_end_of_a_step_sums_over_ranks(self):
        self.start("bias")


def join():
    import torch
    torch.distributed.init_process_group("gloo")


if __name__ == "__main__":
    two_ranks.main({"ddp": ddp, "fsdp": fsdp, "dcp": dcp, "dtensor": dtensor, "bias": bias, "lora": lora}, join)
