// What the tests of the experts' implementations share: experts with weights, rows for them, and
// all gradients.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "troupe/nn/moe/experts.h"
#include "troupe/testing/torch/plan.h"

namespace troupe::experts_problem {

constexpr int64_t kT = 23, kK = 2, kE = 5, kD = 6;

struct Case {
  ExpertsConfig config;
  at::ScalarType type = at::kDouble;
};

inline Experts experts_of(const Case& c, int64_t seed = 3) {
  Experts m(c.config, {.width = kD, .experts = kE, .layers = 2});
  for_each_param(m, "experts", [&](const std::string& name, Param& p) {
    p.init = {.kind = Init::kNormal, .std = 0.5};
    p.allocate(at::TensorOptions(c.type));
    initialize(p, name, static_cast<uint64_t>(seed));
  });
  return m;
}

// Experts 1 and kE - 1 have no token, some slots are dropped.
inline ExpertRows rows_of(at::ScalarType type, int64_t alignment = 1, int64_t K = kK) {
  at::Tensor ids = at::randint(0, kE, {kT, K}, at::kInt);
  ids.masked_fill_(ids.eq(1).logical_or(ids.eq(kE - 1)), 2);
  ids.masked_fill_(at::rand({kT, K}).lt(0.1), -1);
  const auto wide = type == at::kDouble ? at::kDouble : at::kFloat;
  return {.source_SD = at::randn({kT, kD}, at::kDouble).to(type).requires_grad_(),
          .scores_SK = at::rand({kT, K}, wide).requires_grad_(),
          .plan = testing::plan_of(ids, kE, alignment)};
}

inline std::vector<at::Tensor> leaves(Experts& m, const ExpertRows& rows) {
  std::vector<at::Tensor> out = {rows.source_SD, rows.scores_SK};
  for_each_param(m, "", [&](const std::string&, Param& p) {
    if (p.value.requires_grad()) out.push_back(p.value);
  });
  return out;
}

// Output and all gradients, for a fixed weighing of the output.
inline std::vector<at::Tensor> results(Experts& m, const ExpertRows& rows) {
  const auto inputs = leaves(m, rows);
  for (const at::Tensor& x : inputs) x.mutable_grad().reset();
  const at::Tensor y = m.forward(rows).y_SD;
  const at::Tensor w = at::arange(y.numel(), at::kDouble).cos().reshape(y.sizes());
  (y.to(at::kDouble) * w).sum().backward();
  std::vector<at::Tensor> out = {y.detach()};
  for (const at::Tensor& x : inputs) {
    out.push_back(x.grad().defined() ? x.grad().clone() : at::zeros_like(x));
  }
  return out;
}

inline void expect_close(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& want,
                         double bound) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const at::Tensor w = want[i].to(at::kDouble);
    const double size = std::max(1.0, w.abs().max().item<double>());
    EXPECT_LT((got[i].to(at::kDouble) - w).abs().max().item<double>() / size, bound) << i;
  }
}

inline std::vector<Case> forms(int64_t hidden) {
  std::vector<Case> out;
  for (const char* name : {"silu", "gelu", "gelu_tanh", "quick_gelu", "relu", "relu2"}) {
    for (const bool gated : {true, false}) {
      Case c;
      c.config.hidden = hidden;
      c.config.form.activation = name;
      c.config.form.gated = gated;
      out.push_back(c);
    }
  }
  Case clamped = out[0];
  clamped.config.form.clamp = 0.5;
  clamped.config.form.offset = 1;
  out.push_back(clamped);
  Case biased = out[0];
  biased.config.bias = true;
  out.push_back(biased);
  return out;
}

}  // namespace troupe::experts_problem
