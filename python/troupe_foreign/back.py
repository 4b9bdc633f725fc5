"""The way back: a Hugging Face folder to a checkpoint of PyTorch's DCP, or of Megatron-Core (torch_dist). The whole model is
held while it is written."""
import argparse
import json
import shutil

import torch
import torch.distributed.checkpoint as dcp

from . import hub
from .tensors import Fault, listed

TYPES = {name: dtype for dtype, name in hub.DTYPES.items()}
FAMILIES = ("llama", "mixtral", "qwen3_moe")
STEP = 0


def tensors_of(path):
    """The tensors of a safetensors file, which is mapped: only what is used is read."""
    raw = torch.from_file(str(path), shared=False, size=path.stat().st_size, dtype=torch.uint8)
    begin = 8 + int.from_bytes(raw[:8].numpy().tobytes(), "little")
    out = {}
    for name, at in json.loads(raw[8:begin].numpy().tobytes()).items():
        if name != "__metadata__":
            first, last = at["data_offsets"]
            data = raw[begin + first:begin + last]
            out[name] = (data if data.data_ptr() % 8 == 0 else data.clone()).view(TYPES[at["dtype"]]).view(at["shape"])
    return out


def read(folder):
    """(config, tensors) of a folder that `troupe export` or transformers wrote."""
    if not (folder / "config.json").exists():
        raise Fault(f"{folder}/config.json: is not there; give a Hugging Face folder, as `troupe export` writes it")
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise Fault(f"{folder}: has no .safetensors file")
    return json.loads((folder / "config.json").read_text()), {n: t for f in files for n, t in tensors_of(f).items()}


def as_dcp(source, target):
    """Under the names that they have, which a model of transformers loads; config.json beside them."""
    _, tensors = read(source)
    with hub.staged(target) as stage:
        dcp.save(tensors, checkpoint_id=stage, no_dist=True)
        shutil.copy(source / "config.json", stage)
    return len(tensors)


class Names:
    """Fills `out`, a state by Megatron's names, a tensor a layer and expert apart; all of `tensors` must be used."""

    def __init__(self, config, tensors, local, multiple):
        self.c, self.tensors, self.local, self.multiple, self.out = config, dict(tensors), local, multiple, {}
        self.layers, self.heads = config["num_hidden_layers"], config["num_attention_heads"]
        self.groups = config.get("num_key_value_heads") or self.heads
        self.head = config.get("head_dim") or config["hidden_size"] // self.heads
        self.experts = config.get("num_local_experts") or config.get("num_experts") or 0
        self.mixtral = config["model_type"] == "mixtral"

    def take(self, name):
        if name not in self.tensors:
            raise Fault(f"missing: {name}")
        return self.tensors.pop(name)

    def sparse(self, layer):
        c = self.c
        return self.experts > 0 and layer not in (c.get("mlp_only_layers") or []) and \
            (layer + 1) % (c.get("decoder_sparse_step") or 1) == 0

    def table(self, to, of):
        """Rows of zeros up to a multiple, as Megatron pads a vocabulary."""
        t = self.take(of)
        self.out[to] = torch.cat([t, t.new_zeros(-len(t) % self.multiple, t.shape[1])])

    def ffn(self, to, of, names=("gate_proj", "up_proj", "down_proj")):
        gate, up, down = (self.take(f"{of}{name}.weight") for name in names)
        self.out[f"{to}linear_fc1.weight"], self.out[f"{to}linear_fc2.weight"] = torch.cat([gate, up]), down

    def layer(self, i):
        of, to = f"model.layers.{i}.", f"decoder.layers.{i}."
        attention = f"{to}self_attention."
        self.out[f"{attention}linear_qkv.layer_norm_weight"] = self.take(f"{of}input_layernorm.weight")
        # For each group of queries: these heads, then its k, then its v.
        parts = [self.take(f"{of}self_attn.{x}_proj.weight").unflatten(0, (self.groups, -1, self.head)) for x in "qkv"]
        self.out[f"{attention}linear_qkv.weight"] = torch.cat(parts, 1).flatten(0, 2)
        self.out[f"{attention}linear_proj.weight"] = self.take(f"{of}self_attn.o_proj.weight")
        if self.c["model_type"] == "qwen3_moe":
            for x in "qk":
                self.out[f"{attention}{x}_layernorm.weight"] = self.take(f"{of}self_attn.{x}_norm.weight")
        sparse = self.sparse(i)
        # In a layer with experts, Megatron's own modules and TransformerEngine's save the norm under different names.
        norm = "mlp.linear_fc1.layer_norm_weight" if self.local or not sparse else "pre_mlp_layernorm.weight"
        self.out[to + norm] = self.take(f"{of}post_attention_layernorm.weight")
        if not sparse:
            return self.ffn(f"{to}mlp.", f"{of}mlp.")
        at = f"{of}block_sparse_moe." if self.mixtral else f"{of}mlp."
        self.out[f"{to}mlp.router.weight"] = self.take(f"{at}gate.weight")
        for e in range(self.experts):
            self.ffn(f"{to}mlp.experts.experts.{e}.", f"{at}experts.{e}.",
                     *([("w1", "w3", "w2")] if self.mixtral else []))

    def fill(self):
        self.table("embedding.word_embeddings.weight", "model.embed_tokens.weight")
        for i in range(self.layers):
            self.layer(i)
        self.out["decoder.final_layernorm.weight"] = self.take("model.norm.weight")
        if not self.c.get("tie_word_embeddings"):
            self.table("output_layer.weight", "lm_head.weight")
        if self.tensors:
            raise Fault(f"left over: {listed(self.tensors)}")
        return self.stacked()

    def stacked(self):
        """Experts in one tensor, and layers too where all are of one kind, as Megatron's sharded state has them."""
        def joined(state, marker):
            out, together = {}, {}
            for name, tensor in state.items():
                head, found, rest = name.partition(marker)
                if found and rest.partition(".")[0].isdecimal():
                    together.setdefault(f"{head}{marker}{rest.partition('.')[2]}", []).append(tensor)
                else:
                    out[name] = tensor
            return out | {name: torch.stack(parts) for name, parts in together.items()}
        alike = len({self.sparse(i) for i in range(self.layers)}) == 1
        state = joined(self.out, ".experts.experts.")
        return (joined(state, "decoder.layers.") if alike else state) | self.extra_states(alike)

    def extra_states(self, alike):
        """An empty entry for each product, which Megatron's loader asks for: the state of FP8 scaling."""
        out = {}
        for i in range(self.layers):
            head, at, of = ("decoder.layers.", f"{i}", f"{self.layers}") if alike else (f"decoder.layers.{i}.", "", "")
            modules = [f"self_attention.{x}" for x in ("linear_qkv", "core_attention", "linear_proj")]
            if not self.sparse(i):
                modules += ["mlp.linear_fc1", "mlp.linear_fc2"]
            for module in modules:
                out[f"{head}{module}._extra_state/shard_{at or 0}_{of or 1}"] = [None]
            for e in range(self.experts if self.sparse(i) else 0):
                for matrix in ("linear_fc1", "linear_fc2"):
                    place = "_".join((f"{at}.{e}".lstrip("."), f"{of}.{self.experts}".lstrip(".")))
                    out[f"{head}mlp.experts.experts.{matrix}._extra_state/shard_{place}"] = [None]
        return out


def arguments(names):
    """What Megatron-LM's --use-checkpoint-args asks for, of a model in one part."""
    c, sparse = names.c, [names.sparse(i) for i in range(names.layers)]
    rope = c.get("rope_parameters") or {}
    width = c.get("moe_intermediate_size") or c["intermediate_size"]
    out = dict(
        num_layers=names.layers, hidden_size=c["hidden_size"], num_attention_heads=names.heads, num_query_groups=names.groups,
        group_query_attention=True, kv_channels=names.head, ffn_hidden_size=c["intermediate_size"], swiglu=True,
        normalization="RMSNorm", norm_epsilon=c.get("rms_norm_eps", 1e-6), position_embedding_type="rope",
        rotary_base=int(c.get("rope_theta") or rope.get("rope_theta") or 10000), rotary_percent=1.0, add_bias_linear=False,
        add_qkv_bias=False, qk_layernorm=c["model_type"] == "qwen3_moe", vocab_size=c["vocab_size"],
        padded_vocab_size=-(-c["vocab_size"] // names.multiple) * names.multiple,
        max_position_embeddings=c["max_position_embeddings"], seq_length=c["max_position_embeddings"],
        untie_embeddings_and_output_weights=not c.get("tie_word_embeddings"), multi_latent_attention=False,
        tensor_model_parallel_size=1, pipeline_model_parallel_size=1, expert_model_parallel_size=1,
        transformer_impl="local" if names.local else "transformer_engine")
    if names.experts:
        normalized = names.mixtral or c.get("norm_topk_prob", False)
        out |= dict(num_experts=names.experts, moe_router_topk=c["num_experts_per_tok"], moe_ffn_hidden_size=width,
                    moe_router_score_function="softmax", moe_router_pre_softmax=not normalized,
                    moe_layer_freq=1 if all(sparse) else [int(s) for s in sparse])
    return argparse.Namespace(**out)


def checked(config):
    """What of a config.json Megatron's modules here could not compute is refused by name."""
    family = config.get("model_type")
    if family not in FAMILIES:
        raise Fault(f"config.json: model_type is {family!r}; in Megatron's names {listed(FAMILIES)} are written. --to dcp "
                    "takes every family")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    for key, value in (("rope_type", rope.get("rope_type", rope.get("type", "default"))),
                       ("attention_bias", bool(config.get("attention_bias"))), ("mlp_bias", bool(config.get("mlp_bias"))),
                       ("sliding_window", config.get("sliding_window")), ("hidden_act", config.get("hidden_act", "silu"))):
        if value not in (None, False, "default", "silu"):
            raise Fault(f"config.json: {key} is {value!r}, which has no place in the arguments that are saved. --to dcp takes it")
    return config


def as_torch_dist(source, target, local, multiple):
    """A release as Megatron-LM loads it by --load TARGET --ckpt-format torch_dist."""
    config, tensors = read(source)
    names = Names(checked(config), tensors, local, multiple)
    state, common = names.fill(), {"args": arguments(names), "checkpoint_version": 3.0, "iteration": STEP}
    with hub.staged(target) as stage:
        folder = stage / "release"
        dcp.save(state, checkpoint_id=folder, no_dist=True)
        torch.save(common, folder / "common.pt")
        (folder / "metadata.json").write_text(json.dumps({"sharded_backend": "torch_dist", "sharded_backend_version": 1,
                                                          "common_backend": "torch", "common_backend_version": 1}))
        (stage / "latest_checkpointed_iteration.txt").write_text("release")
    return len(tensors)
