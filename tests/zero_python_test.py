#!/usr/bin/env python3
"""DeepSpeed's ZeRO-1, 2 and 3 over troupe.MoE and over a model of transformers that troupe.patch has switched: two Gloo
processes beside one. Skipped where DeepSpeed is not installed; TRAINERS_SITE=folder takes it from
DS_BUILD_OPS=0 pip install --no-deps --no-build-isolation --target folder deepspeed==0.19.8 einops hjson msgpack ninja
py-cpuinfo tqdm (pip needs `wheel` to make it)."""
import importlib.util
import os
import sys
import tempfile
import unittest

import two_ranks

sys.path += [folder for folder in os.environ.get("TRAINERS_SITE", "").split(":") if folder]
D, E, K, F, T, STEPS = 16, 5, 2, 12, 24, 3


def deepspeed_here():
    import deepspeed
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # collectives of its own, which it would compile
    return deepspeed


def adamw(module, lr=1e-2):
    """With an epsilon above what the order of a sum changes in a gradient of nearly 0."""
    import torch
    return torch.optim.AdamW(module.parameters(), lr=lr, eps=1e-5)


def engine(module, stage, lr=1e-2):
    """ZeRO of this stage over torch's AdamW, in f32, every parameter divided, and no clipping (DeepSpeed's default is 1)."""
    config = {"train_micro_batch_size_per_gpu": 1, "train_batch_size": 2, "zero_allow_untested_optimizer": True,
              "zero_force_ds_cpu_optimizer": False, "gradient_clipping": 0.0,
              "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}}
    return deepspeed_here().initialize(model=module, optimizer=adamw(module, lr), config=config)[0]


def whole(module):
    """Parameters by name, gathered where ZeRO-3 has divided them."""
    from deepspeed.runtime.zero import GatheredParameters
    found = {}
    for name, p in module.named_parameters():
        with GatheredParameters([p], enabled=hasattr(p, "ds_id")):
            found[name] = p.detach().clone()
    return found


def agree(got, want):
    import torch
    assert got.keys() == want.keys()
    for n, t in want.items():
        torch.testing.assert_close(got[n], t, rtol=1e-4, atol=1e-6, msg=lambda m, n=n: f"{n}: {m}")


def layer(**options):
    import torch
    from torch import nn
    from troupe_package import troupe

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.moe = nn.LayerNorm(D), troupe.MoE(D, E, K, F, **options)

        def forward(self, x):
            y, aux = self.moe(self.norm(x))
            return (x + y).square().mean() + aux.loss

    torch.manual_seed(5)
    return Block()


def batch(step):
    """Half for each rank; the second rank's tokens are few and equal, so that most experts have no row there."""
    import torch
    torch.manual_seed(100 + step)
    x = torch.randn(2, T // 2, D)
    x[1] = x[1, :1]
    return x


def trained_alone(module, batches, loss_of, lr=1e-2):
    """The mean of the halves' losses, in one process."""
    adam, losses = adamw(module, lr), []
    for halves in batches:
        for half in halves:
            loss = loss_of(module, half)
            losses.append(loss.item())
            (loss / 2).backward()
        adam.step()
        adam.zero_grad()
    return {n: p.detach().clone() for n, p in module.named_parameters()}, losses


def of_layer(rank):
    for options in ({"z_loss": 1e-3, "shared": 1, "shared_gate": True}, {"router": "sigmoid_bias", "bias": True, "recompute": "expert"},
                    {"recompute": "layer", "capacity": 1.0}):
        batches = [batch(step) for step in range(STEPS)]
        want, _ = trained_alone(layer(**options), batches, lambda m, x: m(x))
        for stage in (1, 2, 3):
            run = engine(layer(**options), stage)
            for halves in batches:
                run.backward(run(halves[rank]))
                run.step()
            agree(whole(run.module), want)


def of_model(rank):
    """A model of transformers under ZeRO-3: patched before ZeRO and after it, the experts of a layer gathered together."""
    import torch
    import transformers
    from troupe_package import troupe
    deepspeed = deepspeed_here()

    def model():
        torch.manual_seed(1)
        return transformers.OlmoeForCausalLM(transformers.OlmoeConfig(
            hidden_size=32, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, vocab_size=64,
            num_experts=4, num_experts_per_tok=2, output_router_logits=True, pad_token_id=0, experts_implementation="grouped_mm"))

    def loss_of(m, ids):
        return m(input_ids=ids, labels=ids).loss

    torch.manual_seed(2)
    batches = [torch.randint(3, 64, (2, 2, 9)) for _ in range(20)]
    want, losses = trained_alone(model(), batches, loss_of, lr=1e-3)
    for late in (False, True):
        module = model()
        if not late:
            assert {r.path for r in troupe.patch(module)} == {"fused"}
        run = engine(module, 3, lr=1e-3)
        if late:
            report = troupe.patch(run.module)
            assert {r.path for r in report} == {"fused"} and sum(r.params for r in report) == 2 * 4 * 3 * 32 * 16
            kind = type(run.module.model.layers[0].mlp.experts)
            assert f"set_z3_leaf_modules(model, [{kind.__name__}])" in str(report)
            deepspeed.utils.set_z3_leaf_modules(run.module, [kind])
        for step, halves in enumerate(batches):
            loss = loss_of(run, halves[rank])
            assert abs(loss.item() - losses[2 * step + rank]) < 1e-5 * losses[2 * step + rank], (step, loss, losses)
            run.backward(loss)
            run.step()
        got = whole(run.module)
        for n, t in want.items():
            assert (got[n] - t).abs().max() < 1e-3 * t.abs().max(), n


def saved(rank):
    """A checkpoint of DeepSpeed's in the middle, loaded by another engine, goes on with the same bits."""
    batches, folder = [batch(step) for step in range(2 * STEPS)], os.environ["ZERO_FOLDER"]
    for stage in (1, 3):
        first, second = engine(layer(), stage), engine(layer(), stage)
        for step, halves in enumerate(batches):
            if step == STEPS:
                first.save_checkpoint(folder, tag=f"zero{stage}")
                second.load_checkpoint(folder, tag=f"zero{stage}")
            for run in (first, second) if step >= STEPS else (first,):
                run.backward(run(halves[rank]))
                run.step()
        for n, t in whole(first.module).items():
            assert whole(second.module)[n].equal(t), n


@unittest.skipUnless(importlib.util.find_spec("deepspeed"), "deepspeed is not here: see the head of this file")
class Ranks(two_ranks.TwoRanks):
    script = __file__

    def test_pym9_a_layer_under_zero_1_2_and_3_is_one_process(self):
        self.start("layer", DS_ACCELERATOR="cpu")

    def test_pym9_twenty_steps_of_a_patched_model_under_zero_3_have_grouped_mms_losses(self):
        self.start("model", DS_ACCELERATOR="cpu")

    def test_pym9_a_checkpoint_of_deepspeeds_goes_on_with_the_same_bits(self):
        with tempfile.TemporaryDirectory() as folder:
            self.start("saved", ZERO_FOLDER=folder, DS_ACCELERATOR="cpu")


def join():
    deepspeed_here().init_distributed("gloo", auto_mpi_discovery=False)


if __name__ == "__main__":
    two_ranks.main({"layer": of_layer, "model": of_model, "saved": saved}, join)
