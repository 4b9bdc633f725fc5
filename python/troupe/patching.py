"""troupe.patch, unpatch and report: experts of a transformers model that is already built.

    print(troupe.patch(model))          # every experts module through Troupe, and what became of each
    print(troupe.report(model))         # the same table, changing nothing
    troupe.unpatch(model)

Weights, names and layouts stay. Decorated classes are switched by their configuration, as set_experts_implementation does;
the classes of troupe.undecorated by their module's forward."""
import contextlib
import functools
from typing import NamedTuple

import torch

from . import gates, hf, hf_lora, undecorated, words
from .checks import Unsupported
from .sharding import own_class, plain_weights

OTHER = ("Experts", "MegaBlocksMoeMLP", "ExpertsMLP")
MARKS = ("_troupe_before", "_troupe_keep", "_troupe_keep_name", "_troupe_place", "_troupe_binding")  # of a module


class Row(NamedTuple):
    name: str
    kind: str
    path: str       # fused, products, unsupported, or the implementation that runs instead of ours
    why: str
    layout: str
    copy_bytes: int
    dtype: str
    frozen: bool
    params: int


class Report(list):
    """Rows, one an experts module. Prints as a table in which equal neighbors are one line."""

    words = frozenset()
    partitioned = ()  # classes whose weights DeepSpeed's ZeRO-3 has taken apart

    def __str__(self):
        if not self:
            return "no experts found"
        lines, head = [], ("module", "class", "path", "layout", "dtype", "parameters", "copies", "why")
        groups = {}
        for r in self:
            groups.setdefault(r[1:], []).append(r.name)
        for key, names in groups.items():
            r = Row(names[0], *key)
            name = r.name if len(names) == 1 else f"{r.name} ... ({len(names)} modules)"
            lines.append((name, r.kind, r.path, r.layout, r.dtype + (" frozen" if r.frozen else ""),
                          f"{r.params * len(names):,}", f"{r.copy_bytes * len(names):,} bytes", r.why))
        widths = [max(len(x) for x in column) for column in zip(head, *lines)]
        table = [" ".join(x.ljust(w) for x, w in zip(line, widths)).rstrip() for line in (head, *lines)]
        if self.words:
            table.append("also replaced: " + ", ".join(sorted(self.words)))
        if self.partitioned:
            table.append("ZeRO-3 has the weights: deepspeed.utils.set_z3_leaf_modules(model, "
                         f"[{', '.join(kind.__name__ for kind in self.partitioned)}]) gathers all experts of a layer for its call, "
                         "also on a rank whose tokens chose none")
        return "\n".join(table)


def _named_experts(kind):
    return kind.endswith(OTHER) and "Shared" not in kind  # shared experts are one feed-forward for all tokens


def find_experts(model):
    """(path, module) of all that is or looks like experts."""
    blocks = []
    for name, module in model.named_modules():
        if any(name.startswith(block) for block in blocks):
            continue  # parts of Llama-4's and Aria's, whose weights the forward around them reads
        if undecorated.known(module):
            blocks.append(f"{name}." if name else "")
        if hf.is_decorated(module) or undecorated.known(module):
            yield name, module
        elif _named_experts(own_class(module).__name__.removeprefix("Parametrized")) and next(module.parameters(), None) is not None:
            yield name, module


def _layout(module, binding):
    if binding is None:
        return ""
    text = "columns" if binding.columns else "rows"
    return text + (", in turns" if binding.gate is not None and binding.gate.interleaved else "")


def _copy_bytes(module, binding):
    """Bytes of weights that a call copies into another layout: on a GPU what does not lie as rows; on a CPU none."""
    if binding is None or binding.path != "fused":
        return 0
    up, down = (getattr(module, name) for name in hf.weight_names(module))
    if not up.is_cuda:
        return 0
    copied = [up] * (binding.columns or binding.gate.interleaved) + [down] * binding.columns
    return sum(w.numel() * w.element_size() for w in copied)


def _row(name, module):
    module._troupe_place = name
    params = [p for p in module.parameters()]
    facts = {"name": name, "kind": own_class(module).__name__.removeprefix("Parametrized"), "layout": "", "copy_bytes": 0,
             "dtype": str(params[0].dtype).removeprefix("torch.") if params else "",
             "frozen": bool(params) and not any(p.requires_grad for p in params),
             "params": sum(getattr(p, "ds_numel", p.numel()) for p in params)}
    if undecorated.known(module):
        on = undecorated.is_on(module)
        return Row(path="fused" if on else "eager", why="" if on else "undecorated class: troupe.patch replaces its forward",
                   **facts)
    if not hf.is_decorated(module):
        return Row(path="other", why="transformers asks no registry here: experts_implementation has no effect on it", **facts)
    chosen = getattr(module.config, "_experts_implementation", None)
    keep = getattr(module, "_troupe_keep_name", None)
    try:
        binding = hf.bind(module)
    except Unsupported as refused:
        return Row(path="unsupported" if keep is None else keep, why=str(refused), **facts)
    facts.update(layout=_layout(module, binding), copy_bytes=_copy_bytes(module, binding))
    if chosen != hf.NAME:
        return Row(path=str(chosen), why="not ours: call troupe.patch(model)", **facts)
    return Row(path=binding.path, why=binding.why, **facts)


def _with_adapters(row, module, names):
    """Of experts that PEFT's wrapper is around: grouped products, between which the factors have their place (troupe.lora)."""
    if not names or row.path not in ("fused", "products"):
        return row
    if not all(hf_lora.takes(module, name) for name in names):
        return row._replace(why=f"PEFT adds the adapters of {', '.join(names)} to the weights at each call")
    return row._replace(path="products", why=f"adapters of {', '.join(names)} apart from the weights", copy_bytes=0)


def report(model):
    """What computes each experts module of the model, and why."""
    adapters = hf_lora.adapted_names(model)
    rows = Report(_with_adapters(_row(name, module), module, adapters.get(module)) for name, module in find_experts(model))
    rows.words = frozenset(model.__dict__.get("_troupe_undo", ()))
    rows.partitioned = tuple(sorted({type(m) for _, m in find_experts(model) if any(hasattr(p, "ds_id") for p in m.parameters())},
                                    key=lambda kind: kind.__name__))
    return rows


def _eager(module):
    """The class's own forward, as it was before transformers decorated it."""
    return getattr(type(module).forward, "__wrapped__", type(module).forward)


def _kept(name, module, *given):
    """What the module had: found by name at each call, since a class's own forward is copied and saved by none."""
    return hf.registries()[0].get_interface(name, _eager(module))(module, *given)


def _differs(module):
    """A message if the class's own forward and ours differ on four rows of this module's weights; else none."""
    names = hf.weight_names(module)
    weight = getattr(module, names[1])
    if hasattr(weight, "ds_id") and weight.dim() != 3:
        return None  # ZeRO-3 has them elsewhere
    if weight.device.type == "meta":
        return None
    with plain_weights(module):
        return _differs_now(module, getattr(module, names[1]))


def _differs_now(module, weight):
    E, D = weight.shape[0], weight.shape[2 if getattr(module, "is_transposed", False) else 1]
    generator = torch.Generator().manual_seed(0)
    K = min(2, E)
    x = torch.randn(4, D, generator=generator).to(weight.device, weight.dtype)
    ids = torch.stack([torch.randperm(E, generator=generator)[:K] for _ in range(4)]).to(weight.device)
    p = torch.rand(4, K, generator=generator).to(weight.device, weight.dtype)
    with torch.no_grad():
        want, got = _eager(module)(module, x, ids, p).double(), hf.experts(module, x, ids, p).double()
    tolerance = 3.2e-2 if weight.dtype in (torch.bfloat16, torch.float16) else 1e-5
    if not bool(want.isfinite().all()):
        return None  # weights that were never set
    worst = ((got - want).abs().max() / want.abs().max().clamp_min(1e-30)).item()
    return None if worst <= tolerance else f"its numbers differ from the class's own forward by {worst:.1e} of the largest"


def _check(found):
    seen, wrong = set(), {}
    for name, module in found:
        weight = getattr(module, hf.weight_names(module)[1])
        key = (type(module), tuple(weight.shape), weight.dtype)
        if key not in seen:
            seen.add(key)
            said = _differs(module)
            if said:
                wrong[name] = said
    return wrong


def _refuse_compiled(model):
    parts = (m for m in model.modules() if type(m).__name__ == "OptimizedModule" or m._compiled_call_impl is not None)
    if next(parts, None) is not None:
        raise Unsupported("the model is compiled: its graphs hold the experts that it had. Call troupe.patch(model) before "
                          "torch.compile.")


def _set_marks(module, marks):
    for name in MARKS:
        module.__dict__.pop(name, None)
    module.__dict__.update(marks)


@contextlib.contextmanager
def _whole_or_undone(model):
    """Where the body raises, the model's experts, words and marks become what they were."""
    before = [(m, {n: m.__dict__[n] for n in MARKS if n in m.__dict__}, undecorated.is_on(m),
               m.config._experts_implementation if hf.is_decorated(m) else None) for _, m in find_experts(model)]
    in_force = set(model.__dict__.get("_troupe_undo", ()))
    try:
        yield
    except BaseException:
        words.undo(model, keep=in_force)
        for module, marks, on, implementation in before:
            _set_marks(module, marks)
            if hf.is_decorated(module):
                module.config._experts_implementation_internal = implementation
            if not on:
                undecorated.switch_back(module)
        raise


def patch(model, what="experts", *, strict=True, check=True):
    """Switches the model's experts (and with `what` "all" or a set of words, more) to Troupe; returns a Report. Where it raises, the
    model is as it was.

    strict: raise, after listing all of them, if there are no experts or one cannot be computed. Otherwise such a module
    keeps what it had and the report says so. check: compare each class of experts with its own forward on four rows."""
    wanted = words.parse(what)
    _refuse_compiled(model)
    hf.register()
    with _whole_or_undone(model):
        _patch(model, list(find_experts(model)), wanted, strict, check, wanted if strict and what != "all" else set())
    return report(model)


def _patch(model, found, wanted, strict, check, named):
    faults = {}
    for name, module in found:
        module._troupe_place = name
        try:
            if undecorated.known(module):
                undecorated.check_adapters(module)
                continue
            if not hf.is_decorated(module):
                raise Unsupported(f"{name} ({type(module).__name__}) is a class that asks no registry for its forward. Keep "
                                  "it as it is with strict=False.")
            hf.bind(module)
        except Unsupported as refused:
            faults[name] = str(refused)
    if check:
        for name, said in _check([(n, m) for n, m in found if hf.is_decorated(m) and n not in faults]).items():
            faults[name] = f"{name}: {said}. Report this; strict=False keeps the module as it is."
    if strict and "experts" in wanted and (faults or not found):
        raise Unsupported("troupe.patch: " + ("the model has no experts. Is it a dense model?" if not found else
                                              "\n".join(faults.values())))
    if "experts" in wanted:
        for name, module in found:
            _switch(module, name in faults, [m for _, m in found if "_troupe_before" in m.__dict__])
    words.apply(model, wanted - {"experts"}, named)


def _switch(module, faulty, others):
    if undecorated.known(module):
        if not faulty:
            undecorated.switch(module)
        return
    if not hf.is_decorated(module):
        return
    config = module.config
    previous = config._experts_implementation
    if previous != hf.NAME:
        module._troupe_before = previous
    elif not hasattr(module, "_troupe_before"):  # another module of the same configuration, or made with the name
        module._troupe_before = next((m._troupe_before for m in others if m.config is config), "eager")
    if faulty:
        module._troupe_keep_name = module._troupe_before
        module._troupe_keep = functools.partial(_kept, module._troupe_before)
    config._experts_implementation_internal = hf.NAME


def unpatch(model):
    """Puts back what patch replaced, and ends what troupe.stats counts."""
    from . import loads  # which needs this file
    loads.stop(model)
    for _, module in find_experts(model):
        if undecorated.known(module):
            undecorated.switch_back(module)
        if "_troupe_before" in module.__dict__:
            module.config._experts_implementation_internal = module._troupe_before
        _set_marks(module, {})
    words.undo(model)
