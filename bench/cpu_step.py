"""Whole training steps on the CPU: `troupe train` against transformers' Mixtral in a plain PyTorch loop.

The quickstart's model: width 192, 4 layers, 8 experts, top 2 of width 192, vocabulary 2048, batches of
8 x 256 tokens, fp32, AdamW, clipping, balance loss. Both run the same number of steps in turns on
random tokens; told is the median step, without the first five.

  .venv/bin/python bench/cpu_step.py build/release/troupe [--rounds 2] [--steps 20]
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile
import time

import torch
from transformers import MixtralConfig, MixtralForCausalLM

RECIPE = """
model: {{layers: 4, width: 192, heads: 6, vocab: 2048, max_positions: 256,
        moe: {{experts: 8, top_k: 2, hidden: 192, router: {{balance: {{aux_loss: 0.01}}}}}}}}
data: {{train: [{{kind: mock}}], sequence: 256}}
train: {{global_batch: 8, micro_batch: 8, steps: {steps}, precision: fp32, clip: 1,
        optimizer: {{lr: 1e-3, weight_decay: 0.1}}, schedule: {{warmup: 5}}}}
checkpoint: {{dir: {run}, every: 0s}}
run: {{device: cpu}}
"""
WARM = 5


def ours(program, steps):
    with tempfile.TemporaryDirectory() as folder:
        recipe = pathlib.Path(folder, "recipe.yaml")
        recipe.write_text(RECIPE.format(steps=steps, run=folder + "/run"))
        subprocess.run([program, "train", str(recipe), "--quiet"], check=True)
        rows = [json.loads(line) for line in open(folder + "/run/log.jsonl")]
    rows = [row for row in rows if "event" not in row][WARM:]
    for part in ("forward_s", "backward_s", "update_s"):
        print(f"    {part} {1e3 * statistics.median(row[part] for row in rows):.1f} ms")
    return statistics.median(row["step_s"] for row in rows)


def theirs(steps, implementation):
    torch.manual_seed(0)
    config = MixtralConfig(hidden_size=192, intermediate_size=192, num_hidden_layers=4,
                           num_attention_heads=6, num_key_value_heads=6, num_local_experts=8,
                           num_experts_per_tok=2, vocab_size=2048, max_position_embeddings=256,
                           router_aux_loss_coef=0.01, output_router_logits=True, use_cache=False,
                           tie_word_embeddings=False, sliding_window=None,
                           experts_implementation=implementation)
    model = MixtralForCausalLM(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, fused=True)
    seconds = []
    for _ in range(steps):
        ids = torch.randint(0, 2048, (8, 256))
        begin = time.perf_counter()
        model(input_ids=ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds[WARM:])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    best = {}
    for _ in range(options.rounds):
        runs = {"troupe": lambda: ours(options.program, options.steps)}
        for kind in ("eager", "grouped_mm"):
            runs["transformers, " + kind] = lambda kind=kind: theirs(options.steps, kind)
        for name, run in runs.items():
            seconds = run()
            best[name] = min(best.get(name, seconds), seconds)
            print(f"{name}: {1e3 * seconds:.1f} ms a step, {2048 / seconds:.0f} tokens/s")
    fastest = min(v for k, v in best.items() if k != "troupe")
    print(f"troupe is {fastest / best['troupe']:.2f} times as fast as the faster of the others")


if __name__ == "__main__":
    main()
