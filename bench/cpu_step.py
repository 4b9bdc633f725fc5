#!/usr/bin/env python3
"""A whole training step on the CPU: Troupe beside Hugging Face transformers in a plain torch loop.

  .venv/bin/python bench/cpu_step.py [--build build/release] [--rounds N] [--threads N] [MODEL...]

Forward, loss with the balance loss, backward, clipping and AdamW, fp32, on the same shapes. The
rival takes SDPA, the fused AdamW, and each implementation of the experts that runs on a CPU; the
fastest counts. Rounds are interleaved; medians are printed.
"""
import argparse
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

import torch
from transformers import OlmoeConfig, OlmoeForCausalLM

MODELS = {  # name: (rows, tokens, width, layers, heads, experts, k, hidden, vocab)
    "quickstart": (8, 256, 192, 4, 6, 8, 2, 192, 2048),
    "olmoe-60m": (4, 512, 384, 8, 6, 16, 4, 384, 4096),
}
RIVALS = ("eager", "grouped_mm", "batched_mm")


class Rival:
    def __init__(self, shape, implementation):
        rows, tokens, d, layers, heads, experts, k, hidden, vocab = shape
        config = OlmoeConfig(hidden_size=d, num_hidden_layers=layers, num_attention_heads=heads,
                             num_key_value_heads=heads, intermediate_size=hidden,
                             num_experts=experts, num_experts_per_tok=k, vocab_size=vocab,
                             max_position_embeddings=tokens, output_router_logits=True,
                             router_aux_loss_coef=0.01, use_cache=False, pad_token_id=None,
                             attn_implementation="sdpa", experts_implementation=implementation)
        config._experts_implementation = implementation
        torch.manual_seed(1)
        self.model = OlmoeForCausalLM(config).train()
        self.adam = torch.optim.AdamW(self.model.parameters(), lr=1e-3, weight_decay=0.1, fused=True)
        self.ids = torch.randint(vocab, (rows, tokens))

    def step(self):
        start = time.perf_counter()
        loss = self.model(input_ids=self.ids, labels=self.ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)
        return time.perf_counter() - start


class Ours:
    def __init__(self, shape, program, threads, folder):
        rows, tokens, d, layers, heads, experts, k, hidden, vocab = shape
        recipe = pathlib.Path(folder, "model.yaml")
        recipe.write_text(
            f"{{layers: {layers}, width: {d}, heads: {heads}, vocab: {vocab}, qk_norm: whole, "
            f"norm: {{kind: rms_rounded}}, max_positions: {tokens}, moe: {{experts: {experts}, "
            f"top_k: {k}, hidden: {hidden}, router: {{kind: topk_softmax, order: before, balance: "
            "{aux_loss: 0.01}}}}")
        self.process = subprocess.Popen(
            [program, recipe, str(rows), str(tokens)], text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, env=os.environ | {"OMP_NUM_THREADS": str(threads)})

    def step(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline().split()[0])


def compare(name, options):
    shape = MODELS[name]
    tokens = shape[0] * shape[1]
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(options.build, "model_step").resolve()
        runs = {r: Rival(shape, r) for r in options.rivals.split(",")}
        runs["troupe"] = Ours(shape, program, options.threads, folder)
        times = {r: [] for r in runs}
        for i in range(options.rounds + 1):
            for r, run in runs.items():
                seconds = run.step()
                if i > 0:
                    times[r].append(seconds)
    rate = {r: tokens / statistics.median(t) for r, t in times.items()}
    print(f"{name}: " + ", ".join(f"{r} {x:.0f}" for r, x in rate.items()) + " tokens/s; troupe is "
          f"{rate['troupe'] / max(x for r, x in rate.items() if r != 'troupe'):.2f}x the fastest")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rivals", default=",".join(RIVALS))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for model in arguments.models:
        compare(model, arguments)
