"""The mask of a traced model: a part of troupe.patch's word `attention`.

A trace sees neither whether tokens are padded nor whether positions begin anew, so under torch.compile transformers makes a
mask of its causal models and attention computes the whole square. Where the caller gave no mask, no positions and no cache,
what a query leaves out is what comes after it, and nothing else: then there is no mask, as there is none without
torch.compile. Exported programs keep theirs: they are called with other lengths, one token too."""
import functools
import inspect

import torch

from .sharding import own_class

NAME = "create_causal_mask"
GIVEN = ("attention_mask", "position_ids", "past_key_values", "cache_position")
MADE_OF = {"config", "inputs_embeds", "input_embeds", *GIVEN}
_traced = {"plain": False}  # inside the forward of a model that was given none of GIVEN


def without_mask(before):
    """The model file's create_causal_mask, which makes none where it would be causal alone."""
    def create_causal_mask(*arguments, **options):
        plain = _traced["plain"] and not arguments and all(n in MADE_OF or options[n] is None for n in options)
        if plain and options.get("attention_mask") is None and getattr(options["config"], "is_causal", True):
            return None
        return before(*arguments, **options)
    return create_causal_mask


def _forward(module, *arguments, **options):
    own = type(module).forward
    # is_exporting() is true in every trace of PyTorch 2.11; what it reads elsewhere is not.
    if not torch.compiler.is_compiling() or torch.compiler._is_exporting_flag:
        return own(module, *arguments, **options)
    before = _traced["plain"]
    _traced["plain"] = len(arguments) < 2 and all(options.get(name) is None for name in GIVEN)
    try:
        return own(module, *arguments, **options)
    finally:
        _traced["plain"] = before


def makers(model):
    """The modules of a model that make its causal mask."""
    for module in model.modules():
        code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
        if code is not None and NAME in code.co_names and "forward" not in module.__dict__:
            yield module


def replace(model, share):
    """`share(home, name)` replaces a function of a model's file and returns what puts it back; returns how to put all
    back."""
    found = list(makers(model))
    homes = {own_class(module).__module__ for module in found}
    backs = [back for back in (share(home, NAME) for home in sorted(homes)) if back is not None]
    for module in found:
        forward = functools.partial(_forward, module)
        forward.__signature__ = inspect.signature(module.forward)
        module.forward = forward
    return functools.partial(_put_back, found, backs)


def own_forwards(modules):
    for module in modules:
        del module.forward


def _put_back(modules, backs):
    own_forwards(modules)
    for back in backs:
        back()
