"""Megatron's names and layouts -> those of Hugging Face, as a table: each tensor of theirs, its shape, and what it is made
of. What the table does not use is left over, and an error."""
import re

import torch

from .tensors import Fault, Tensor, listed

OLD = [(r"^language_model\.", ""), (r"^(encoder|transformer)\.", "decoder."), (r"^embedding\.", "embedding."),
       (r"\.query_key_value\.", ".linear_qkv."), (r"\.(self_)?attention\.dense\.", ".self_attention.linear_proj."),
       (r"\.attention\.", ".self_attention."), (r"\.dense_h_to_4h\.", ".linear_fc1."),
       (r"\.dense_4h_to_h\.", ".linear_fc2."), (r"\.input_norm\.", ".input_layernorm."),
       (r"\.post_attention_(layer)?norm\.", ".pre_mlp_layernorm."), (r"^decoder\.final_norm\.", "decoder.final_layernorm."),
       (r"^word_embeddings_for_head\.", "output_layer.")]
# Experts' names, of every class and format, in one form: mlp.experts.E.linear_fc1.weight
FORMS = [(r"\.mlp\.experts\.(?:local_)?experts\.(\d+)\.", r".mlp.experts.\1."),
         (r"\.mlp\.experts\.(linear_fc[12]\.(?:weight|bias))(\d+)$", r".mlp.experts.\2.\1")]
STACKED = re.compile(r"^((?:decoder|mtp)\.layers)\.(?!\d)(.+)$")
TOGETHER = re.compile(r"^(.*\.mlp\.experts)\.experts\.(linear_fc[12]\..*)$")


def is_megatron(names):
    return any(re.search(r"\b(linear_qkv|query_key_value|linear_fc1|dense_h_to_4h|linear_kv_up_proj)\.", n) for n in names)


def unstacked(tensors):
    """One tensor a layer and expert, under today's names."""
    out = {}

    def put(name, tensor):
        for pattern, form in FORMS:
            name = re.sub(pattern, form, name)
        if name in out:
            raise Fault(f"{tensor.where}: {name} is there twice, also as {out[name].where}")
        out[name] = tensor

    def experts(name, tensor):
        if at := TOGETHER.match(name):
            for i in range(tensor.shape[0]):
                put(f"{at[1]}.{i}.{at[2]}", tensor.at(i))
        else:
            put(name, tensor)

    for name, tensor in tensors.items():
        name = re.sub(r"^(module\.|model\.)+(?=language_model|embedding|decoder|output_layer|mtp|encoder)", "", name)
        for pattern, new in OLD:
            name = re.sub(pattern, new, name)
        if at := STACKED.match(name):
            for i in range(tensor.shape[0]):
                experts(f"{at[1]}.{i}.{at[2]}", tensor.at(i))
        else:
            experts(name, tensor)
    return out


def config_of(args, dtype):
    """config.json, out of the arguments that Megatron saved."""
    def need(name, value, *good):
        if value not in good:
            raise Fault(f"the saved arguments: {name} is {value!r}, and no family read here has it "
                        f"({listed(map(str, good))} is). Give the config.json of this model, if it is one of them: "
                        "--config; or --raw writes the tensors as they are")
    mla, moe = bool(args.multi_latent_attention), (args.num_experts or 0) > 0
    need("swiglu", bool(args.swiglu), True)
    need("normalization", args.normalization, "RMSNorm")
    need("position_embedding_type", args.position_embedding_type, "rope")
    need("rotary_interleaved", bool(args.rotary_interleaved), False)
    need("rotary_percent", args.rotary_percent or 1.0, 1.0)
    need("apply_layernorm_1p", bool(args.apply_layernorm_1p), False)
    need("window_size", args.window_size, None)
    need("moe_shared_expert_gate", bool(args.moe_shared_expert_gate), False)
    heads = args.num_attention_heads
    config = {"vocab_size": args.vocab_size or args.padded_vocab_size, "hidden_size": args.hidden_size,
              "num_hidden_layers": args.num_layers, "num_attention_heads": heads,
              "num_key_value_heads": args.num_query_groups if args.group_query_attention else heads,
              "max_position_embeddings": args.max_position_embeddings or args.seq_length,
              "rms_norm_eps": args.norm_epsilon or 1e-5, "rope_theta": float(args.rotary_base or 10000),
              "hidden_act": "silu", "tie_word_embeddings": not args.untie_embeddings_and_output_weights,
              "attention_bias": bool(args.add_bias_linear), "dtype": str(dtype).removeprefix("torch."),
              "intermediate_size": args.ffn_hidden_size, "rope_scaling": None}
    if mla:
        return {**config, **latent(args, need)}
    config["head_dim"] = args.kv_channels or args.hidden_size // heads
    if args.use_rope_scaling:
        config["rope_scaling"] = {"rope_type": "llama3", "factor": args.rope_scaling_factor or 8.0, "low_freq_factor": 1.0,
                                  "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    if not moe:
        need("add_qkv_bias", bool(args.add_qkv_bias), bool(args.add_bias_linear))
        need("qk_layernorm", bool(args.qk_layernorm), False)
        return {"model_type": "llama", **config, "mlp_bias": bool(args.add_bias_linear)}
    need("add_bias_linear", bool(args.add_bias_linear), False)
    need("add_qkv_bias", bool(args.add_qkv_bias), False)
    need("moe_router_score_function", args.moe_router_score_function or "softmax", "softmax")
    need("moe_shared_expert_intermediate_size", args.moe_shared_expert_intermediate_size, None)
    need("moe_router_topk_scaling_factor", args.moe_router_topk_scaling_factor or 1.0, 1.0)
    need("moe_router_num_groups", args.moe_router_num_groups, None)
    width = args.moe_ffn_hidden_size or args.ffn_hidden_size
    dense = [i for i, sparse in enumerate(sparse_layers(args)) if not sparse]
    if not (args.qk_layernorm or args.moe_router_pre_softmax or dense):
        del config["attention_bias"]
        return {"model_type": "mixtral", **config, "intermediate_size": width, "num_local_experts": args.num_experts,
                "num_experts_per_tok": args.moe_router_topk, "sliding_window": None}
    need("qk_layernorm", bool(args.qk_layernorm), True)
    # Megatron applies the softmax to the logits of the chosen experts, or, with pre-softmax, to all: then it does not normalize.
    return {"model_type": "qwen3_moe", **config, "moe_intermediate_size": width, "num_experts": args.num_experts,
            "num_experts_per_tok": args.moe_router_topk, "norm_topk_prob": not args.moe_router_pre_softmax,
            "mlp_only_layers": dense, "decoder_sparse_step": 1, "use_sliding_window": False}


def sparse_layers(args):
    """[layers] whether each has experts; moe_layer_freq N: every N-th from the first, or a list."""
    every = args.moe_layer_freq or 1
    return [i % every == 0 for i in range(args.num_layers)] if isinstance(every, int) else [bool(x) for x in every]


def latent(args, need):
    """The keys of a model with latent attention."""
    sparse = sparse_layers(args)
    first = sparse.index(True) if True in sparse else len(sparse)
    need("moe_layer_freq", sparse, [i >= first for i in range(len(sparse))])
    need("num_experts", (args.num_experts or 0) > 0, True)
    need("add_bias_linear", bool(args.add_bias_linear), False)
    need("moe_router_topk", bool(args.moe_router_topk), True)
    width, shared = args.moe_ffn_hidden_size or args.ffn_hidden_size, args.moe_shared_expert_intermediate_size or 0
    need("moe_shared_expert_intermediate_size", shared % width, 0)
    sigmoid = (args.moe_router_score_function or "softmax") == "sigmoid"
    need("moe_router_enable_expert_bias", bool(args.moe_router_enable_expert_bias), sigmoid)
    if not sigmoid:
        need("moe_router_pre_softmax", bool(args.moe_router_pre_softmax), True)
    if args.norm_epsilon != 1e-6:
        print(f"note: norm_epsilon is {args.norm_epsilon}; this family's norms within latent attention add 1e-06 whatever "
              "config.json says: logits differ in the fifth digit")
    groups = args.moe_router_num_groups
    if groups:
        # A group's score is the sum of this many of its best: two in V3, one in V2.
        need("moe_router_topk / moe_router_group_topk", args.moe_router_topk // args.moe_router_group_topk,
             2 if sigmoid else 1)
    config = {"model_type": "deepseek_v3" if sigmoid else "deepseek_v2", "q_lora_rank": args.q_lora_rank,
              "kv_lora_rank": args.kv_lora_rank, "qk_nope_head_dim": args.qk_head_dim,
              "qk_rope_head_dim": args.qk_pos_emb_head_dim, "v_head_dim": args.v_head_dim, "moe_intermediate_size": width,
              "n_routed_experts": args.num_experts, "num_experts_per_tok": args.moe_router_topk,
              "n_shared_experts": shared // width, "first_k_dense_replace": first, "head_dim": args.qk_pos_emb_head_dim,
              "routed_scaling_factor": args.moe_router_topk_scaling_factor or 1.0, "norm_topk_prob": sigmoid,
              "num_key_value_heads": args.num_attention_heads,
              "topk_method": "noaux_tc" if sigmoid else "group_limited_greedy" if groups else "greedy",
              "scoring_func": "sigmoid" if sigmoid else "softmax",
              "n_group": groups or (1 if sigmoid else None),
              "topk_group": args.moe_router_group_topk or (1 if sigmoid else None)}
    if sigmoid:
        config["num_nextn_predict_layers"] = args.mtp_num_layers or 0
    if (args.rope_type or "yarn") == "yarn" and (args.rotary_scaling_factor or 1.0) != 1.0:
        config["rope_scaling"] = {
            "type": "yarn", "factor": args.rotary_scaling_factor, "beta_fast": args.beta_fast or 32,
            "beta_slow": args.beta_slow or 1, "mscale": args.mscale or 1.0, "mscale_all_dim": args.mscale_all_dim or 0.0,
            "original_max_position_embeddings": args.original_max_position_embeddings or 4096}
    return config


class Table:
    """Fills `out`, name -> Tensor, from tensors by Megatron's names; a shape is what config.json says."""

    def __init__(self, tensors, config):
        self.tensors, self.c, self.out, self.used, self.faults = tensors, config, {}, set(), []
        self.width, self.heads = config["hidden_size"], config["num_attention_heads"]
        self.kv_heads = config.get("num_key_value_heads") or self.heads
        self.head = config.get("head_dim") or self.width // self.heads
        self.family = config["model_type"]

    def take(self, names):
        """The first of the names that is there."""
        found = next((n for n in names if n in self.tensors), None)
        if found:
            self.used.add(found)
        return found and self.tensors[found]

    def add(self, name, shape, sources, function=None, whole=None):
        """`function` makes the tensor of a source, which has the shape `whole`."""
        source = self.take(sources if isinstance(sources, tuple) else (sources,))
        if source is None:
            self.faults.append(f"missing: {name} (made of {sources if isinstance(sources, str) else ' or '.join(sources)})")
        elif source.shape != tuple(whole or shape):
            self.faults.append(f"reshaped: {source.where} is {list(source.shape)}; {name} needs {list(whole or shape)}")
        else:
            self.out[name] = source.made(shape, function) if function else source

    def norm(self, name, *sources, width=None):
        self.add(name, (width or self.width,), sources)

    def gate_up(self, gate, up, source, shape, bias=False):
        """linear_fc1: the rows of gate, then those of up; or each apart, _w and _v."""
        kind = "bias" if bias else "weight"
        for name, half, apart in ((gate, 0, "_w"), (up, 1, "_v")):
            if f"{source}.{kind}{apart}" in self.tensors:
                self.add(name, shape, f"{source}.{kind}{apart}")
            else:
                self.add(name, shape, f"{source}.{kind}", lambda t, half=half: t.chunk(2)[half], (2 * shape[0], *shape[1:]))

    def ffn(self, to, of, width):
        self.gate_up(f"{to}gate_proj.weight", f"{to}up_proj.weight", f"{of}linear_fc1", (width, self.width))
        self.add(f"{to}down_proj.weight", (self.width, width), f"{of}linear_fc2.weight")
        if self.c.get("mlp_bias"):
            self.gate_up(f"{to}gate_proj.bias", f"{to}up_proj.bias", f"{of}linear_fc1", (width,), bias=True)
            self.add(f"{to}down_proj.bias", (self.width,), f"{of}linear_fc2.bias")

    def attention(self, to, of):
        """linear_qkv: for each group of queries, these heads, then its k, then its v."""
        groups, each = self.kv_heads, self.heads // self.kv_heads
        for name, first, last in (("q", 0, each), ("k", each, each + 1), ("v", each + 1, each + 2)):
            def rows(t, first=first, last=last):
                return t.unflatten(0, (groups, each + 2, self.head))[:, first:last].flatten(0, 2)
            high, all_rows = groups * (last - first) * self.head, groups * (each + 2) * self.head
            self.add(f"{to}{name}_proj.weight", (high, self.width), f"{of}linear_qkv.weight", rows, (all_rows, self.width))
            if self.c.get("attention_bias"):
                self.add(f"{to}{name}_proj.bias", (high,), f"{of}linear_qkv.bias", rows, (all_rows,))
        self.add(f"{to}o_proj.weight", (self.width, self.heads * self.head), f"{of}linear_proj.weight")
        if self.c.get("attention_bias"):
            self.add(f"{to}o_proj.bias", (self.width,), f"{of}linear_proj.bias")
        if self.family == "qwen3_moe":
            self.norm(f"{to}q_norm.weight", f"{of}q_layernorm.weight", width=self.head)
            self.norm(f"{to}k_norm.weight", f"{of}k_layernorm.weight", width=self.head)
        if self.family == "gpt_oss":
            self.add(f"{to}sinks", (self.heads,), f"{of}core_attention.softmax_offset")

    def latent_attention(self, to, of):
        c, nope, rope, rank = self.c, self.c["qk_nope_head_dim"], self.c["qk_rope_head_dim"], self.c["kv_lora_rank"]
        if q := c.get("q_lora_rank"):
            self.add(f"{to}q_a_proj.weight", (q, self.width), f"{of}linear_q_down_proj.weight")
            self.norm(f"{to}q_a_layernorm.weight", f"{of}q_layernorm.weight", f"{of}linear_q_up_proj.layer_norm_weight",
                      width=q)
            self.add(f"{to}q_b_proj.weight", (self.heads * (nope + rope), q), f"{of}linear_q_up_proj.weight")
        else:
            self.add(f"{to}q_proj.weight", (self.heads * (nope + rope), self.width), f"{of}linear_q_proj.weight")
        self.add(f"{to}kv_a_proj_with_mqa.weight", (rank + rope, self.width), f"{of}linear_kv_down_proj.weight")
        self.norm(f"{to}kv_a_layernorm.weight", f"{of}kv_layernorm.weight", f"{of}linear_kv_up_proj.layer_norm_weight",
                  width=rank)
        self.add(f"{to}kv_b_proj.weight", (self.heads * (nope + c["v_head_dim"]), rank), f"{of}linear_kv_up_proj.weight")
        self.add(f"{to}o_proj.weight", (self.width, self.heads * c["v_head_dim"]), f"{of}linear_proj.weight")

    def experts(self, to, of):
        c = self.c
        count = next(c[k] for k in ("num_local_experts", "num_experts", "n_routed_experts") if c.get(k))
        width = c.get("moe_intermediate_size") or c["intermediate_size"]
        if self.family == "gpt_oss":
            return self.joint_experts(f"{to}mlp.", f"{of}mlp.", count, width)
        mixtral = self.family == "mixtral"
        at = f"{to}block_sparse_moe." if mixtral else f"{to}mlp."
        gate, up, down = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
        self.add(f"{at}gate.weight", (count, self.width), f"{of}mlp.router.weight")
        if self.family == "deepseek_v3":
            self.add(f"{at}gate.e_score_correction_bias", (count,), f"{of}mlp.router.expert_bias")
        for e in range(count):
            one, source = f"{at}experts.{e}.", f"{of}mlp.experts.{e}."
            self.gate_up(f"{one}{gate}.weight", f"{one}{up}.weight", f"{source}linear_fc1", (width, self.width))
            self.add(f"{one}{down}.weight", (self.width, width), f"{source}linear_fc2.weight")
        if shared := c.get("n_shared_experts"):
            self.ffn(f"{at}shared_experts.", f"{of}mlp.shared_experts.", shared * width)

    def joint_experts(self, to, of, count, width):
        """gpt-oss: all experts in one tensor, transposed, gate and up in turns."""
        for kind in ("weight", "bias"):
            self.add(f"{to}router.{kind}", (count, self.width)[:2 if kind == "weight" else 1], f"{of}router.{kind}")

        def turned(t):
            return torch.stack(t.chunk(2), 1).flatten(0, 1)
        for name, matrix, kind, shape, change in (
                ("gate_up_proj", 1, "weight", (self.width, 2 * width), lambda t: turned(t).t()),
                ("gate_up_proj_bias", 1, "bias", (2 * width,), turned),
                ("down_proj", 2, "weight", (width, self.width), lambda t: t.t()),
                ("down_proj_bias", 2, "bias", (self.width,), lambda t: t)):
            parts = [self.take((f"{of}experts.{e}.linear_fc{matrix}.{kind}",)) for e in range(count)]
            wanted = shape[::-1]
            for e, part in enumerate(parts):
                if part is None or part.shape != wanted:
                    self.faults.append(f"{'missing' if part is None else 'reshaped'}: {of}experts.{e}.linear_fc{matrix}."
                                       f"{kind}, of which {to}experts.{name} is made: {list(wanted)}")
            if all(p is not None and p.shape == wanted for p in parts):
                self.out[f"{to}experts.{name}"] = Tensor(
                    (count, *shape), parts[0].dtype, lambda index, parts=parts, change=change:
                    torch.stack([change(p.read(())) for p in parts])[index], parts[0].where)

    def sparse(self, layer):
        c = self.c
        if self.family == "llama":
            return False
        if self.family.startswith("deepseek"):
            return layer >= c.get("first_k_dense_replace", 0)
        return layer not in (c.get("mlp_only_layers") or []) and (layer + 1) % (c.get("decoder_sparse_step") or 1) == 0

    def layer(self, to, of, sparse):
        self.norm(f"{to}input_layernorm.weight", f"{of}input_layernorm.weight",
                  f"{of}self_attention.linear_qkv.layer_norm_weight")
        self.norm(f"{to}post_attention_layernorm.weight", f"{of}pre_mlp_layernorm.weight",
                  f"{of}mlp.linear_fc1.layer_norm_weight")
        (self.latent_attention if "kv_lora_rank" in self.c else self.attention)(f"{to}self_attn.", f"{of}self_attention.")
        if sparse:
            self.experts(to, of)
        else:
            self.ffn(f"{to}mlp.", f"{of}mlp.", self.c["intermediate_size"])

    def vocabulary(self, name, source):
        """The true rows of a padded vocabulary."""
        rows, found = self.c["vocab_size"], self.take((source,))
        if found is None:
            self.faults.append(f"missing: {name} (made of {source})")
        elif found.shape[0] < rows or found.shape[1:] != (self.width,):
            self.faults.append(f"reshaped: {found.where} is {list(found.shape)}; {name} needs {[rows, self.width]} or more "
                               "rows")
        else:
            self.out[name] = found.made((rows, self.width), lambda t: t[:rows])

    def fill(self):
        self.vocabulary("model.embed_tokens.weight", "embedding.word_embeddings.weight")
        for i in range(layers := self.c["num_hidden_layers"]):
            self.layer(f"model.layers.{i}.", f"decoder.layers.{i}.", self.sparse(i))
        for d in range(self.c.get("num_nextn_predict_layers") or 0):  # a layer more, with its own norms and copies
            to, of = f"model.layers.{layers + d}.", f"mtp.layers.{d}."
            for name, source in (("enorm", "enorm"), ("hnorm", "hnorm"), ("shared_head.norm", "final_layernorm")):
                self.norm(f"{to}{name}.weight", f"{of}{source}.weight")
            self.add(f"{to}eh_proj.weight", (self.width, 2 * self.width), f"{of}eh_proj.weight")
            later = any(n.startswith(f"{of}mtp_model_layer.") for n in self.tensors)
            self.layer(to, f"{of}{'mtp_model_layer' if later else 'transformer_layer'}.", True)
        self.norm("model.norm.weight", "decoder.final_layernorm.weight")
        if not self.c.get("tie_word_embeddings"):
            self.vocabulary("lm_head.weight", "output_layer.weight")
        elif tied := self.take(("output_layer.weight",)):
            embedding = self.tensors.get("embedding.word_embeddings.weight")
            if embedding is None or not torch.equal(tied.read(()), embedding.read(())):
                self.faults.append("left over: output_layer.weight, which is not the embedding, and config.json says that "
                                   "tie_word_embeddings is true")
        left = sorted(set(self.tensors) - self.used)
        self.faults += [f"left over: {name} {list(self.tensors[name].shape)}" for name in left]
        return self.out


FAMILIES = ("llama", "mixtral", "qwen3_moe", "deepseek_v2", "deepseek_v3", "gpt_oss")


def to_hub(tensors, config):
    """The tensors under Hugging Face's names, each checked against config.json."""
    if config.get("model_type") not in FAMILIES:
        raise Fault(f"config.json: model_type is {config.get('model_type')!r}; of Megatron's names {listed(FAMILIES)} are "
                    "made. --raw writes the tensors as they are")
    try:
        table = Table(unstacked(tensors), config)
        out = table.fill()
    except (KeyError, StopIteration, ZeroDivisionError) as e:
        raise Fault(f"config.json: {e if isinstance(e, KeyError) else 'the number of experts'} is not given") from e
    if table.faults:
        raise Fault(f"the checkpoint and config.json ({config['model_type']}) do not fit:\n  " + "\n  ".join(
            table.faults[:20] + [f"and {len(table.faults) - 20} more"] * (len(table.faults) > 20)) +
            "\nGive the config.json of this model: --config; or write the tensors as they are: --raw")
    return out
