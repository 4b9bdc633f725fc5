"""megatron_model.py OUTPUT FAMILY TP PP EP [FROM]: a small model of megatron-core, on the CPU, one process a rank (RANK,
WORLD_SIZE and MASTER_PORT are set). It leaves OUTPUT/torch_dist, as Megatron-LM's training saves it, with a tracker file;
OUTPUT/legacy with mp_rank_* folders of the same; and of one rank logits.pt, of IDS. FROM: a torch_dist folder whose
weights it takes, whatever layout wrote it."""
import argparse
import contextlib
import pathlib
import sys

import torch
import torch.distributed as dist

VOCAB, PADDED = 93, 96
IDS = torch.arange(40).view(2, 20) * 7 % VOCAB
WHOLE = dict(num_layers=2, hidden_size=32, num_attention_heads=4, ffn_hidden_size=48, normalization="RMSNorm",
             add_bias_linear=False, layernorm_epsilon=1e-5)
EXPERTS = dict(num_moe_experts=4, moe_router_topk=2, moe_ffn_hidden_size=24)
FAMILIES = {
    "llama": dict(WHOLE, num_query_groups=2),
    "mixtral": dict(WHOLE, num_query_groups=2, **EXPERTS),
    "qwen3_moe": dict(WHOLE, num_query_groups=2, kv_channels=12, qk_layernorm=True, moe_layer_freq=[0, 1], **EXPERTS),
    "deepseek_v3": dict({**WHOLE, "layernorm_epsilon": 1e-6}, **EXPERTS, q_lora_rank=16, kv_lora_rank=20, qk_head_dim=12,
                        qk_pos_emb_head_dim=8, v_head_dim=12, kv_channels=12, rope_type="rope", qk_layernorm=True,
                        moe_layer_freq=[0, 1], mtp_num_layers=1, moe_shared_expert_intermediate_size=48,
                        moe_router_score_function="sigmoid", moe_router_enable_expert_bias=True,
                        moe_router_topk_scaling_factor=2.5, multi_latent_attention=True, rotary_scaling_factor=1.0,
                        mscale=1.0, mscale_all_dim=0.0),
    "gpt_oss": dict({**WHOLE, "add_bias_linear": True}, **EXPERTS, num_query_groups=2, softmax_type="learnable",
                    glu_linear_offset=1.0, activation_func_clamp_value=7.0),
}
FAMILIES["grouped"] = dict(FAMILIES["mixtral"], moe_grouped_gemm=True)  # Mixtral, with experts in one matrix


def on_the_cpu():
    """Megatron asks for a CUDA device, and for others' kernels, in places where none is needed."""
    from megatron.core.fusions import fused_softmax
    from megatron.core.tensor_parallel.random import CudaRNGStatesTracker
    from megatron.core.transformer.dot_product_attention import DotProductAttention
    from megatron.core.transformer import multi_latent_attention
    from megatron.core.transformer.moe import grouped_gemm_util, moe_utils
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.synchronize = lambda *_: None
    CudaRNGStatesTracker.fork = lambda *_: contextlib.nullcontext()
    fused_softmax.get_default_causal_mask = lambda n: torch.ones(n, n).triu(1).bool()
    grouped_gemm_util.assert_grouped_gemm_is_available = lambda: None
    moe_utils.te_general_gemm = None  # named there only where TransformerEngine is
    multi_latent_attention.TELinear = type(None)  # likewise
    plain = DotProductAttention.__init__
    DotProductAttention.__init__ = lambda self, *given, k_channels=0, v_channels=0, **named: plain(self, *given, **named)


def build(family, tp, pp, ep):
    from megatron.core import parallel_state
    from megatron.core.fusions.fused_bias_geglu import quick_gelu
    from megatron.core.models.gpt import gpt_layer_specs as specs
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig
    chosen = FAMILIES[family]
    parallel_state.initialize_model_parallel(tp, pp, expert_model_parallel_size=ep)
    torch.manual_seed(1)
    config = (MLATransformerConfig if chosen.get("multi_latent_attention") else TransformerConfig)(
        **chosen, use_cpu_initialization=True, gated_linear_unit=True,
        activation_func=quick_gelu if family == "gpt_oss" else torch.nn.functional.silu,
        tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp, expert_model_parallel_size=ep,
        pipeline_dtype=torch.float32, moe_token_dispatcher_type="allgather",
        moe_router_load_balancing_type="none", attention_dropout=0.0, hidden_dropout=0.0, masked_softmax_fusion=False,
        bias_activation_fusion=False, bias_dropout_fusion=False, gradient_accumulation_fusion=False)
    if isinstance(chosen.get("moe_layer_freq"), list):
        spec = specs.get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization="RMSNorm")
    else:
        spec = specs.get_gpt_layer_local_spec(chosen.get("num_moe_experts"), chosen.get("moe_grouped_gemm", False),
                                              normalization="RMSNorm")
    ahead = specs.get_gpt_mtp_block_spec(config, spec, False) if chosen.get("mtp_num_layers") else None
    model = GPTModel(config, spec, vocab_size=PADDED, max_sequence_length=64, position_embedding_type="rope",
                     pre_process=parallel_state.is_pipeline_first_stage(), parallel_output=False, rotary_base=10000,
                     post_process=parallel_state.is_pipeline_last_stage(), share_embeddings_and_output_weights=False,
                     mtp_block_spec=ahead)
    with torch.no_grad():
        for name, p in [*model.named_parameters(), *model.named_buffers()]:
            if p.dim() == 1:
                p.uniform_(0.5, 1.5)
            else:
                p.mul_(5)
    return model.eval()


def saved_args(family, tp, pp, ep):
    """Those of Megatron-LM's arguments that tell the model and its layout."""
    chosen = dict(FAMILIES[family])
    given = {"multi_latent_attention": False, "group_query_attention": "num_query_groups" in chosen, "swiglu": True,
             "norm_epsilon": chosen.pop("layernorm_epsilon"), "num_experts": chosen.pop("num_moe_experts", None),
             "position_embedding_type": "rope", "rotary_base": 10000, "rotary_percent": 1.0, "vocab_size": VOCAB,
             "padded_vocab_size": PADDED, "max_position_embeddings": 64, "untie_embeddings_and_output_weights": True,
             "tensor_model_parallel_size": tp, "pipeline_model_parallel_size": pp, "expert_model_parallel_size": ep}
    return argparse.Namespace(**{**given, **chosen})


def save(out, model, family, layout):
    from megatron.core import dist_checkpointing, parallel_state
    common = {"args": saved_args(family, *layout), "checkpoint_version": 3.0, "iteration": 10}
    folder = out / "torch_dist/iter_0000010"
    folder.mkdir(parents=True, exist_ok=True)
    dist.barrier()
    dist_checkpointing.save({**common, "model": model.sharded_state_dict()}, str(folder))
    (out / "torch_dist/latest_checkpointed_iteration.txt").write_text("10")
    name = f"mp_rank_{parallel_state.get_tensor_model_parallel_rank():02d}"
    if layout[1] > 1:
        name += f"_{parallel_state.get_pipeline_model_parallel_rank():03d}"
    if layout[2] > 1:
        name += f"_{parallel_state.get_expert_model_parallel_rank():03d}"
    folder = out / "legacy/iter_0000010" / name
    folder.mkdir(parents=True, exist_ok=True)
    torch.save({**common, "model": model.state_dict_for_save_checkpoint()}, folder / "model_optim_rng.pt")
    (out / "legacy/latest_checkpointed_iteration.txt").write_text("10")


def main(out, family, layout, origin):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    on_the_cpu()
    from megatron.core import dist_checkpointing
    model = build(family, *layout)
    if origin:
        state = dist_checkpointing.load({"model": model.sharded_state_dict()}, origin)
        model.load_state_dict(state["model"])
    save(out, model, family, layout)
    if dist.get_world_size() == 1 and family != "grouped":  # that one runs on a GPU alone
        model.mtp_process, model.config.mtp_num_layers = False, None  # it wants labels
        with torch.no_grad():
            torch.save(model(IDS, torch.arange(IDS.shape[1]).expand_as(IDS), None)[..., :VOCAB].clone(), out / "logits.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2], [int(n) for n in sys.argv[3:6]], sys.argv[6] if len(sys.argv) > 6 else None)
