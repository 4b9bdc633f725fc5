"""What each module of a model computes, in a file beside which `troupe diff --modules` puts ours.

    troupe.record_modules(model, input_ids, "outputs.safetensors")           # any model of PyTorch
    python -m troupe.modules FOLDER -o outputs.safetensors --ids 5 17 3 9    # a folder of transformers, in fp32
    troupe diff --modules runs/mine outputs.safetensors

The file holds `input_ids` [B, S] and a tensor for each module whose output has a row for each token, under the module's name. No padding:
every token is seen."""
import argparse
import os
import random
from collections.abc import Sequence
from typing import Any

import torch


def _tensors(output):
    if isinstance(output, torch.Tensor):
        return [output]
    parts = output.values() if isinstance(output, dict) else output if isinstance(output, (tuple, list)) else ()
    return [t for part in parts for t in _tensors(part)]


def _output(module, output, ids):
    """The tensor of a module's output that has a row for each token; of a router its scores of all experts. None: there is none."""
    rows, columns = ids.shape
    found = [t for t in _tensors(output) if t.is_floating_point() and t.dim() > 1
             and (t.shape[:2] == (rows, columns) or t.shape[0] == rows * columns)]
    experts = getattr(module, "num_experts", None)
    scores = [t for t in found if t.shape[-1] == experts]
    return next(iter(scores or found), None)


def record_modules(model: torch.nn.Module, input_ids: torch.Tensor | Sequence[int] | Sequence[Sequence[int]],
                   path: str | os.PathLike[str], **options: Any) -> list[str]:
    """Calls model(input_ids, **options) without training and writes what its modules gave. Returns the names, in the order of computation;
    of a module that is called twice, the first call counts."""
    from safetensors.torch import save_file
    ids = torch.as_tensor(input_ids)
    if ids.dim() == 1:
        ids = ids[None]
    if ids.dim() != 2 or not ids.numel() or ids.is_floating_point():
        raise ValueError(f"troupe.record_modules: input_ids must be whole numbers [B, S]; they are {ids.dtype} {list(ids.shape)}")
    kept = {}

    def hook(name):
        def keep(module, _, output):
            if name not in kept and (y := _output(module, output, ids)) is not None:
                kept[name] = y.detach().to("cpu", copy=True).contiguous()
        return keep

    modes = {module: module.training for module in model.modules()}
    hooks = [module.register_forward_hook(hook(name)) for name, module in model.named_modules() if name]
    try:
        model.eval()
        device = next((p.device for p in model.parameters()), ids.device)
        with torch.no_grad():
            model(ids.to(device), **options)
    finally:
        for handle in hooks:
            handle.remove()
        for module, training in modes.items():
            module.training = training
    save_file({**kept, "input_ids": ids.to("cpu", torch.int64).contiguous()}, str(path), {"format": "pt", "class": type(model).__name__})
    return list(kept)


def main(words=None):
    parser = argparse.ArgumentParser(prog="python -m troupe.modules", description="Writes what each module of a transformers model computes.")
    parser.add_argument("folder", help="what AutoModelForCausalLM.from_pretrained takes; it is loaded in fp32")
    parser.add_argument("-o", "--output", required=True, help="the file, outputs.safetensors")
    parser.add_argument("--ids", type=int, nargs="+", help="tokens, one row; default: 32 drawn ones, always the same")
    given = parser.parse_args(words)
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained(given.folder, dtype=torch.float32)
    vocab = model.get_input_embeddings().num_embeddings
    ids = given.ids or random.Random(1).choices(range(vocab), k=32)
    if bad := [i for i in ids if not 0 <= i < vocab]:
        parser.error(f"--ids: {bad[0]} is not a token of the model, which has {vocab}")
    print(f"{given.output}: {len(record_modules(model, ids, given.output, use_cache=False))} modules, {len(ids)} tokens")


if __name__ == "__main__":
    main()
