// Gathers the rows of all ranks of G, for rules that consider all of their tokens at once: capacity
// (C2), Sinkhorn (R12), expert choice (R13), and quantile balancing (R11) always. Every rank of G
// computes the same decision on the gathered rows and keeps its own part.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>

#include "troupe/core/text/text.h"
#include "troupe/nn/parts/context.h"

namespace troupe {

enum class RoutingScope { kRank, kGroup };
constexpr auto names_of(RoutingScope) {
  return std::array{Named{"rank", RoutingScope::kRank}, Named{"group", RoutingScope::kGroup}};
}

class GroupRows {
 public:
  // For `like`'s T tokens, on its device. With kRank, or if the context has no group, all() is x
  // itself and nothing is copied.
  GroupRows(RoutingScope scope, const Context& context, const Tokens& tokens,
            const at::Tensor& like);

  bool shared() const { return gather_ != nullptr; }
  const std::optional<at::Tensor>& valid() const { return valid_; }  // bool; absent: all
  // x [T, ...] of all of G. A gradient comes back to this rank's own rows.
  at::Tensor all(const at::Tensor& x) const;
  at::Tensor own(const at::Tensor& all) const;  // this rank's rows

 private:
  const RowsOver* gather_ = nullptr;
  struct Own {
    int64_t first = 0, count = 0;
    at::Tensor index_T = {};  // their places among all; undefined: from `first` on
    at::Tensor of(const at::Tensor& all) const;
  };
  int64_t tokens_;
  Own own_;
  std::optional<at::Tensor> valid_;
};

}  // namespace troupe
