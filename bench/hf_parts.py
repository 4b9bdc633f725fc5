"""What bench/hf_step.py's ways of timing share: the model, the optimizer, SonicMoE's package in its place, the table."""
import inspect
import statistics


def put_sonicmoe_in_place():
    """transformers would fetch a hub kernel; the package has the same entry points, which refuse to be traced: in a graph
    the call is one node, whose operators (with shapes of their own) PyTorch then sees."""
    import sonicmoe
    import torch
    from sonicmoe.enums import ActivationType
    from transformers.integrations import sonicmoe as theirs
    run = sonicmoe.moe_general_routing_inputs
    known = inspect.signature(run).parameters

    @torch._dynamo.allow_in_graph
    def call(*arguments, **options):
        return run(*arguments, **{k: v for k, v in options.items() if k in known})

    theirs._SONICMOE = theirs.SonicMoE(activation_type_enum=ActivationType, moe_general_routing_inputs=call)


def implementation_of(side):
    """(what transformers is to call, whether under torch.compile)"""
    name = side.removesuffix("-compiled")
    return {"compiled": "grouped_mm"}.get(name, name), side.endswith("compiled")


def make_model(m, device, implementation):
    import torch
    from transformers import OlmoeConfig, OlmoeForCausalLM
    config = OlmoeConfig(hidden_size=m["d"], intermediate_size=m["hidden"], num_hidden_layers=m["layers"],
                         num_attention_heads=m["heads"], num_key_value_heads=m["heads"], vocab_size=m["vocab"],
                         num_experts=m["experts"], num_experts_per_tok=m["k"], max_position_embeddings=m["tokens"],
                         output_router_logits=True, router_aux_loss_coef=0.01, pad_token_id=None, use_cache=False,
                         bos_token_id=1, eos_token_id=2)
    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16 if device == "cuda" else torch.float32)
    with torch.device(device):
        model = OlmoeForCausalLM._from_config(config, experts_implementation=implementation,
                                              attn_implementation="sdpa").train()
    torch.set_default_dtype(torch.float32)
    return model


def adamw(model):
    import torch
    return torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)


def apart(runs, first, key):
    """The largest relative difference of a side from the first side, in words."""
    if runs[0] is first:
        return "the first side's"
    worst = max(abs(a - b) / abs(b) for a, b in zip(runs[0][key], first[key], strict=True))
    return f"within {worst:.1e}" if worst else "the same numbers"


def say(found, m, title):
    tokens = m["sequences"] * m["tokens"]
    medians = {side: statistics.median(t for r in runs for t in r["times"]) for side, runs in found.items()}
    rivals = {side: s for side, s in medians.items() if not side.startswith("troupe")}
    best = min(rivals.values()) if rivals else None
    first = next(iter(found.values()))[0]
    print(f"\n{title}")
    for side, seconds in sorted(medians.items(), key=lambda item: item[1]):
        ratio = f"{best / seconds:.2f}x the best rival's speed, " if side.startswith("troupe") and best else ""
        print(f"  {side:22} {1e3 * seconds:9,.1f} ms  {tokens / seconds:9,.0f} tokens/s  {ratio}"
              f"peak {found[side][0]['peak'] / 2**30:.2f} GiB, processor "
              f"{statistics.median(t for r in found[side] for t in r['work']):.2f} s a step; losses "
              f"{apart(found[side], first, 'losses')}, gradient norms {apart(found[side], first, 'norms')}")
