#include "troupe/distributed/group/head_exchange.h"

#include <ATen/ops/empty_like.h>

#include <vector>

#include "troupe/core/check.h"
#include "troupe/ops/support/autograd.h"

namespace troupe {

at::Tensor HeadExchange::exchanged(const at::Tensor& x_RTX) const {
  if (ranks() == 1) return x_RTX;
  const at::Tensor in = x_RTX.contiguous(), out = at::empty_like(in);
  const int64_t rows = in.size(1);
  const std::vector<int64_t> counts(static_cast<size_t>(ranks()), rows);
  const auto scope = watch_.begin(Phase::kKeys);
  group_->all_to_all(out.flatten(0, 1), in.flatten(0, 1), counts, counts).wait();
  return out;
}

at::Tensor HeadExchange::gather_heads(const at::Tensor& own, const at::Tensor& order) const {
  TROUPE_CHECK(own.dim() == 3 && own.size(1) == ranks() && order.size(0) == own.size(0) * ranks(),
               "heads of", own.sizes(), "over", ranks(), "ranks, in an order of", order.sizes());
  return exchanged(own.detach().transpose(0, 1)).flatten(0, 1).index_select(0, order);
}

at::Tensor HeadExchange::scatter_heads(const at::Tensor& all, const at::Tensor& order) const {
  const int64_t tokens = order.size(0) / ranks();
  TROUPE_CHECK(all.dim() == 2 && all.size(0) == order.size(0), "tokens of", all.sizes(),
               "in an order of", order.sizes());
  const at::Tensor by_rank = at::empty_like(all, all.options().requires_grad(false));
  by_rank.index_copy_(0, order, all.detach());  // each row once
  return exchanged(by_rank.view({ranks(), tokens, all.size(1)})).transpose(0, 1).contiguous();
}

at::Tensor HeadExchange::to_heads(const at::Tensor& own, const at::Tensor& order) const {
  const at::Tensor out = gather_heads(own, order);
  record({.name = "to_heads",
          .inputs = {own},
          .outputs = {out},
          .saved = {order},
          .backward = [exchange = *this](const Gradients& g) -> TensorList {
            return {exchange.scatter_heads(g.outputs[0], g.saved[0])};
          }});
  return out;
}

at::Tensor HeadExchange::to_tokens(const at::Tensor& all, const at::Tensor& order) const {
  const at::Tensor out = scatter_heads(all, order);
  record({.name = "to_tokens",
          .inputs = {all},
          .outputs = {out},
          .saved = {order},
          .backward = [exchange = *this](const Gradients& g) -> TensorList {
            return {exchange.gather_heads(g.outputs[0], g.saved[0])};
          }});
  return out;
}

}  // namespace troupe
