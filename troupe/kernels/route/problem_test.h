// All tensors of a forward and a backward: what the test and the benchmark run on.
#pragma once

#include <algorithm>
#include <optional>
#include <random>

#include "troupe/kernels/route/route.h"
#include "troupe/testing/matrix.h"

namespace troupe::route_detail {

struct RouteProblem {
  struct Shape {
    int64_t tokens, experts;
    int64_t sequences = 1;
    int64_t pad = 0;
  };

  RouteProblem(Shape s, const RouteRule& r, Dtype type = Dtype::kF32)
      : shape(s),
        rule(r),
        logits(type, s.tokens, s.experts, s.pad),
        weights(wide(type), s.tokens, r.choices),
        lse(wide(type), 1, s.tokens),
        probs(wide(type), s.sequences, s.experts),
        lse_squares(wide(type), 1, 1),
        kept_scores(wide(type), 1, 1),
        grad_weights(wide(type), s.tokens, r.choices),
        grad_probs(wide(type), s.sequences, s.experts),
        grad_lse_squares(wide(type), 1, 1),
        grad_logits(type, s.tokens, s.experts, s.pad),
        shift(s.experts),
        valid(s.tokens),
        given(s.tokens * r.choices),
        ids(s.tokens * r.choices),
        counts(s.experts),
        plain_counts(s.sequences * s.experts),
        tokens(s.sequences) {
    logits.fill_normal(7, 2);
    grad_weights.fill_normal(8);
    grad_probs.fill_normal(9);
    grad_lse_squares.fill(0.03);
    testing::fill_normal(shift, 10);
    std::mt19937 rng(11);
    for (size_t t = 0; t < valid.size(); ++t) valid[t] = rng() % 4 != 0;
  }

  Route forward() {
    Route a{.logits = logits.view(),
            .rule = rule,
            .bias = with_bias ? shift.data() : nullptr,
            .beta = with_beta ? shift.data() : nullptr,
            .valid = with_valid ? valid.data() : nullptr,
            .given_ids = with_given ? given.data() : nullptr,
            .sequences = shape.sequences,
            .ids = ids.data(),
            .weights = weights.mut(),
            .counts = counts.data(),
            .lse = lse.mut(),
            .probs = with_sums ? probs.mut() : MutRef{},
            .plain_counts = plain_counts.data(),
            .tokens = tokens.data(),
            .lse_squares = lse_squares.mut(),
            .kept_scores = kept_scores.mut()};
    workspace.emplace(workspace_bytes(a));
    a.workspace = workspace->data();
    return a;
  }
  RouteBackward backward() {
    return {.logits = logits.view(),
            .rule = rule,
            .valid = with_valid ? valid.data() : nullptr,
            .ids = ids.data(),
            .sequences = shape.sequences,
            .grad_weights = grad_weights.view(),
            .grad_probs = with_sums ? grad_probs.view() : MatRef{},
            .grad_lse_squares = with_sums ? grad_lse_squares.view() : MatRef{},
            .grad_logits = grad_logits.mut()};
  }

  Shape shape;
  RouteRule rule;
  bool with_bias = false, with_beta = false, with_valid = false, with_given = false;
  bool with_sums = true;
  testing::Matrix logits, weights, lse, probs, lse_squares, kept_scores;
  testing::Matrix grad_weights, grad_probs, grad_lse_squares, grad_logits;
  testing::Buffer<float> shift;  // bias or beta
  testing::Buffer<uint8_t> valid;
  testing::Buffer<int32_t> given, ids;
  testing::Buffer<int64_t> counts, plain_counts, tokens;
  std::optional<testing::Buffer<char>> workspace;
};

}  // namespace troupe::route_detail
