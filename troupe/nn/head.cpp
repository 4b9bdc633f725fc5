#include "troupe/nn/head.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/roll.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "troupe/core/check.h"
#include "troupe/nn/head_rows.h"
#include "troupe/ops/cross_entropy.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

constexpr int64_t kIgnore = -100;

Linear joint(const ModelConfig& c) {
  const Init init = {.kind = Init::kNormal, .std = c.init_std.value_or(0.02)};
  return Linear({c.width, 2 * c.width, init, false});
}

}  // namespace

MtpModule::MtpModule(const ModelConfig& c, int64_t depth, const BuildOptions& o)
    : token_norm_(c.norm, c.width),
      hidden_norm_(c.norm, c.width),
      proj_(joint(c)),
      block_(c, layer_config(c, c.layers + depth - 1), o),
      norm_(c.norm, c.width) {}

UnitResult MtpModule::forward(const at::Tensor& state, const at::Tensor& tokens, const Batch& batch,
                              const Packing& packing, const Context& context) {
  const at::Tensor both = at::cat({token_norm_.forward(tokens), hidden_norm_.forward(state)}, 2);
  return block_.forward(proj_.forward(both), batch, packing, context);
}

Head::Head(const ModelConfig& c)
    : vocab_(c.vocab), z_loss_(c.z_loss), mtp_weight_(c.mtp.weight), norm_(c.norm, c.width) {
  if (c.tie_embeddings) return;
  const Init init = {.kind = Init::kNormal, .std = c.init_std.value_or(0.02)};
  weight_ = Param::of({padded_vocab(c), c.width}, init, Group::kEmbedding);
}

void Head::add_mtp(const ModelConfig& c, const BuildOptions& o) {
  for (int64_t d = 1; d <= c.mtp.depth; ++d) mtp_.emplace_back(c, d, o);
}

at::Tensor Head::table_of(const Embedding* table) const {
  TROUPE_CHECK(weight_ || table != nullptr, "a tied head needs the embedding");
  const at::Tensor& w = weight_ ? weight_->value : table->tokens.value;
  return w.size(0) == vocab_ ? w : w.narrow(0, 0, vocab_);
}

at::Tensor Head::logits(const at::Tensor& h, const Embedding* table) const {
  return at::linear(norm_.forward(h), table_of(table));
}

at::Tensor Head::loss(const at::Tensor& x_BSD, const Targets& t, const at::Tensor& table) const {
  CrossEntropyOptions options;
  options.z_loss = z_loss_;
  options.ignore = kIgnore;
  if (t.weights_BS.defined()) {
    const auto wide = wide_type(x_BSD);
    options.weight_T = t.weights_BS.reshape({-1}).to(wide);
  }
  return linear_cross_entropy(x_BSD.flatten(0, 1), table, t.labels_BS.reshape({-1}), options,
                              head_rows(vocab_, !x_BSD.is_cpu()))
      .first;
}

UnitResult Head::forward(const at::Tensor& h, const Batch& batch, const Packing& packing,
                         const Context& context, const Embedding* table) {
  TROUPE_CHECK(batch.labels_BS.defined() && batch.labels_BS.sizes() == h.sizes().slice(0, 2),
               "the loss needs labels of sizes", h.sizes().slice(0, 2));
  UnitResult result;
  const at::Tensor x = norm_.forward(h), counted = batch.labels_BS != kIgnore;
  result.loss_sum = loss(x, {batch.labels_BS, batch.weights_BS}, table_of(table));
  result.weight_sum =
      (batch.weights_BS.defined() ? batch.weights_BS * counted : counted).sum(at::kFloat);
  if (!mtp_.empty()) predict_more(x, batch, packing, context, table, result);
  return result;
}

void Head::predict_more(const at::Tensor& x, const Batch& batch, const Packing& packing,
                        const Context& context, const Embedding* table, UnitResult& result) {
  TROUPE_CHECK(table != nullptr, "MTP modules need the embedding");
  const auto depth = static_cast<double>(mtp_.size());
  const int64_t S = x.size(1);
  at::Tensor state = x;
  for (int64_t d = 1; d <= static_cast<int64_t>(mtp_.size()); ++d) {
    MtpModule& module = mtp_[d - 1];
    const int64_t beyond = std::min(d, S);  // the last positions have no target
    UnitResult r =
        module.forward(state, table->rows(at::roll(batch.ids_BS, -d, 1)), batch, packing, context);
    at::Tensor labels = at::roll(batch.labels_BS, -d, 1);
    labels.narrow(1, S - beyond, beyond).fill_(kIgnore);
    if (batch.documents_BS.defined()) {
      const at::Tensor document = batch.documents_BS.to(labels.device());
      labels = labels.masked_fill(at::roll(document, -d, 1) != document, kIgnore);
    }
    const at::Tensor weights =
        batch.weights_BS.defined() ? at::roll(batch.weights_BS, -d, 1) : at::Tensor();
    const at::Tensor sum = loss(module.normed(r.h), {labels, weights}, table_of(table));
    const at::Tensor share = sum * (mtp_weight_ / depth);
    result.mtp_sum = result.mtp_sum.defined() ? result.mtp_sum + share : share;
    for (MoeLoss& l : r.losses) {
      result.losses.push_back({l.name, l.value / depth, l.coefficient / depth});
    }
    result.stats.insert(result.stats.end(), r.stats.begin(), r.stats.end());
    state = r.h;
  }
}

}  // namespace troupe
