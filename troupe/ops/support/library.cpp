// All operators: torch.ops.troupe.* in Python. Each define_x is in ops/x.cpp, with its schema.
#include <torch/library.h>

#include "troupe/ops/support/trial_kernels.h"

namespace troupe {

void define_accumulate(torch::Library& m);
void define_activation(torch::Library& m);
void define_adamw(torch::Library& m);
void define_attention(torch::Library& m);
void define_block_sparse(torch::Library& m);
void define_capacity(torch::Library& m);
void define_combine(torch::Library& m);
void define_cross_entropy(torch::Library& m);
void define_cumsum(torch::Library& m);
void define_expert_choice(torch::Library& m);
void define_fp8(torch::Library& m);
void define_gather(torch::Library& m);
void define_grad_norm(torch::Library& m);
void define_group_bias(torch::Library& m);
void define_grouped_gemm(torch::Library& m);
void define_histogram(torch::Library& m);
void define_jitter(torch::Library& m);
void define_moe_ffn(torch::Library& m);
void define_moe_ffn_fp8(torch::Library& m);
void define_norm(torch::Library& m);
void define_permute(torch::Library& m);
void define_quantile(torch::Library& m);
void define_quantize(torch::Library& m);
void define_radix_sort(torch::Library& m);
void define_rank_copies(torch::Library& m);
void define_replicate(torch::Library& m);
void define_rotary(torch::Library& m);
void define_route(torch::Library& m);
void define_routing_plan(torch::Library& m);
void define_sinkhorn(torch::Library& m);
void define_slot_dot(torch::Library& m);
void define_topology(torch::Library& m);
void define_wire_rows(torch::Library& m);

}  // namespace troupe

TORCH_LIBRARY(troupe, m) {
  troupe::define_accumulate(m);
  troupe::define_activation(m);
  troupe::define_adamw(m);
  troupe::define_attention(m);
  troupe::define_block_sparse(m);
  troupe::define_capacity(m);
  troupe::define_combine(m);
  troupe::define_cross_entropy(m);
  troupe::define_cumsum(m);
  troupe::define_expert_choice(m);
  troupe::define_fp8(m);
  troupe::define_gather(m);
  troupe::define_grad_norm(m);
  troupe::define_group_bias(m);
  troupe::define_grouped_gemm(m);
  troupe::define_histogram(m);
  troupe::define_jitter(m);
  troupe::define_moe_ffn(m);
  troupe::define_moe_ffn_fp8(m);
  troupe::define_norm(m);
  troupe::define_permute(m);
  troupe::define_quantile(m);
  troupe::define_quantize(m);
  troupe::define_radix_sort(m);
  troupe::define_rank_copies(m);
  troupe::define_replicate(m);
  troupe::define_rotary(m);
  troupe::define_route(m);
  troupe::define_routing_plan(m);
  troupe::define_sinkhorn(m);
  troupe::define_slot_dot(m);
  troupe::define_topology(m);
  troupe::define_wire_rows(m);
  m.def("set_trial_kernels(bool on) -> ()", troupe::set_trial_kernels);
}
