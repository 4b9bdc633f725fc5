// Rules that may look at the tokens of all of G at once: capacity (C2), Sinkhorn (R12), expert
// choice (R13), and quantile balancing (R11) always. A rank hands its rows over, decides on all of
// them as every rank of G does, and takes its own back.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>

#include "troupe/core/text/text.h"
#include "troupe/nn/context.h"

namespace troupe {

enum class RoutingScope { kRank, kGroup };
constexpr auto names_of(RoutingScope) {
  return std::array{Named{"rank", RoutingScope::kRank}, Named{"group", RoutingScope::kGroup}};
}

class GroupRows {
 public:
  // Of `like`'s T tokens, on its device. With kRank, or where the context has no group, the rows
  // are this rank's alone and nothing is copied.
  GroupRows(RoutingScope scope, const Context& context, const Tokens& tokens,
            const at::Tensor& like);

  bool shared() const { return gather_ != nullptr; }
  const std::optional<at::Tensor>& valid() const { return valid_; }  // bool; absent: all
  // x [T, ...] of all of G. A gradient comes back to this rank's own rows.
  at::Tensor all(const at::Tensor& x) const;
  at::Tensor own(const at::Tensor& all) const;  // this rank's rows

 private:
  const RowsOver* gather_ = nullptr;
  int64_t tokens_, first_ = 0;
  std::optional<at::Tensor> valid_;
};

}  // namespace troupe
