"""Launch scripts of MindSpeed-LLM: flags of Megatron-LM, and its own of experts, of layers that do nothing, of packed rows and of adapters."""
import re

from .common import batch, flag_said, give, number, plain
from .settings import Fault, Settings
from .tuning import preference

SPEED = re.compile(
    r"^(use_fused|use_cp_send|moe_permutation|moe_alltoall|moe_zero|reuse_fp32|swap_|recompute_|enable_recompute|use_ascend|"
    r"gemm_grad|context_parallel_algo|ulysses|attention_mask_type|tokenizer_not_use|no_shared|transformer_impl|use_mcore|"
    r"enable_hf2mg|model_type_hf|prompt_type|distributed_|enable_high_avail|moe_hierarchical|moe_tp_extend|use_distributed_optimizer_|"
    r"overlap_|mtp_mem|schedules_|num_layer_list|async_log|profile|data_cache|no_check|use_cp|kv_head_repeat|"
    r"cp_window|megatron_cp|cp_attention|attention_dropout_fusion|jit_compile|npu_|mla_|enable_load|ai_framework|load_checkpoint|"
    r"moe_fb_overlap|moe_unperm|fix_sub|virtual_pipe|dist_ckpt|auto_detect|cut_max|seed_|variable_seq|no_pad|padded_samples|pack$|"
    r"no_shuffle|overwrite_cache|pad_to_multiple|use_kv_cache|max_new|history_turns|hf_load|hf_save|hf_cfg|hf_|lora_load|lora_fusion|"
    r"lora_register|mg_cache|enable_mg2hf|dualpipev|moe_comp|shape_order|fused_|fa_|sparse_mode|moe_grouped|coc_|hccl_|disable_gloo|"
    r"loss_chunk|loss_compute|enable_share_memory|fp8_reuse)")
HERE_IN_F32 = {"router_gating_in_fp32", "topk_softmax_in_fp32", "init_norm_weight_in_fp32", "rmsnorm_weight_in_fp32", "input_layernorm_in_fp32"}
DATA = re.compile(r"^(handler_name|is_instruction|is_pairwise|tokenizer_|dataset_|map_keys|template|cutoff|data_|finetune|stage|pref_|"
                  r"dpo_|refer|train_mode|is_|workers$|enable_thinking|no_chat_template)")
# Flags that say another kind of layer: the file is refused once.
KINDS = (({"enable_dsa_indexer", "index_n_heads", "index_topk"}, "attention to keys that an indexer chooses (DSA)"),
         ({"n_hash_layers", "enable_mhc", "kv_compress"}, "DeepSeek-V4's layers"),
         ({"num_zero_experts", "enable_mla_scale_q_lora"}, "LongCat's layers, with experts that compute nothing"),
         ({"full_attention_interval", "linear_key_head_dim"}, "Qwen3-Next's layers, with Gated DeltaNet: the preset qwen3-next-80b-a3b has them"),
         ({"mamba_d_conv", "mamba_expand"}, "layers of state spaces or Gated DeltaNet alone"))
NAMES = {"qk_nope_head_dim": "qk-head-dim", "qk_rope_head_dim": "qk-pos-emb-head-dim", "shared_expert_gate": "moe-shared-expert-gate"}
LIMITS = {"n_group": "moe-router-num-groups", "topk_group": "moe-router-group-topk", "routed_scaling_factor": "moe-router-topk-scaling-factor",
          "moe_router_num_groups": "moe-router-num-groups", "moe_router_group_topk": "moe-router-group-topk",
          "moe_router_topk_scaling_factor": "moe-router-topk-scaling-factor"}
VIRTUAL = "num_layers_per_virtual_pipeline_stage"
PLACEHOLDER = re.compile(r"(?i)^(\./|/)?(<|your\b|none$|path.to)")
YARN = {"type": "rope-type", "factor": "rotary-scaling-factor", "mscale": "mscale", "mscale_all_dim": "mscale-all-dim", "beta_fast": "beta-fast",
        "beta_slow": "beta-slow", "original_max_position_embeddings": "original-max-position-embeddings"}


class Flags:
    """The flags of a script by their names."""

    def __init__(self, script):
        self.script = script
        self.all = script.flags()
        self.said = {name: (" ".join(values), line) for name, values, line in self.all}

    def __contains__(self, name):
        return name in self.said

    def text(self, name, otherwise=""):
        return self.said.get(name, (otherwise, 0))[0]

    def number(self, name, otherwise=0):
        return number(self.text(name), otherwise)

    def place(self, name):
        return self.script.place(self.said[name][1])

    def theirs(self, name):
        return flag_said(name, [self.text(name)] if self.text(name) else [])


def mindspeed(script, config):
    del config
    out, flags = Settings("MindSpeed-LLM", script.file), Flags(script)
    check_kind(script, flags)
    own = model(out, flags) | packed_rows(out, flags) | folders(out, flags)
    for name, values, line in flags.all:
        text, theirs, place = " ".join(values), flag_said(name, values), script.place(line)
        if name in own or name.startswith("lora_") or name == VIRTUAL and out.has("num-virtual-stages-per-pipeline-rank"):
            continue
        if name == "tokenizer_name_or_path" and text:
            out.give("tokenizer-model", text, theirs, place)
        elif DATA.match(name) and name not in ("data_path", "data_parallel_sharding_strategy"):
            out.ignore(theirs, "of its data: `troupe data build` has what it means")
        elif name in HERE_IN_F32:
            out.ignore(theirs, "in f32 here")
        elif SPEED.match(name):
            out.ignore(theirs, "speed, memory, logs or where files are")
        else:
            give(out, NAMES.get(name, name), plain(text) if values else True, theirs, place)
    tuning(out, flags)
    batch(out)
    return out


def check_kind(script, flags):
    stage = flags.text("stage")
    if stage not in ("", "sft", "dpo"):
        raise Fault(f"{script.file}: MindSpeed-LLM's, {stage}: of its stages sft and dpo are read")
    if stage == "dpo" and "lora_r" not in flags:
        raise Fault(f"{script.file}: MindSpeed-LLM's, dpo of all weights, with a second model for reference: here the reference is the model without "
                    "its adapters. Add --lora-r")
    for names, kind in KINDS:
        if found := sorted(names & set(flags.said)):
            raise Fault(f"{script.file}: MindSpeed-LLM's, of a model that is not supported: {kind} (--{found[0].replace('_', '-')})")


def model(out, flags):
    """Its own flags of a model; the names that were read."""
    own = {"spec", "norm_topk_prob", "first_k_dense_replace", "n_shared_experts", "moe_layer_freq", "fix_router", "moe_intermediate_size", "n_group",
           "topk_group", "routed_scaling_factor", "seq_aux", "moe_router_norm_topk", "noop_layers", "num_layers", "moe_router_load_balancing_type",
           "moe_router_pre_softmax", *(f"rope_scaling_{name}" for name in YARN)}
    rope(out, flags)
    layers(out, flags)
    shared = flags.number("n_shared_experts")
    if shared:
        width = flags.number("moe_ffn_hidden_size") or flags.number("moe_intermediate_size")
        out.give("moe-shared-expert-intermediate-size", int(shared * width), f"--n-shared-experts {int(shared)}", flags.place("n_shared_experts"))
    for name, flag in (("moe_intermediate_size", "moe-ffn-hidden-size"), *LIMITS.items()):
        if name in flags:
            out.give(flag, flags.text(name), flags.theirs(name), flags.place(name))
    if "num_experts" in flags:
        router(out, flags)
        own |= own_limits(out, flags) | whole_experts(out, flags)
    if "fix_router" in flags:
        out.leave_out("--fix-router", "experts in turn, whatever the router says, for measurements; --moe-router-force-load-balancing of Megatron-LM "
                      "becomes model.moe.router.force")
    if "spec" in flags:
        spec(out, flags)
    return own


def rope(out, flags):
    if "rope_scaling_type" not in flags:
        if "multi_latent_attention" in flags:
            out.default("rope-type", "rope")
        return
    if flags.text("rope_scaling_type") != "yarn":
        out.refuse(flags.theirs("rope_scaling_type"), flags.place("rope_scaling_type"), "of these only yarn is read")
        return
    for theirs, flag in YARN.items():
        if (name := f"rope_scaling_{theirs}") in flags:
            out.give(flag, flags.text(name), flags.theirs(name), flags.place(name))


def layers(out, flags):
    """Layers without those of --noop-layers, which --num-layers counts, and which of them have experts."""
    count = int(flags.number("num_layers"))
    skipped = {int(one) for one in flags.text("noop_layers").split(",") if one.strip().isdigit()}
    real = [layer for layer in range(count) if layer not in skipped]
    if not real:  # the place is the converter's to name
        if "num_layers" in flags:
            out.give("num-layers", flags.text("num_layers"), flags.theirs("num_layers"), flags.place("num_layers"))
        return
    theirs = flags.theirs("num_layers") + (f" without {flags.theirs('noop_layers')}" if skipped else "")
    out.give("num-layers", len(real), theirs, flags.place("num_layers"))
    if skipped and VIRTUAL in flags:
        stages(out, flags, count)
    first, every = int(flags.number("first_k_dense_replace")), int(flags.number("moe_layer_freq", 1))
    if "[" in flags.text("moe_layer_freq"):
        out.give("moe-layer-freq", flags.text("moe_layer_freq"), flags.theirs("moe_layer_freq"), flags.place("moe_layer_freq"))
    elif first > 0 or every > 1:
        name = "first_k_dense_replace" if first > 0 else "moe_layer_freq"
        pattern = [int(layer >= first and layer % max(every, 1) == 0) for layer in real]
        out.give("moe-layer-freq", in_short(pattern), flags.theirs(name), flags.place(name))


def stages(out, flags, count):
    """Stages of a rank, of all layers that --num-layers counts: without those that do nothing they are uneven."""
    each = flags.number("pipeline_model_parallel_size", 1) * flags.number(VIRTUAL)
    if each and count % each == 0:
        out.give("num-virtual-stages-per-pipeline-rank", int(count // each), flags.theirs(VIRTUAL), flags.place(VIRTUAL))


def in_short(pattern):
    """[0, 1, 1] as ([0]*1+[1]*2), as Megatron-LM writes it."""
    dense = pattern.index(1) if 1 in pattern else len(pattern)
    if pattern[dense:] != [1] * (len(pattern) - dense):
        return "[" + ",".join(map(str, pattern)) + "]"
    return f"([0]*{dense}+[1]*{len(pattern) - dense})" if dense else f"([1]*{len(pattern)})"


def router(out, flags):
    """Its kinds of --moe-router-load-balancing-type say the order of softmax and choice too: softmax_topk and pai_megatron_aux_loss take the
    softmax of all experts, the others what --moe-router-pre-softmax says; where --norm-topk-prob is asked, the chosen sum to 1, as after."""
    name = "moe_router_load_balancing_type"
    kind, place = flags.text(name, "aux_loss"), flags.place(name) if name in flags else str(out.file)
    balances = {"softmax_topk": "none", "pai_megatron_aux_loss": "aux_loss"}.get(kind, kind)
    if balances == "none" and "seq_aux" in flags:
        balances = "seq_aux_loss"
    out.give("moe-router-load-balancing-type", balances, flags.theirs(name) if name in flags else "its default aux_loss", place)
    if flags.text("moe_router_score_function", "softmax") != "softmax":
        if "moe_router_pre_softmax" in flags:
            out.ignore("--moe_router_pre_softmax", "of softmax alone")
        return
    before = kind in ("softmax_topk", "pai_megatron_aux_loss") or "moe_router_pre_softmax" in flags
    normalized = "norm_topk_prob" in flags and kind in ("softmax_topk", "aux_loss")
    if before and not normalized:
        theirs = "--moe_router_pre_softmax" if "moe_router_pre_softmax" in flags else flags.theirs(name) + ", without --norm-topk-prob"
        out.give("moe-router-pre-softmax", True, theirs, place)
    elif "norm_topk_prob" in flags:
        out.ignore("--norm-topk-prob", "the softmax of the chosen alone sums to 1")


def own_limits(out, flags):
    """pai_megatron_aux_loss chooses among all experts and does not scale; softmax_topk has no groups."""
    kind = flags.text("moe_router_load_balancing_type")
    without = {"pai_megatron_aux_loss": LIMITS, "softmax_topk": [name for name in LIMITS if "scal" not in name]}.get(kind, ())
    for name in without:
        out.flags.pop(LIMITS[name], None)
        if name in flags:
            out.ignore(flags.theirs(name), f"{kind} does without")
    return set(without)


def whole_experts(out, flags):
    """--moe-tp-extend-ep: the tensor ranks have experts of their own, and not slices."""
    tensor, ranks = flags.number("tensor_model_parallel_size", 1), flags.number("expert_model_parallel_size", 1)
    if "moe_tp_extend_ep" not in flags or flags.number("num_experts") % (tensor * ranks):
        return set()
    theirs, place = f"--moe_tp_extend_ep, {flags.theirs('expert_model_parallel_size')}", flags.place("moe_tp_extend_ep")
    out.give("expert-tensor-parallel-size", 1, "--moe_tp_extend_ep", place)
    out.give("expert-model-parallel-size", int(tensor * ranks), theirs, place)
    return {"expert_model_parallel_size", "expert_tensor_parallel_size"}


def spec(out, flags):
    name = flags.text("spec")
    known = re.search(r"qwen|deepseek|glm|kimi|mixtral|llama|ling|bailing|hunyuan|phi|minimax", name)
    if known and not re.search(r"next|linear|dsa|csa", name):
        out.note(f"--spec {name}: a layer by its own Python, which is not run; the flags beside it say the same layer")
    else:
        out.refuse(f"--spec {name}", flags.place("spec"), "a layer of its own Python, which is not run")


def packed_rows(out, flags):
    """Attention within documents follows --reset-attention-mask alone there; positions are relative."""
    if "reset_attention_mask" in flags:
        for flag in ("reset-position-ids", "reset-attention-mask"):
            out.give(flag, True, "--reset_attention_mask", flags.place("reset_attention_mask"))
    elif "neat_pack" in flags:
        out.refuse("--neat_pack", flags.place("neat_pack"), "needs --reset-attention-mask there")
    elif "reset_position_ids" in flags and not tuned(flags):
        return set()
    elif "reset_position_ids" in flags:
        out.ignore("--reset_position_ids", "does nothing there in rows of questions and answers without --reset-attention-mask")
    return {"reset_attention_mask", "reset_position_ids", "neat_pack"}


def tuned(flags):
    return bool(flags.text("stage")) or "is_instruction_dataset" in flags or "is_pairwise_dataset" in flags


def folders(out, flags):
    """Paths that the script leaves to its user: "your data path"."""
    own = set()
    if "load" in flags and (PLACEHOLDER.match(flags.text("load")) or "save" in flags and flags.text("load") != flags.text("save")):
        own.add("load")
        if flags.text("load") != "None":
            out.hole("checkpoint.init_from", f"{flags.theirs('load')}: `troupe import FOLDER RUN` makes RUN/step-000000 of a model of Hugging Face")
    for name, path, why in (("data_path", "data.train", "`troupe data build FILE -o DATA` makes token files of text"),
                            ("tokenizer_name_or_path", "data.tokenizer", "the model's tokenizer.json"),
                            ("save", "checkpoint.dir", "the run's folder")):
        if PLACEHOLDER.match(flags.text(name)):
            own.add(name)
            if name == "save":
                out.stand_in("save", "run", path, f"{flags.theirs(name)}: {why}")
            elif not (name == "data_path" and tuned(flags)):
                out.hole(path, f"{flags.theirs(name)}: {why}")
    return own


def tuning(out, flags):
    if "lora_r" in flags:
        adapters(out, flags)
    if tuned(flags):
        out.flags.pop("data-path", None)
        out.hole("data.train", "questions whose answers alone are learned: `troupe data build FILE --format chat -o DATA` makes token files of them")
    if flags.text("stage") == "dpo":
        preference(out, flags.text("dpo_loss_type", "sigmoid"), flags.text("dpo_beta", 0.1), flags.text("dpo_label_smoothing", 0))


def adapters(out, flags):
    rank, alpha = flags.number("lora_r"), flags.number("lora_alpha", 16)
    out.set("model.lora.rank", int(rank), f"--lora-r {rank:g}")
    out.set("model.lora.alpha", alpha, f"--lora-alpha {alpha:g}")
    names = flags.text("lora_target_modules", "linear_qkv linear_proj")
    targets = ["attention"] if re.search("qkv|proj|q_|kv_", names) else []
    if "fc" in names:
        targets.append("experts" if "num_experts" in flags else "ffn")
    out.set("model.lora.targets", targets, f"--lora-target-modules {names}")
    if "moe_router_enable_expert_bias" in flags:
        out.give("moe-router-bias-update-rate", 0, "a frozen router's bias does not move")
    if "experts" in targets and number(out.value("expert-tensor-parallel-size", out.value("tensor-model-parallel-size", 1)), 1) > 1:
        out.give("expert-tensor-parallel-size", 1, "experts with adapters are not sliced here: no result depends on it")
