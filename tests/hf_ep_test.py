#!/usr/bin/env python3
"""ep_implementation="troupe" in transformers' own expert parallelism: two and four Gloo processes, with and without tensor
parallelism, beside transformers' "all_to_all" and beside one process. Needs transformers 5.23: takes the newest where ./dev
setup has put it."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import newest_transformers  # isort: skip
from ports import free_port

HERE = pathlib.Path(__file__).resolve().parent
# ranks: (tensor-parallel, expert-parallel)
LAYOUTS = {2: ((1, 2), (2, 2)), 4: ((1, 4), (2, 2), (2, 4))}


def has_ep():
    try:
        from transformers.distributed.expert_parallel import EPImplementationInterface
    except ImportError:
        return False
    return EPImplementationInterface is not None


def save_model(folder):
    import torch
    import transformers
    torch.manual_seed(0)
    config = transformers.OlmoeConfig(vocab_size=64, hidden_size=32, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
                                      num_key_value_heads=4, num_experts=8, num_experts_per_tok=3, pad_token_id=0, eos_token_id=1)
    model = transformers.OlmoeForCausalLM(config)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.1)
    model.save_pretrained(folder)


def batch_of(group):
    import torch
    torch.manual_seed(10 + group)
    return torch.randint(1, 64, (2, 7))


def whole(t):
    return t.full_tensor() if hasattr(t, "full_tensor") else t


def run(folder, tokens, **options):
    """(loss, logits, gradients by name) of one pass."""
    import transformers
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, **options)
    out = model(input_ids=tokens, labels=tokens)
    out.loss.backward()
    return whole(out.loss).detach(), whole(out.logits).detach(), {n: whole(p.grad) for n, p in model.named_parameters()}


def rank_main(folder):
    sys.path.insert(0, str(HERE))
    import troupe_package  # registers the name
    torch = troupe_package.troupe.torch
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    for tp, ep in LAYOUTS[torch.distributed.get_world_size()]:
        one_layout(folder, tp, ep)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def one_layout(folder, tp, ep):
    import torch
    from transformers.distributed import DistributedConfig
    from transformers.distributed.expert_parallel import EPImplementationInterface
    kind, calls = EPImplementationInterface()["troupe"], []
    own = kind.__call__
    kind.__call__ = lambda self, *arguments: calls.append(1) or own(self, *arguments)
    ranks, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
    tokens = batch_of(rank // tp)
    said = {}
    for name in ("all_to_all", "troupe"):
        config = DistributedConfig(tp_size=tp, fsdp_size=ranks // tp, ep_size=ep, ep_implementation=name)
        said[name] = run(folder, tokens, distributed_config=config)
    kind.__call__ = own
    assert len(calls) == 2, (tp, ep, calls)  # a layer each
    alone = run(folder, tokens, experts_implementation="eager")
    for a, b in ((said["troupe"], said["all_to_all"]), (said["troupe"][:2], alone[:2])):
        torch.testing.assert_close(a[0], b[0], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(a[1], b[1], rtol=1e-4, atol=1e-5)
    for n, g in said["troupe"][2].items():
        torch.testing.assert_close(g, said["all_to_all"][2][n], rtol=1e-4, atol=1e-6, msg=lambda m, n=n: f"tp {tp}, ep {ep}, {n}: {m}")


def setUpModule():
    newest_transformers.check()


@unittest.skipUnless(has_ep(), "this transformers has no EPImplementationInterface (5.23 has)")
class Ranks(unittest.TestCase):
    def test_pyh14_the_exchange_is_transformers_own_and_one_process(self):
        with tempfile.TemporaryDirectory() as folder:
            save_model(folder)
            for ranks in LAYOUTS:
                with self.subTest(ranks=ranks):
                    env = {**os.environ, "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
                           "OMP_NUM_THREADS": "1"}
                    runs = [subprocess.Popen([sys.executable, __file__, "--rank", folder], stdout=subprocess.PIPE,
                                             stderr=subprocess.STDOUT, text=True,
                                             env={**env, "RANK": str(r), "LOCAL_RANK": str(r)}) for r in range(ranks)]
                    for one in runs:
                        self.addCleanup(one.kill)
                    said = [one.communicate(timeout=300)[0] for one in runs]
                    self.assertEqual([one.returncode for one in runs], [0] * ranks, "\n".join(said))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        rank_main(sys.argv[2])
    else:
        unittest.main()
