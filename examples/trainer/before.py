#!/usr/bin/env python3
"""Trains an OLMoE on the bytes of a text with transformers' Trainer, and prints each step's loss:

    python examples/trainer/before.py README.md
    python examples/trainer/after.py README.md

after.py is before.py with three lines of Troupe: one changed, two more."""
import argparse
import pathlib
import tempfile
from typing import Any

import torch
from transformers import AutoModelForCausalLM, OlmoeConfig, Trainer, TrainingArguments, set_seed

SIZES: dict[str, tuple[int, int, dict[str, Any]]] = {  # sequences and tokens of a step; the model
    "small": (8, 128, dict(hidden_size=64, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=256,
                           num_experts=8, num_experts_per_tok=2)),
    "olmoe-60m": (4, 512, dict(hidden_size=384, intermediate_size=384, num_hidden_layers=8, num_attention_heads=6,
                               vocab_size=4096, num_experts=16, num_experts_per_tok=4)),
}


def samples(text: bytes, count: int, tokens: int) -> list[dict[str, torch.Tensor]]:
    """`count` pieces of the text, each of `tokens` bytes."""
    ids = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    pieces = [ids[i:i + tokens] for i in torch.randint(len(ids) - tokens + 1, (count,)).tolist()]
    return [{"input_ids": piece, "labels": piece} for piece in pieces]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    sequences, tokens, sizes = SIZES[args.size]
    set_seed(1)
    config = OlmoeConfig(**sizes, output_router_logits=True, use_cache=False, pad_token_id=None, eos_token_id=None)
    model = AutoModelForCausalLM.from_config(config)
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(folder, max_steps=args.steps, per_device_train_batch_size=sequences, learning_rate=1e-3,
                                     lr_scheduler_type="constant", logging_steps=1, save_strategy="no", report_to="none",
                                     disable_tqdm=True)
        data = samples(args.text.read_bytes(), args.steps * sequences, tokens)
        trainer = Trainer(model, settings, train_dataset=data)
        seconds = trainer.train().metrics["train_runtime"]
    for row in trainer.state.log_history[:-1]:
        print(f"step {row['step']} loss {row['loss']:.7f}")
    print(f"{args.steps * sequences * tokens / seconds:,.0f} tokens/s")


if __name__ == "__main__":
    main()
