#!/usr/bin/env python3
"""Tokens a second of `troupe generate` and of transformers' generate, the same model, greedy, on this CPU.

  .venv/bin/python bench/generation.py build/release/troupe --threads 2

Models of random weights in f32 are saved by transformers and imported. Both sides make the same number of tokens after the
same prompts, alone and eight texts together, in turns; medians over the rounds are printed. transformers runs with each of its
ways to compute experts; the fastest stands in the table. Times are of generation alone, prompts included: loading is not in
them. That both make the same text, tests/troupe_hub_test.py compares. With `--shared` texts begin with the same 256 tokens.
"""
import argparse
import json
import os
import pathlib
import random
import re
import statistics
import subprocess
import tempfile
import time

import torch
from transformers import AutoConfig, AutoModelForCausalLM

SHAPE = {"vocab_size": 512, "max_position_embeddings": 1024, "tie_word_embeddings": False}
MODELS = {
    "moe-small": ("mixtral", dict(SHAPE, hidden_size=256, num_hidden_layers=4, num_attention_heads=4,
                                  num_key_value_heads=4, intermediate_size=512, num_local_experts=8,
                                  num_experts_per_tok=2)),
    "moe-large": ("mixtral", dict(SHAPE, hidden_size=1024, num_hidden_layers=8, num_attention_heads=16,
                                  num_key_value_heads=4, intermediate_size=1024, num_local_experts=16,
                                  num_experts_per_tok=2)),
    "dense": ("llama", dict(SHAPE, hidden_size=512, num_hidden_layers=8, num_attention_heads=8,
                            num_key_value_heads=8, intermediate_size=1536)),
}
EXPERTS = ("eager", "batched_mm", "grouped_mm")


def save(name, folder):
    family, config = MODELS[name]
    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **config)).float()
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.normal_(std=0.05)
    model.save_pretrained(folder)


def prompts(count, shared):
    draw = random.Random(3)

    def letters(n):
        return "".join(draw.choices("abcdefghijklmnop ", k=n))
    start = letters(256) if shared else ""
    return [start + letters(32) for _ in range(count)]


def ours(program, folder, texts, tokens, threads):
    words = [str(program), "generate", "run", "--set", "data.tokenizer=bytes", "--temperature", "0", "-n", str(tokens),
             "--speed", "--set", f"run.threads={threads}"]
    for text in texts:
        words += ["-p", text]
    ran = subprocess.run(words, cwd=folder, capture_output=True, timeout=600, check=True,
                         env=dict(os.environ, OMP_NUM_THREADS=str(threads)))
    return float(re.search(rb": ([\d.]+) tokens/s", ran.stderr)[1])


def theirs(model, texts, tokens):
    ids = torch.tensor([list(text.encode()) for text in texts])
    with torch.no_grad():
        begin = time.perf_counter()
        model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, min_new_tokens=tokens,
                       do_sample=False, pad_token_id=0)
        return len(texts) * tokens / (time.perf_counter() - begin)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--batches", default="1,8")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shared", action="store_true")
    parser.add_argument("--alone", action="store_true", help="this program only")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    program = args.program.resolve()
    torch.set_num_threads(args.threads)
    for name in args.models.split(","):
        with tempfile.TemporaryDirectory() as folder:
            save(name, pathlib.Path(folder) / "hub")
            subprocess.run([str(program), "import", "hub", "run"], cwd=folder, check=True, capture_output=True)
            rivals = {}
            for way in () if args.alone else EXPERTS if MODELS[name][0] == "mixtral" else ("eager",):
                more = {"experts_implementation": way} if MODELS[name][0] == "mixtral" else {}
                rivals[way] = AutoModelForCausalLM.from_pretrained(f"{folder}/hub", dtype=torch.float32, **more).eval()
                theirs(rivals[way], prompts(1, False), 8)  # warm
            for batch in map(int, args.batches.split(",")):
                texts = prompts(batch, args.shared)
                speeds = {"troupe": []} | {way: [] for way in rivals}
                for _ in range(args.rounds):
                    speeds["troupe"].append(ours(program, folder, texts, args.tokens, args.threads))
                    for way, model in rivals.items():
                        speeds[way].append(theirs(model, texts, args.tokens))
                medians = {way: statistics.median(values) for way, values in speeds.items()}
                own = medians.pop("troupe")
                best = max(medians, key=medians.get, default=None)
                row = {"model": name, "batch": batch, "troupe": round(own, 1), "transformers": medians}
                if args.json:
                    print(json.dumps(row))
                elif best is None:
                    print(f"{name:10} batch {batch}  troupe {own:8.1f} tokens/s")
                else:
                    print(f"{name:10} batch {batch}  troupe {own:8.1f} tokens/s  transformers {medians[best]:8.1f} "
                          f"({best})  {own / medians[best]:.2f}x", flush=True)


if __name__ == "__main__":
    main()
