// Keys in parts, joined, are attention over all of them at once: outputs and gradients, on both
// paths.
#include "troupe/ops/attention/attention_part.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <limits>

#include "troupe/ops/attention/attention.h"
#include "troupe/ops/attention/attention_part_aten.h"

namespace troupe {
namespace {

struct Case {
  int64_t window;
  bool sinks;
};

// Queries 0 .. 129 of one sequence whose keys come in three parts: [0, 40), [40, 90), the rest.
std::vector<PartForm> parts_of(const AttentionForm& form) {
  return {{form.scale, form.window, {{0, 40, 0, 0, 40}, {40, 90, 0, 40, 40}}},
          {form.scale, form.window, {{40, 50, 40, 0, 50}, {90, 40, 40, 50, 50}}},
          {form.scale, form.window, {{90, 40, 90, 0, 40}}}};
}

AttentionPart joined(const PartInputs& in, const AttentionForm& form, bool by_aten) {
  AttentionPart sum = no_keys(in.q_THd, in.v_PGe.size(2), form.sinks_H);
  for (const PartForm& part : parts_of(form)) {
    AttentionPart own = no_keys(in.q_THd, in.v_PGe.size(2), {});
    if (by_aten) {
      part_by_aten(in, part, own);
    } else {
      own = attention_part(in, part);
    }
    join(sum, own);
  }
  return sum;
}

void expect_attention(const Case& c, bool by_aten) {
  const int64_t T = 130, H = 4, G = 2, d = 6, e = 5;
  const auto leaf = [&](int64_t heads, int64_t width) {
    return at::randn({T, heads, width}, at::kDouble).requires_grad_();
  };
  const at::Tensor q = leaf(H, d), k = leaf(G, d), v = leaf(G, e);
  AttentionForm form{.scale = 0.4, .window = c.window, .lengths = {T}};
  if (c.sinks) form.sinks_H = at::randn({H}, at::kDouble).requires_grad_();
  const at::Tensor want = attention(q, k, v, form), grad = at::randn_like(want);
  want.backward(grad);
  const PartInputs in{q.detach(), k.detach(), v.detach()};
  const AttentionPart whole = joined(in, form, by_aten);
  EXPECT_TRUE(at::allclose(whole.out_THe, want, 1e-12, 1e-12));
  PartGradients sum{at::zeros_like(in.q_THd), at::zeros_like(in.k_PGd), at::zeros_like(in.v_PGe)};
  for (const PartForm& part : parts_of(form)) {
    PartGradients own{at::zeros_like(in.q_THd), at::zeros_like(in.k_PGd), at::zeros_like(in.v_PGe)};
    if (by_aten) {
      part_backward_by_aten(in, part, whole, grad, own);
    } else {
      own = attention_part_backward(in, part, whole, grad);
    }
    sum.q_THd.add_(own.q_THd);
    sum.k_PGd.add_(own.k_PGd);
    sum.v_PGe.add_(own.v_PGe);
  }
  EXPECT_TRUE(at::allclose(sum.q_THd, q.grad(), 1e-12, 1e-12));
  EXPECT_TRUE(at::allclose(sum.k_PGd, k.grad(), 1e-12, 1e-12));
  EXPECT_TRUE(at::allclose(sum.v_PGe, v.grad(), 1e-12, 1e-12));
  if (!c.sinks) return;
  EXPECT_TRUE(
      at::allclose(sinks_backward(whole, grad, *form.sinks_H), form.sinks_H->grad(), 1e-12, 1e-11));
}

TEST(AttentionPart, JoinedPartsAreTheWhole) {
  at::manual_seed(7);
  for (const bool by_aten : {false, true}) {
    for (const Case& c : {Case{0, false}, Case{0, true}, Case{7, true}, Case{64, false}}) {
      SCOPED_TRACE(std::to_string(by_aten) + " window " + std::to_string(c.window));
      expect_attention(c, by_aten);
    }
  }
}

TEST(AttentionPart, QueriesWithoutKeysChangeNothing) {
  const at::Tensor q = at::randn({5, 2, 4}), k = at::randn({3, 1, 4});
  // Query 0 sees key 0 alone, which is out of the others' window.
  const AttentionPart part = attention_part({q, k, k}, {1.0, 2, {{0, 3, 0, 1, 1}}});
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  for (int64_t t = 1; t < 5; ++t) {
    EXPECT_EQ(part.lse_HT[0][t].item<float>(), kNever) << t;
    EXPECT_TRUE(part.out_THe[t].eq(0).all().item<bool>());
  }
  EXPECT_GT(part.lse_HT[0][0].item<float>(), kNever);
  AttentionPart sum = no_keys(q, 4, {});
  join(sum, part);
  EXPECT_TRUE(at::equal(sum.out_THe, part.out_THe));
  EXPECT_TRUE(at::equal(sum.lse_HT, part.lse_HT));
}

TEST(AttentionPart, NarrowTypesAreJoinedInF32) {
  const at::Tensor q = at::randn({6, 2, 4}).to(at::kBFloat16);
  const AttentionPart part = attention_part({q, q, q}, {1.0, 0, {{0, 6, 0, 0, 6}}});
  EXPECT_EQ(part.out_THe.scalar_type(), at::kFloat);
  EXPECT_EQ(part.lse_HT.scalar_type(), at::kFloat);
}

}  // namespace
}  // namespace troupe
