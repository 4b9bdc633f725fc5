#!/usr/bin/env python3
"""troupe.patch of a transformers model that fully_shard (FSDP2) has divided: two Gloo processes beside the unpatched model."""
import sys
import unittest

import two_ranks

try:
    import transformers
except ImportError:
    transformers = None

EOS = {"pad_token_id": 0, "eos_token_id": 1}


def olmoe():
    config = transformers.OlmoeConfig(vocab_size=64, hidden_size=32, intermediate_size=16, num_hidden_layers=2, num_attention_heads=4,
                                      num_key_value_heads=4, num_experts=4, num_experts_per_tok=2, output_router_logits=True, **EOS)
    return transformers.OlmoeForCausalLM._from_config(config, experts_implementation="eager")


def dbrx():
    """Experts that ask no registry."""
    config = transformers.DbrxConfig(d_model=32, n_heads=4, n_layers=2, max_seq_len=64, vocab_size=64,
                                     attn_config={"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 1e4},
                                     ffn_config={"ffn_hidden_size": 16, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 32}, **EOS)
    return transformers.DbrxForCausalLM._from_config(config)


def sharded(make, experts_apart):
    import torch
    from torch.distributed.fsdp import fully_shard
    from troupe_package import troupe
    torch.manual_seed(0)
    model = make()
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(std=0.1)  # some classes leave theirs as they came
    for name, experts in list(troupe.patching.find_experts(model)) if experts_apart else ():
        assert name.endswith("experts"), name
        fully_shard(experts)
    decoder = model.get_decoder()
    for layer in getattr(decoder, "layers", None) or decoder.blocks:
        fully_shard(layer)
    return fully_shard(model)


def steps(model, rank):
    """Two steps' losses and, of the first, gradients."""
    import torch
    sgd, losses, grads = torch.optim.SGD(model.parameters(), lr=0.5), [], {}
    for step in range(2):
        ids = torch.randint(2, 64, (2, 9), generator=torch.Generator().manual_seed(2 * step + rank))
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        grads = grads or {n: p.grad.full_tensor() for n, p in model.named_parameters()}
        sgd.step()
        sgd.zero_grad()
        losses.append(loss.detach())
    return losses, grads


def beside_the_unpatched(rank):
    import torch
    from torch.distributed.tensor import DTensor
    from troupe_package import troupe
    test = unittest.TestCase()
    for make, what, apart in ((olmoe, "experts", False), (olmoe, "all", True), (dbrx, "experts", True)):
        plain, model = sharded(make, apart), sharded(make, apart)
        before = {n: (p, p.placements) for n, p in model.named_parameters()}
        report = troupe.patch(model, what)
        test.assertEqual([row.path for row in report], ["fused"] * 2)
        test.assertFalse([row.kind for row in report if row.kind.startswith("FSDP")])
        for name, p in model.named_parameters():
            test.assertTrue(isinstance(p, DTensor) and p is before[name][0] and p.placements == before[name][1], name)
        if what == "all":
            test.assertEqual(report.words, {"attention", "router", "loss", "norm", "rotary"})
            home = sys.modules[transformers.OlmoeForCausalLM.__module__]
            for name in ("load_balancing_loss_func", "apply_rotary_pos_emb"):
                test.assertTrue(hasattr(getattr(home, name), "_troupe_users"), name)
            troupe.unpatch(model)  # the function of the file is of both models: each runs with its own
            want = steps(plain, rank)
            troupe.patch(model, what)
        else:
            want = steps(plain, rank)
        got = steps(model, rank)
        for a, b in zip(got[0], want[0], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
        for name, grad in want[1].items():
            torch.testing.assert_close(got[1][name], grad, rtol=1e-4, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")
        for (name, p), q in zip(model.named_parameters(), plain.parameters(), strict=True):
            test.assertIsInstance(p, DTensor)
            torch.testing.assert_close(p.full_tensor(), q.full_tensor(), rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
        troupe.unpatch(model)
        test.assertNotEqual(troupe.report(model)[0].path, "fused")


def faults_are_found(rank):
    """A class whose numbers are others is refused, without a wait for the other rank, and the weights are those that were."""
    from torch.distributed.tensor import DTensor
    from troupe_package import troupe
    test = unittest.TestCase()
    model = sharded(olmoe, False)
    held = list(model.parameters())
    if rank == 1:
        return
    kind = type(model.model.layers[0].mlp.experts)
    own = kind.forward.__wrapped__
    kind.forward.__wrapped__ = lambda self, *given: own(self, *given) * 1.5
    with test.assertRaisesRegex(troupe.Unsupported, "its numbers differ from the class's own forward"):
        troupe.patch(model)
    kind.forward.__wrapped__ = own
    test.assertTrue(all(p is q and isinstance(p, DTensor) for p, q in zip(model.parameters(), held, strict=True)))
    test.assertEqual(model.config._experts_implementation, "eager")
    troupe.patch(model)


@unittest.skipIf(transformers is None, "transformers is not installed")
class Sharded(two_ranks.TwoRanks):
    script = __file__

    def test_a_sharded_model_is_patched_and_trains_as_the_unpatched_one(self):
        self.start("beside")

    def test_a_fault_is_told_by_one_rank_and_undone(self):
        self.start("faults")


def join():
    import torch
    torch.distributed.init_process_group("gloo")


if __name__ == "__main__":
    two_ranks.main({"beside": beside_the_unpatched, "faults": faults_are_found}, join)
