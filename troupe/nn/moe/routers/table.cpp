#include "troupe/nn/moe/routers/table.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <limits>

#include "troupe/core/check.h"
#include "troupe/core/file/file.h"

namespace troupe {
namespace {

// The file's rows, checked against the vocabulary and the experts.
at::Tensor load_table(const std::string& path, const RouterShape& shape) {
  const InputFile file(path);
  const int64_t bytes = shape.vocab * shape.top_k * 4;
  if (file.size() != bytes) {
    fail(Code::kUnreadableData, path, "has", file.size(), "bytes; a table of", shape.vocab,
         "tokens and", shape.top_k, "int32 experts each has", bytes);
  }
  at::Tensor table = at::empty({shape.vocab, shape.top_k}, at::kInt);
  file.read_at(0, std::as_writable_bytes(std::span(table.mutable_data_ptr<int32_t>(),
                                                   static_cast<size_t>(table.numel()))));
  check_table(table, shape.experts);
  return table;
}

class TableRouter : public Router {
 public:
  TableRouter(const TableRouting& config, const RouterShape& shape)
      : gate_(config.gate, shape), shape_(shape) {
    balance_.z_loss = config.z_loss;
    options_.top_k = shape.top_k;
    options_.score = config.score;
    options_.weighting =
        config.score == RouterScore::kSoftmax ? RouterWeighting::kRaw : RouterWeighting::kSum;
    options_.scale = config.scale;
    options_.balance = false;
    if (config.table != "round_robin") table_VK_ = load_table(config.table, shape);
  }

  RouterOutput forward(const at::Tensor& x_TD, const Tokens& tokens,
                       const Context& context) override {
    SelectOptions options = options_;
    options.given_ids_TK = choices(x_TD, tokens);
    return route_gated(gate_, x_TD, tokens, context, options);
  }
  const BalanceConfig& balance() const override { return balance_; }
  int64_t slots() const override { return shape_.top_k; }
  bool may_drop() const override { return true; }
  void for_each(const std::string& prefix, const VisitParam& f) override {
    for_each_param(gate_, prefix, f);
  }

 private:
  at::Tensor choices(const at::Tensor& x_TD, const Tokens& tokens) {
    TROUPE_CHECK(tokens.ids_T.defined() && tokens.ids_T.numel() == x_TD.size(0),
                 "table routing needs the token ids of all", x_TD.size(0), "tokens");
    const at::Tensor ids_T = tokens.ids_T.reshape({-1}).to(at::kLong);
    if (table_VK_.defined()) {
      if (table_VK_.device() != ids_T.device()) table_VK_ = table_VK_.to(ids_T.device());
      return table_VK_.index_select(0, ids_T);
    }
    const at::Tensor j = at::arange(shape_.top_k, ids_T.options());
    return (ids_T.unsqueeze(1) + j).remainder(shape_.experts).to(at::kInt);
  }

  Gate gate_;
  RouterShape shape_;
  BalanceConfig balance_;
  SelectOptions options_;
  at::Tensor table_VK_;  // int32; undefined: round robin
};

}  // namespace

void check_table(const at::Tensor& table_VK, int64_t experts) {
  const at::Tensor host = table_VK.to(at::kInt).cpu().contiguous();
  const int64_t K = host.size(1);
  const auto* row = host.const_data_ptr<int32_t>();
  for (int64_t v = 0; v < host.size(0); ++v, row += K) {
    for (int64_t j = 0; j < K; ++j) {
      if (row[j] < 0 || row[j] >= experts) {
        fail(Code::kBadValue, kRouterPlace, "the table's row", v, "names expert", row[j], "of",
             experts);
      }
      if (std::find(row, row + j, row[j]) != row + j) {
        fail(Code::kBadValue, kRouterPlace, "the table's row", v, "names expert", row[j], "twice");
      }
    }
  }
}

std::unique_ptr<Router> TableRouting::build(const RouterShape& shape) const {
  validate(shape);
  return std::make_unique<TableRouter>(*this, shape);
}

}  // namespace troupe
