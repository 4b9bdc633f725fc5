#!/usr/bin/env python3
"""A training step of a transformers model (OLMoE's) with PEFT's adapters on its experts, on a CPU: transformers' and PEFT's own way,
and experts by Troupe.

  PYTHONPATH=python TROUPE_LIBRARY=build/release/libtroupe.so python3 bench/hf_lora.py

A step is forward, loss, backward and AdamW of the adapters; the same weights and tokens. Each side has a process of its own: the median of the
steps after the first, in seconds of processor time (which a busy machine leaves alone; with one thread they are those of the clock on an idle
one), the memory that steps add at most to what the process had, and the last loss."""
import argparse
import importlib
import multiprocessing
import resource
import statistics
import sys
import time

SIDES = ("eager", "grouped_mm", "troupe")


def make(side, a):
    import peft
    import torch
    import transformers
    torch.manual_seed(1)
    config = transformers.OlmoeConfig(
        vocab_size=1024, hidden_size=a.width, intermediate_size=a.hidden, num_hidden_layers=a.layers, num_attention_heads=8,
        num_key_value_heads=8, num_experts=a.experts, num_experts_per_tok=a.top_k, eos_token_id=1)
    model = transformers.OlmoeForCausalLM._from_config(config, experts_implementation="grouped_mm" if side == "troupe" else side)
    if side == "troupe":
        import troupe
        troupe.patch(model, check=False)  # whose copy of four rows is not of a step
    return peft.get_peft_model(model, peft.LoraConfig(
        r=a.rank, target_modules=[], target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]))


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def one(side, a):
    import torch
    torch.set_num_threads(a.threads)
    model = make(side, a)
    adam = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    tokens = torch.randint(1024, (1, a.tokens), generator=torch.Generator().manual_seed(2))
    before, seconds = peak(), []
    for _ in range(a.steps):
        start = time.process_time()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        adam.step()
        adam.zero_grad()
        seconds.append(time.process_time() - start)
    print(f"{side:<12} {statistics.median(seconds[1:]):8.3f} CPU s a step {(peak() - before) / 2**20:8.0f} MiB added   loss {loss.item():.5f}",
          flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("width", 256), ("hidden", 256), ("experts", 32), ("top-k", 4), ("layers", 2), ("tokens", 256), ("rank", 16),
                        ("steps", 5), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    for name in ("peft", "transformers", "troupe"):  # once, before the processes part
        importlib.import_module(name)
    for side in SIDES:
        run = multiprocessing.get_context("fork").Process(target=one, args=(side, args))
        run.start()
        run.join()
        if run.exitcode:
            return run.exitcode
    return 0


if __name__ == "__main__":
    sys.exit(main())
