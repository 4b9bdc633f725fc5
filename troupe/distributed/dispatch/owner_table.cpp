#include "troupe/distributed/dispatch/owner_table.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <vector>

namespace troupe {

OwnerTable::OwnerTable(const ExpertPlacement& p)
    : ranks_(p.ranks()), experts_(p.experts()), slices_(p.slices()) {
  size_t most = 1;
  for (int64_t e = 0; e < experts_; ++e) most = std::max(most, p.owners(e).size());
  std::vector<int64_t> owners, replicas;
  for (int64_t e = 0; e < experts_; ++e) {
    const auto& all = p.owners(e);
    replicas.push_back(static_cast<int64_t>(all.size()));
    for (size_t i = 0; i < most; ++i) owners.push_back(all[i % all.size()]);
  }
  std::vector<int32_t> local(ranks_ * experts_, -1);
  for (int64_t w = 0; w < ranks_; ++w) {
    int32_t next = 0;
    for (const int64_t e : p.held_by(w)) local[w * experts_ + e] = next++;
  }
  tensors_ = {.owners_EM = at::tensor(owners, at::kLong).reshape({experts_, -1}),
              .replicas_E = at::tensor(replicas, at::kLong),
              .local_WE = at::tensor(local, at::kInt).reshape({ranks_, experts_})};
}

const OwnerTable::Tensors& OwnerTable::on(const at::Device& device) {
  for (at::Tensor* x : {&tensors_.owners_EM, &tensors_.replicas_E, &tensors_.local_WE}) {
    *x = x->to(device);
  }
  return tensors_;
}

at::Tensor OwnerTable::owners(const at::Tensor& ids_TK, const at::Tensor& index_T) {
  const Tensors& table = on(ids_TK.device());
  const at::Tensor ids = ids_TK.to(at::kLong).clamp(0, experts_ - 1);
  const at::Tensor token =
      (index_T.defined() ? index_T : at::arange(ids.size(-2), ids.options())).unsqueeze(1);
  const at::Tensor replica = token.remainder(table.replicas_E.index({ids}));
  return table.owners_EM.index({ids, replica});
}

at::Tensor OwnerTable::sent(const at::Tensor& ids_TK, const at::Tensor& index_T) {
  const at::Tensor& owners_EM = on(ids_TK.device()).owners_EM;
  const at::Tensor valid = ids_TK.ge(0).logical_and(ids_TK.lt(experts_));
  const at::Tensor rank_W11 = at::arange(ranks_, owners_EM.options()).reshape({-1, 1, 1});
  if (slices_ == 1) return owners(ids_TK, index_T).eq(rank_W11).logical_and(valid);
  const at::Tensor ids = ids_TK.to(at::kLong).clamp(0, experts_ - 1);
  return owners_EM.index({ids}).eq(rank_W11.unsqueeze(3)).any(-1).logical_and(valid);
}

at::Tensor OwnerTable::held_ids(const at::Tensor& ids_WTK, int64_t rank) {
  const at::Tensor& local_WE = on(ids_WTK.device()).local_WE;
  const at::Tensor ids = ids_WTK.to(at::kLong).clamp(0, experts_ - 1);
  at::Tensor elsewhere = ids_WTK.lt(0).logical_or(ids_WTK.ge(experts_));
  if (slices_ == 1) elsewhere = elsewhere.logical_or(owners(ids_WTK).ne(rank));
  return local_WE[rank].index({ids}).masked_fill(elsewhere, -1);
}

}  // namespace troupe
