"""Models of a hub that the files of other projects name, as flags of Megatron-LM: of the facts of a config.json."""
import re

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
YARN = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1}
NAMES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size")


def dense(kind, sizes, **more):
    return dict(zip(NAMES, sizes)) | {"model_type": kind} | more


def qwen3(*sizes, **more):
    return dense("qwen3", sizes, **{"vocab_size": 151936, "rope_theta": 1e6, "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, **more})


def qwen25(*sizes, **more):
    return dense("qwen2", sizes, **{"vocab_size": 152064, "rope_theta": 1e6, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, **more})


def qwen3_moe(*sizes, width, **more):
    return qwen3(*sizes, model_type="qwen3_moe", num_experts=128, num_experts_per_tok=8, moe_intermediate_size=width,
                 norm_topk_prob=True, **more)


def llama(*sizes, **more):
    return dense("llama", sizes, **{"vocab_size": 128256, "rope_theta": 5e5, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, **more})


def deepseek(kind, hidden, layers, heads, ffn, width, experts, top, **more):
    return {"model_type": kind, "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
            "num_key_value_heads": heads, "intermediate_size": ffn, "moe_intermediate_size": width, "n_routed_experts": experts,
            "num_experts_per_tok": top, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
            "rope_theta": 1e4, "max_position_embeddings": 163840, "rms_norm_eps": 1e-6, "n_group": 1, "topk_group": 1,
            "routed_scaling_factor": 1.0, "norm_topk_prob": kind == "deepseek_v3", **more}


def glm(hidden, layers, ffn, width, experts, **more):
    return dense("glm4_moe", (hidden, layers, 96, 8, 128, ffn), moe_intermediate_size=width, n_routed_experts=experts,
                 num_experts_per_tok=8, n_shared_experts=1, n_group=1, topk_group=1, norm_topk_prob=True, partial_rotary_factor=0.5,
                 vocab_size=151552, rope_theta=1e6, max_position_embeddings=131072, rms_norm_eps=1e-5, attention_bias=True, **more)


LONG = {"rope_theta": 1e7, "max_position_embeddings": 262144}
MODELS = {
    "qwen3-0.6b": qwen3(1024, 28, 16, 8, 128, 3072, tie_word_embeddings=True),
    "qwen3-1.7b": qwen3(2048, 28, 16, 8, 128, 6144, tie_word_embeddings=True),
    "qwen3-4b": qwen3(2560, 36, 32, 8, 128, 9728, tie_word_embeddings=True),
    "qwen3-4b-instruct-2507": qwen3(2560, 36, 32, 8, 128, 9728, tie_word_embeddings=True, rope_theta=5e6, max_position_embeddings=262144),
    "qwen3-8b": qwen3(4096, 36, 32, 8, 128, 12288),
    "qwen3-14b": qwen3(5120, 40, 40, 8, 128, 17408),
    "qwen3-32b": qwen3(5120, 64, 64, 8, 128, 25600),
    "qwen3-30b-a3b": qwen3_moe(2048, 48, 32, 4, 128, 6144, width=768),
    "qwen3-30b-a3b-instruct-2507": qwen3_moe(2048, 48, 32, 4, 128, 6144, width=768, **LONG),
    "qwen3-30b-a3b-thinking-2507": qwen3_moe(2048, 48, 32, 4, 128, 6144, width=768, **LONG),
    "qwen3-coder-30b-a3b": qwen3_moe(2048, 48, 32, 4, 128, 5472, width=768, **LONG),
    "qwen3-235b-a22b": qwen3_moe(4096, 94, 64, 4, 128, 12288, width=1536),
    "qwen3-235b-a22b-instruct-2507": qwen3_moe(4096, 94, 64, 4, 128, 12288, width=1536, rope_theta=5e6, max_position_embeddings=262144),
    "qwen2.5-0.5b": qwen25(896, 24, 14, 2, 64, 4864, tie_word_embeddings=True, vocab_size=151936),
    "qwen2.5-1.5b": qwen25(1536, 28, 12, 2, 128, 8960, tie_word_embeddings=True, vocab_size=151936),
    "qwen2.5-3b": qwen25(2048, 36, 16, 2, 128, 11008, tie_word_embeddings=True, vocab_size=151936),
    "qwen2.5-7b": qwen25(3584, 28, 28, 4, 128, 18944),
    "qwen2.5-14b": qwen25(5120, 48, 40, 8, 128, 13824),
    "qwen2.5-32b": qwen25(5120, 64, 40, 8, 128, 27648),
    "qwen2.5-72b": qwen25(8192, 80, 64, 8, 128, 29568),
    "qwen1.5-moe-a2.7b": dense("qwen2_moe", (2048, 24, 16, 16, 128, 5632), moe_intermediate_size=1408, num_experts=60,
                               num_experts_per_tok=4, shared_expert_intermediate_size=5632, vocab_size=151936, rope_theta=1e6,
                               max_position_embeddings=8192, rms_norm_eps=1e-6),
    "qwen2-57b-a14b": dense("qwen2_moe", (3584, 28, 28, 4, 128, 18944), moe_intermediate_size=2560, num_experts=64,
                            num_experts_per_tok=8, shared_expert_intermediate_size=20480, vocab_size=151936, rope_theta=1e6,
                            max_position_embeddings=32768, rms_norm_eps=1e-6),
    "llama-3-8b": llama(4096, 32, 32, 8, 128, 14336),
    "llama-3-70b": llama(8192, 80, 64, 8, 128, 28672),
    "llama-3.1-8b": llama(4096, 32, 32, 8, 128, 14336, max_position_embeddings=131072, rope_scaling=LLAMA3),
    "llama-3.1-70b": llama(8192, 80, 64, 8, 128, 28672, max_position_embeddings=131072, rope_scaling=LLAMA3),
    "llama-3.2-1b": llama(2048, 16, 32, 8, 64, 8192, max_position_embeddings=131072, tie_word_embeddings=True,
                          rope_scaling=LLAMA3 | {"factor": 32.0}),
    "llama-3.2-3b": llama(3072, 28, 24, 8, 128, 8192, max_position_embeddings=131072, tie_word_embeddings=True,
                          rope_scaling=LLAMA3 | {"factor": 32.0}),
    "mixtral-8x7b": dense("mixtral", (4096, 32, 32, 8, 128, 14336), num_local_experts=8, num_experts_per_tok=2, vocab_size=32000,
                          rope_theta=1e6, max_position_embeddings=32768, rms_norm_eps=1e-5),
    "mixtral-8x22b": dense("mixtral", (6144, 56, 48, 8, 128, 16384), num_local_experts=8, num_experts_per_tok=2, vocab_size=32768,
                           rope_theta=1e6, max_position_embeddings=65536, rms_norm_eps=1e-5),
    "deepseek-v2-lite": deepseek("deepseek_v2", 2048, 27, 16, 10944, 1408, 64, 6, n_shared_experts=2, first_k_dense_replace=1,
                                 vocab_size=102400, rope_scaling=YARN | {"mscale": 0.707, "mscale_all_dim": 0.707}),
    "deepseek-v3": deepseek("deepseek_v3", 7168, 61, 128, 18432, 2048, 256, 8, n_shared_experts=1, first_k_dense_replace=3,
                            q_lora_rank=1536, n_group=8, topk_group=4, routed_scaling_factor=2.5, vocab_size=129280,
                            rope_scaling=YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}),
    "moonlight-16b-a3b": deepseek("deepseek_v3", 2048, 27, 16, 11264, 1408, 64, 6, n_shared_experts=2, first_k_dense_replace=1,
                                  routed_scaling_factor=2.446, vocab_size=163840, rope_theta=5e4, max_position_embeddings=8192,
                                  rms_norm_eps=1e-5),
    "glm-4.5-air": glm(4096, 46, 10944, 1408, 128, first_k_dense_replace=1, routed_scaling_factor=1.0),
    "glm-4.5": glm(5120, 92, 12288, 1536, 160, first_k_dense_replace=3, routed_scaling_factor=2.5, use_qk_norm=True),
}
MODELS["glm-4.6"] = MODELS["glm-4.5"] | {"max_position_embeddings": 202752}
MODELS["glm-4.7"] = MODELS["glm-4.6"]
MODELS["glm-4.7-flash"] = deepseek("deepseek_v3", 2048, 47, 20, 10240, 1536, 64, 4, n_shared_experts=1, first_k_dense_replace=1,
                                   q_lora_rank=768, qk_nope_head_dim=192, v_head_dim=256, routed_scaling_factor=1.8, vocab_size=154880,
                                   rope_theta=1e6, max_position_embeddings=202752, rms_norm_eps=1e-5)
MODELS["deepseek-v2"] = deepseek("deepseek_v2", 5120, 60, 128, 12288, 1536, 160, 6, n_shared_experts=2, first_k_dense_replace=1,
                                 q_lora_rank=1536, n_group=8, topk_group=3, routed_scaling_factor=16.0, vocab_size=102400,
                                 rope_scaling=YARN | {"mscale": 0.707, "mscale_all_dim": 0.707})
MODELS["deepseek-v2.5"] = MODELS["deepseek-v2"]
MODELS["deepseek-r1"] = MODELS["deepseek-v3"]
MODELS["deepseek-moe-16b"] = None  # no latent attention: of a family that Megatron's flags do not tell from V2
# Models that flags of Megatron-LM do not say, presets of the program: layers, experts, width of the shared one, what balances them there.
PRESETS = {"gpt-oss-20b": (24, 32, 0, "aux_loss"), "gpt-oss-120b": (36, 128, 0, "aux_loss"), "dbrx": (40, 16, 0, "batched_loss"),
           "qwen3-next-80b-a3b": (48, 512, 512, "global_loss"), "olmoe-1b-7b": (16, 64, 0, "aux_loss")}
SAME = {"gpt-oss-safeguard-20b": "gpt-oss-20b", "gpt-oss-safeguard-120b": "gpt-oss-120b"}
SUFFIX = re.compile(r"-(instruct|base|chat|it|hf|bf16|fp8|bnb-nf4|config-verl|dequantized|converted-v2|v0\.\d|\d{4}|0528|thinking)$")


def stem(name, table):
    """"Qwen/Qwen3-30B-A3B-Base" is qwen3-30b-a3b, where the table has that."""
    last = name.rstrip("/").split("/")[-1].lower().replace("meta-", "").replace("_", "-")
    while last not in table and (found := SUFFIX.search(last)):
        last = last[:found.start()]
    return last


def known_name(name):
    """The model of a name or a path."""
    last = stem(name, MODELS)
    return last if MODELS.get(last) else None


def preset_of(name):
    last = stem(name, PRESETS | SAME)
    last = SAME.get(last, last)
    return last if last in PRESETS else None


def flags_of(config):
    """[(flag, value)] of a config.json; None: its family is not one of these."""
    kind = config["model_type"]
    readers = {"llama": _llama, "qwen2": _llama, "qwen3": _llama, "mistral": _llama, "mixtral": _mixtral, "qwen2_moe": _qwen_moe,
               "qwen3_moe": _qwen_moe, "deepseek_v2": _deepseek, "deepseek_v3": _deepseek, "glm4_moe": _glm}
    if kind not in readers or (config.get("rope_scaling") or {}).get("rope_type", "yarn") not in ("yarn", "llama3"):
        return None
    flags = {"num-layers": config["num_hidden_layers"], "hidden-size": config["hidden_size"],
             "ffn-hidden-size": config["intermediate_size"], "num-attention-heads": config["num_attention_heads"],
             "max-position-embeddings": config["max_position_embeddings"], "vocab-size": config["vocab_size"],
             "norm-epsilon": config["rms_norm_eps"], "rotary-base": int(config["rope_theta"]), "normalization": "RMSNorm",
             "position-embedding-type": "rope", "swiglu": True, "disable-bias-linear": True, "hidden-dropout": 0,
             "attention-dropout": 0, "make-vocab-size-divisible-by": 1}
    flags["untie-embeddings-and-output-weights"] = not config.get("tie_word_embeddings", False)
    readers[kind](config, flags)
    return [(name, value) for name, value in flags.items() if value is not False]


def _llama(c, flags):
    flags["group-query-attention"] = c["num_key_value_heads"] != c["num_attention_heads"]
    if flags["group-query-attention"]:
        flags["num-query-groups"] = c["num_key_value_heads"]
    flags["kv-channels"] = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    flags["add-qkv-bias"] = c["model_type"].startswith("qwen2") or c.get("attention_bias", False)
    flags["qk-layernorm"] = c["model_type"].startswith("qwen3") or c.get("use_qk_norm", False)
    if scaling := c.get("rope_scaling"):
        if scaling["rope_type"] == "llama3":
            flags["use-rope-scaling"], flags["rope-scaling-factor"] = True, scaling["factor"]


def _experts(flags, experts, top, width):
    flags.update({"num-experts": experts, "moe-router-topk": top, "moe-ffn-hidden-size": width, "moe-aux-loss-coeff": 0,
                  "moe-router-dtype": "fp32"})


def _mixtral(c, flags):
    _llama(c, flags)
    _experts(flags, c["num_local_experts"], c["num_experts_per_tok"], c["intermediate_size"])


def _qwen_moe(c, flags):
    _llama(c, flags)
    _experts(flags, c["num_experts"], c["num_experts_per_tok"], c["moe_intermediate_size"])
    flags["moe-router-pre-softmax"] = not c.get("norm_topk_prob", False)
    if shared := c.get("shared_expert_intermediate_size"):
        flags.update({"moe-shared-expert-intermediate-size": shared, "moe-shared-expert-gate": True})


def _dense_first(c, flags):
    first, layers = c.get("first_k_dense_replace", 0), c["num_hidden_layers"]
    flags["moe-layer-freq"] = f"([0]*{first}+[1]*{layers - first})" if first else 1
    if c.get("n_shared_experts"):
        flags["moe-shared-expert-intermediate-size"] = c["n_shared_experts"] * c["moe_intermediate_size"]


def _sigmoid(c, flags):
    flags.update({"moe-router-score-function": "sigmoid", "moe-router-enable-expert-bias": True, "moe-router-bias-update-rate": 0,
                  "moe-router-topk-scaling-factor": c["routed_scaling_factor"], "moe-router-load-balancing-type": "seq_aux_loss"})
    if c["n_group"] > 1:
        flags.update({"moe-router-num-groups": c["n_group"], "moe-router-group-topk": c["topk_group"]})


def _glm(c, flags):
    _llama(c, flags)
    _experts(flags, c["n_routed_experts"], c["num_experts_per_tok"], c["moe_intermediate_size"])
    flags["rotary-percent"] = c["partial_rotary_factor"]
    _dense_first(c, flags)
    _sigmoid(c, flags)


def _deepseek(c, flags):
    _experts(flags, c["n_routed_experts"], c["num_experts_per_tok"], c["moe_intermediate_size"])
    _dense_first(c, flags)
    flags.update({"multi-latent-attention": True, "kv-lora-rank": c["kv_lora_rank"], "qk-head-dim": c["qk_nope_head_dim"],
                  "qk-pos-emb-head-dim": c["qk_rope_head_dim"], "v-head-dim": c["v_head_dim"], "qk-layernorm": True})
    if c.get("q_lora_rank"):
        flags["q-lora-rank"] = c["q_lora_rank"]
    if scaling := c.get("rope_scaling"):
        flags.update({"rope-type": "yarn", "rotary-scaling-factor": scaling["factor"],
                      "original-max-position-embeddings": scaling["original_max_position_embeddings"],
                      "beta-fast": scaling["beta_fast"], "beta-slow": scaling["beta_slow"], "mscale": scaling["mscale"],
                      "mscale-all-dim": scaling["mscale_all_dim"]})
    else:
        flags["rope-type"] = "rope"
    if c["model_type"] == "deepseek_v3":
        _sigmoid(c, flags)
    else:
        flags.update({"moe-router-pre-softmax": True, "moe-router-load-balancing-type": "seq_aux_loss",
                      "moe-router-topk-scaling-factor": c["routed_scaling_factor"]})
