#include "troupe/testing/torch/plan.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

namespace troupe::testing {

Plan plan_of(const at::Tensor& ids_TK, int64_t num_experts, int64_t alignment) {
  const int64_t K = ids_TK.size(1), slots = ids_TK.numel();
  const int64_t bound = slots + num_experts * (alignment - 1);
  const at::Tensor here_TK = ids_TK.cpu().contiguous();
  const int32_t* ids = here_TK.data_ptr<int32_t>();
  const auto ints = at::TensorOptions().dtype(at::kInt);
  Plan p{.expert_offset = at::zeros({num_experts + 1}, ints),
         .row_src = at::full({bound}, -1, ints),
         .row_slot = at::full({bound}, -1, ints),
         .slot_row = at::full(ids_TK.sizes(), -1, ints),
         .counts = at::zeros({num_experts}, at::kLong)};
  int32_t row = 0;
  for (int64_t e = 0; e < num_experts; ++e) {
    for (int64_t s = 0; s < slots; ++s) {
      if (ids[s] != e) continue;
      p.row_src.data_ptr<int32_t>()[row] = static_cast<int32_t>(s / K);
      p.row_slot.data_ptr<int32_t>()[row] = static_cast<int32_t>(s);
      p.slot_row.data_ptr<int32_t>()[s] = row++;
    }
    p.counts.data_ptr<int64_t>()[e] = row - p.expert_offset.data_ptr<int32_t>()[e];
    row = static_cast<int32_t>((row + alignment - 1) / alignment * alignment);
    p.expert_offset.data_ptr<int32_t>()[e + 1] = row;
  }
  for (at::Tensor* x : {&p.expert_offset, &p.row_src, &p.row_slot, &p.slot_row, &p.counts}) {
    *x = x->to(ids_TK.device());
  }
  return p;
}

at::Tensor random_ids(int64_t T, int64_t K, int64_t E, uint64_t seed) {
  std::mt19937_64 rng(seed);
  at::Tensor ids = at::zeros({T, K}, at::kInt);
  std::vector<int32_t> experts(E > 2 && K < E ? E - 1 : E);
  for (int64_t t = 0; t < T; ++t) {
    std::iota(experts.begin(), experts.end(), 0);
    // The first swap prefers low experts, so that counts differ.
    std::swap(experts[0], experts[std::min(rng() % experts.size(), rng() % experts.size())]);
    std::shuffle(experts.begin() + 1, experts.end(), rng);
    std::copy_n(experts.begin(), K, ids.data_ptr<int32_t>() + t * K);
  }
  return ids;
}

}  // namespace troupe::testing
