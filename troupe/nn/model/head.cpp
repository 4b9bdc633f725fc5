#include "troupe/nn/model/head.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "troupe/core/check.h"
#include "troupe/nn/attention/ahead.h"
#include "troupe/nn/model/head_rows.h"
#include "troupe/ops/cross_entropy.h"
#include "troupe/ops/preference_loss.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

Linear joint(const ModelConfig& c) {
  const Init init = {.kind = Init::kNormal, .std = c.init_std.value_or(0.02)};
  return Linear({c.width, 2 * c.width, init, false});
}

}  // namespace

MtpModule::MtpModule(const ModelConfig& c, int64_t depth, const BuildOptions& o)
    : token_norm_(c.norm, c.width),
      hidden_norm_(c.norm, c.width),
      proj_(joint(c)),
      block_(build_block({c, layer_config(c, c.layers + depth - 1), o})),
      norm_(c.norm, c.width) {}

UnitResult MtpModule::forward(const at::Tensor& h, const at::Tensor& tokens, const Batch& batch,
                              const Packing& packing, const Context& context) {
  const at::Tensor both = at::cat({token_norm_.forward(tokens), hidden_norm_.forward(h)}, 1);
  return block_->forward(proj_.forward(both), batch, packing, context);
}

Head::Head(const ModelConfig& c, const BuildOptions& o, const std::vector<bool>& here)
    : vocab_(c.vocab),
      depth_(c.mtp.depth),
      z_loss_(c.z_loss),
      mtp_weight_(c.mtp.weight),
      parts_(o.tensor),
      mtp_(static_cast<size_t>(c.mtp.depth)) {
  if (here.front()) norm_.emplace(c.norm, c.width);
  for (size_t i = 0; i < mtp_.size(); ++i) {
    if (here[i]) mtp_[i] = std::make_unique<MtpModule>(c, static_cast<int64_t>(i) + 1, o);
  }
  if (!here.back() || c.tie_embeddings) return;
  const Init init = {.kind = Init::kNormal, .std = c.init_std.value_or(0.02)};
  weight_ = Param::of({padded_vocab(c), c.width}, init, Group::kEmbedding);
  parts_.cut_table(*weight_);
}

MoeLayer* Head::moe(int64_t module) {
  const auto& here = mtp_.at(static_cast<size_t>(module) - 1);
  return here ? here->moe() : nullptr;
}

void Head::for_each_param_of(int64_t unit, const ParamVisitor& f) {
  if (unit == 1) for_each_param(norm_, "norm", f);
  if (unit > depth_) return for_each_param(weight_, "weight", f);
  const auto i = static_cast<size_t>(unit) - 1;
  for_each_param(mtp_.at(i), "mtp." + std::to_string(i), f);
}

TableRows Head::table_of(const Embedding* table) const {
  TROUPE_CHECK(weight_ || table != nullptr, "a tied head needs the embedding");
  const Param& p = weight_ ? *weight_ : table->tokens;
  const int64_t rows = std::clamp<int64_t>(vocab_ - p.offset[0], 0, p.size[0]);
  return {rows == p.size[0] ? p.value : p.value.narrow(0, 0, rows), p.offset[0], vocab_};
}

at::Tensor Head::logits(const at::Tensor& h, const Context& context, const Embedding* table) const {
  const TableRows rows = table_of(table);
  const at::Tensor x = depth_ == 0 ? norm_->forward(h) : h;
  context.output("head.norm", x);
  at::Tensor own = at::linear(x, rows.weight_VD);  // [.., rows here]
  if (parts_.sharding.alone() || !parts_.split_vocab) return own;
  // Ranks have different numbers of rows: each writes its own among zeros.
  std::vector<int64_t> sizes = own.sizes().vec();
  sizes.back() = vocab_;
  const at::Tensor all = at::zeros(sizes, own.options().requires_grad(false));
  if (own.size(-1) > 0) all.narrow(-1, rows.from, own.size(-1)).copy_(own);  // else padding alone
  return parts_.sharding.all_reduce_no_grad(all);
}

at::Tensor Head::loss(const at::Tensor& x_tD, const AheadTokens& t, const TableRows& table) const {
  CrossEntropyOptions options;
  options.z_loss = z_loss_;
  options.ignore = kIgnoredLabel;
  const TokenSharding& sharding = parts_.sharding;
  if (t.weights_BS.defined()) {
    const auto wide = wide_type(x_tD);
    options.weight_T = sharding.own_rows(t.weights_BS.reshape({-1})).to(wide);
  }
  const at::Tensor labels = t.labels_BS.reshape({-1}), own = sharding.own_rows(labels);
  const int64_t chunk = head_rows(vocab_, !x_tD.is_cpu());
  if (!sharding.alone() && parts_.split_vocab) {
    return split_cross_entropy(sharding, x_tD, table, own, options,
                               {labels.numel(), chunk * sharding.ranks()});
  }
  return linear_cross_entropy(x_tD, table.weight_VD, own, options, chunk).first;
}

void Head::add_taught(const at::Tensor& x_TD, const Batch& batch, const TableRows& table,
                      UnitResult& result) const {
  TROUPE_CHECK(parts_.sharding.alone(), "a teacher's logits are of all tokens of a microbatch");
  CrossEntropyOptions options{.z_loss = z_loss_, .ignore = kIgnoredLabel};
  if (batch.weights_BS.defined()) {
    options.weight_T = batch.weights_BS.reshape({-1}).to(wide_type(x_TD));
  }
  const TaughtLoss all =
      taught_cross_entropy(x_TD, table.weight_VD, batch.labels_BS.reshape({-1}), options,
                           *batch.soft, head_rows(vocab_, !x_TD.is_cpu()));
  result.loss_sum = all.loss;
  result.ce_sum = all.ce;
  result.kl_sum = all.kl;
}

void Head::add_preference(const at::Tensor& x_TD, const Batch& batch, const TableRows& table,
                          UnitResult& result) const {
  TROUPE_CHECK(parts_.sharding.alone() && batch.slice == nullptr && batch.weights_BS.defined(),
               "preference pairs are whole rows with weights, on one rank");
  const int64_t rows = batch.ids_BS.size(0);
  const at::Tensor weights_BS = batch.weights_BS.to(wide_type(x_TD));
  const at::Tensor labels = batch.labels_BS.reshape({-1}), weights = weights_BS.reshape({-1});
  const at::Tensor lp_B = row_log_probs({x_TD, table.weight_VD, labels, weights}, rows,
                                        head_rows(vocab_, !x_TD.is_cpu()));
  result.log_probs_B = lp_B.detach();
  const Preference& pairs = *batch.preference;
  if (!pairs.reference_B.defined()) return;
  const PreferenceLoss all =
      preference_loss({lp_B, pairs.reference_B, weights_BS.sum(1)}, pairs.options);
  result.loss_sum = all.loss;
  result.rewards_3 = all.rewards_3;
}

std::vector<AheadTokens> Head::ahead(const Batch& batch) const {
  std::vector<AheadTokens> out = batch.ahead.empty() ? ahead_of(batch, depth_) : batch.ahead;
  TROUPE_CHECK(std::ssize(out) == depth_, "the batch has tokens ahead for", out.size(),
               "MTP modules of", depth_);
  return out;
}

UnitResult Head::forward(const at::Tensor& h, const Batch& batch, const Context& context,
                         const Embedding* table) {
  TROUPE_CHECK(batch.labels_BS.defined() && batch.labels_BS.sizes() == batch.ids_BS.sizes(),
               "the loss needs labels of sizes", batch.ids_BS.sizes());
  UnitResult result;
  const int64_t modules = context.training ? depth_ : 0, tokens = h.size(0) / (modules + 1);
  const at::Tensor x = depth_ == 0 ? norm_->forward(h) : h.narrow(0, 0, tokens),
                   counted = batch.labels_BS != kIgnoredLabel;
  const TableRows rows = table_of(table);
  if (batch.preference) {
    TROUPE_CHECK(depth_ == 0, "preference pairs and", depth_, "MTP modules");
    add_preference(x, batch, rows, result);
  } else if (batch.soft && context.training) {
    add_taught(x, batch, rows, result);
  } else {
    result.loss_sum = loss(x, {{}, batch.labels_BS, batch.weights_BS}, rows);
  }
  const at::Tensor weights = batch.weights_BS.defined() ? batch.weights_BS * counted : counted;
  result.weight_sum = parts_.sharding.own_rows(weights.reshape({-1})).sum(at::kFloat);
  if (modules == 0) return result;
  const std::vector<AheadTokens> targets = ahead(batch);
  for (int64_t d = 1; d <= modules; ++d) {
    const at::Tensor sum =
        loss(h.narrow(0, d * tokens, tokens), targets[static_cast<size_t>(d) - 1], rows);
    const at::Tensor share = sum * (mtp_weight_ / static_cast<double>(depth_));
    result.mtp_sum = result.mtp_sum.defined() ? result.mtp_sum + share : share;
  }
  return result;
}

UnitResult Head::predict(int64_t d, const at::Tensor& h, const BlockCall& call,
                         const Embedding& table) {
  const bool first = d == 1;
  const at::Tensor x = first ? norm_->forward(h) : h;  // and n_1 .. s_(d-1) behind it
  if (!call.context.training) {
    UnitResult out;
    out.h = x;
    return out;
  }
  MtpModule& module = *mtp_.at(static_cast<size_t>(d) - 1);
  const int64_t tokens = h.size(0) / (first ? 1 : d + 1);
  const at::Tensor before = first ? x : h.narrow(0, d * tokens, tokens);
  const AheadTokens tokens_ahead = ahead(call.batch)[static_cast<size_t>(d) - 1];
  UnitResult r = module.forward(before, table.rows(tokens_ahead.ids_BS), call.batch, call.packing,
                                call.context);
  for (MoeLoss& l : r.losses) {
    const auto depth = static_cast<double>(depth_);
    l = {l.name, l.value / depth, l.coefficient / depth};
  }
  std::vector<at::Tensor> out = {first ? x : h.narrow(0, 0, d * tokens), module.normed(r.h)};
  if (d < depth_) out.push_back(r.h);
  r.h = at::cat(out);
  return r;
}

}  // namespace troupe
