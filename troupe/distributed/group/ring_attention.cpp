#include "troupe/distributed/group/ring_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "troupe/core/check.h"
#include "troupe/ops/support/view.h"

namespace troupe {

RingRows ring_rows(std::vector<RingRound> rounds, const c10::Device& device) {
  RingRows out;
  for (const RingRound& round : rounds) {
    out.sent.push_back(at::tensor(round.sent, at::kLong).to(device));
  }
  out.rounds = std::move(rounds);
  return out;
}

struct RingAttention::Call {
  at::Tensor q_THd, kv_TN;  // without a graph
  int64_t kv_heads;
  PartForm form;  // without segments
  std::optional<at::Tensor> sinks_H;
  const RingRows& rows;

  PartInputs inputs(const at::Tensor& kv_PN) const {
    const int64_t P = kv_PN.size(0), d = q_THd.size(2), keys = kv_heads * d;
    const int64_t values = kv_PN.size(1) - keys;
    return {q_THd, kv_PN.narrow(1, 0, keys).view({P, kv_heads, d}),
            kv_PN.narrow(1, keys, values).view({P, kv_heads, values / kv_heads})};
  }
  PartForm of_pass(const std::vector<AttentionSegment>& segments) const {
    return {form.scale, form.window, segments};
  }
};

struct RingAttention::Coming {
  at::Tensor rows;
  Pending pending = {};
};

namespace {

at::Tensor empty_rows(const at::Tensor& like, int64_t rows) {
  return at::empty({rows, like.size(1)}, like.options().requires_grad(false));
}

std::vector<int64_t> all_of_one(int64_t ranks, int64_t rank, int64_t rows) {
  std::vector<int64_t> out(static_cast<size_t>(ranks), 0);
  out[static_cast<size_t>(rank)] = rows;
  return out;
}

}  // namespace

RingAttention::Coming RingAttention::begin(const Call& call, size_t i) const {
  if (i == 0) return {call.kv_TN};
  const RingRound& round = call.rows.rounds[i];
  Coming out{empty_rows(call.kv_TN, round.keys)};
  out.pending = group_->all_to_all(out.rows, call.kv_TN.index_select(0, call.rows.sent[i]),
                                   all_of_one(ranks(), round.from, round.keys),
                                   all_of_one(ranks(), round.to, std::ssize(round.sent)));
  return out;
}

RingAttention::Coming RingAttention::begin_home(const Call& call, size_t i,
                                                const at::Tensor& grad) const {
  const RingRound& round = call.rows.rounds[i];
  Coming out{empty_rows(call.kv_TN, std::ssize(round.sent))};
  out.pending = group_->all_to_all(out.rows, grad.to(call.kv_TN.scalar_type()),
                                   all_of_one(ranks(), round.to, std::ssize(round.sent)),
                                   all_of_one(ranks(), round.from, round.keys));
  return out;
}

at::Tensor RingAttention::arrived(Coming& coming) const {
  if (coming.pending.done()) return coming.rows;
  const auto scope = watch_.begin(Phase::kKeys);
  coming.pending.wait();
  return coming.rows;
}

AttentionPart RingAttention::forward(const Call& call) const {
  const at::NoGradGuard no_grad;
  const std::vector<RingRound>& rounds = call.rows.rounds;
  const int64_t e = call.kv_TN.size(1) / call.kv_heads - call.q_THd.size(2);
  AttentionPart sum = no_keys(call.q_THd, e, call.sinks_H);
  Coming next = begin(call, 0);
  for (size_t i = 0; i < rounds.size(); ++i) {
    const at::Tensor kv = arrived(next);
    if (i + 1 < rounds.size()) next = begin(call, i + 1);
    for (const auto& segments : rounds[i].passes) {
      join(sum, attention_part(call.inputs(kv), call.of_pass(segments)));
    }
  }
  return sum;
}

// Gradients of q and kv.
TensorList RingAttention::backward(const Call& call, const AttentionPart& whole,
                                   const at::Tensor& grad) const {
  const at::NoGradGuard no_grad;
  const std::vector<RingRound>& rounds = call.rows.rounds;
  const auto zeros = [&](const at::Tensor& like) {
    return at::zeros(like.sizes(), grad.options().requires_grad(false));
  };
  const at::Tensor q_sum = zeros(call.q_THd), kv_sum = zeros(call.kv_TN);
  Coming next = begin(call, 0), home;
  const auto add_home = [&](size_t i) {  // of each own token once
    kv_sum.index_add_(0, call.rows.sent[i], arrived(home).to(kv_sum.scalar_type()));
  };
  for (size_t i = 0; i < rounds.size(); ++i) {
    const at::Tensor kv = arrived(next);
    if (i + 1 < rounds.size()) next = begin(call, i + 1);
    const at::Tensor kv_grad = i == 0 ? kv_sum : zeros(kv);
    for (const auto& segments : rounds[i].passes) {
      const PartGradients part =
          attention_part_backward(call.inputs(kv), call.of_pass(segments), whole, grad);
      q_sum.add_(part.q_THd);
      kv_grad.add_(at::cat({part.k_PGd.flatten(1), part.v_PGe.flatten(1)}, 1));
    }
    if (i > 1) add_home(i - 1);
    if (i > 0) home = begin_home(call, i, kv_grad);
  }
  if (rounds.size() > 1) add_home(rounds.size() - 1);
  return {q_sum.to(call.q_THd.scalar_type()), kv_sum.to(call.kv_TN.scalar_type())};
}

at::Tensor RingAttention::attention(const at::Tensor& q_THd, const at::Tensor& kv_TN,
                                    int64_t kv_heads, const AttentionForm& form,
                                    const std::shared_ptr<const RingRows>& rows) const {
  check_sizes(kv_TN, {q_THd.size(0), -1}, "ring attention: kv");
  TROUPE_CHECK(
      kv_heads > 0 && kv_TN.size(1) % kv_heads == 0 && kv_TN.size(1) > kv_heads * q_THd.size(2),
      "ring attention: kv of", kv_TN.sizes(), "for", kv_heads, "heads beside queries of",
      q_THd.sizes());
  TROUPE_CHECK(std::ssize(rows->rounds) == ranks() && rows->rounds[0].keys == q_THd.size(0),
               "ring attention: a plan for", rows->rounds.size(), "ranks and", rows->rounds[0].keys,
               "tokens, in a group of", ranks(), "with", q_THd.size(0));
  const at::Tensor sinks = form.sinks_H.value_or(at::Tensor());
  const PartForm own{form.scale, form.window, {}};
  const at::Tensor q = q_THd.contiguous(), kv = kv_TN.contiguous();
  const AttentionPart whole =
      forward({q.detach(), kv.detach(), kv_heads, own, given(sinks), *rows});
  const at::Tensor out = whole.out_THe.to(q.scalar_type());
  record({.name = "ring_attention",
          .inputs = {q_THd, kv_TN, sinks},
          .outputs = {out},
          .saved = {q, kv, out, whole.lse_HT, sinks},
          .backward = [exchange = *this, rows, kv_heads, own](const Gradients& g) -> TensorList {
            const at::ScalarType wide = wide_type(g.saved[0]);
            const AttentionPart all{g.saved[2].to(wide), g.saved[3]};
            const at::Tensor grad = g.outputs[0].to(wide).contiguous();
            const TensorList to = exchange.backward(
                {g.saved[0], g.saved[1], kv_heads, own, given(g.saved[4]), *rows}, all, grad);
            const at::Tensor sinks_grad =
                g.saved[4].defined() ? sinks_backward(all, grad, g.saved[4]) : at::Tensor();
            return {to[0], to[1], sinks_grad};
          }});
  return out;
}

}  // namespace troupe
