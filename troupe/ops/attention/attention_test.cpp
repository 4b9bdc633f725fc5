#include "troupe/ops/attention/attention.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/softmax.h>
#include <gtest/gtest.h>

#include "troupe/ops/attention/attention_sdpa.h"
#include "troupe/ops/support/kept.h"
#include "troupe/testing/torch/device.h"
#include "troupe/testing/torch/jacobian.h"

namespace troupe {
namespace {

using testing::Tensors;

struct Case {
  const char* name;
  int64_t heads, kv_heads, d, e;
  AttentionForm form;
  bool sinks = false;
};

std::vector<Case> cases() {
  return {
      {"one sequence", 2, 2, 8, 8, {.scale = 0.3, .lengths = {70}}},
      {"grouped, two sequences", 4, 2, 8, 8, {.scale = 0.5, .lengths = {9, 9}}},
      {"documents", 2, 1, 4, 4, {.scale = 0.5, .lengths = {1, 130, 0, 3}}},
      {"window", 2, 2, 4, 4, {.scale = 0.5, .window = 3, .lengths = {67, 2}}},
      {"window of one", 1, 1, 4, 4, {.scale = 0.5, .window = 1, .lengths = {5}}},
      {"sinks", 4, 2, 4, 4, {.scale = 0.5, .lengths = {5, 66}}, true},
      {"sinks and window", 2, 1, 8, 8, {.scale = 0.5, .window = 4, .lengths = {10, 10}}, true},
      {"values of other width", 2, 2, 12, 8, {.scale = 0.2, .lengths = {6, 6}}},
      {"after a past", 2, 1, 4, 4, {.scale = 0.5, .lengths = {3, 3}, .past = 5}},
      {"one query after a past",
       2,
       1,
       4,
       4,
       {.scale = 0.5, .window = 4, .lengths = {1, 1}, .past = 9}},
      {"sink, window, past",
       2,
       1,
       4,
       4,
       {.scale = 0.5, .window = 4, .lengths = {3}, .past = 9},
       true},
  };
}

struct Inputs {
  at::Tensor q, k, v;
  AttentionForm form;
};

Inputs inputs(const Case& c, const at::TensorOptions& options) {
  int64_t T = 0;
  for (const int64_t n : c.form.lengths) T += n;
  const int64_t P = T + c.form.past * static_cast<int64_t>(c.form.lengths.size());
  Inputs in{at::randn({T, c.heads, c.d}, options), at::randn({P, c.kv_heads, c.d}, options),
            at::randn({P, c.kv_heads, c.e}, options), c.form};
  if (c.sinks) in.form.sinks_H = at::randn({c.heads}, options);
  return in;
}

// The formula, segment by segment and head by head, with a mask.
at::Tensor reference(const Inputs& in) {
  const int64_t H = in.q.size(1), G = in.k.size(1);
  std::vector<at::Tensor> out;
  int64_t q = 0, k = 0;
  for (const int64_t n : in.form.lengths) {
    const int64_t keys = n + in.form.past;
    const at::Tensor i = at::arange(in.form.past, keys).unsqueeze(1), j = at::arange(keys);
    at::Tensor hidden = j > i;
    if (in.form.window > 0) hidden = hidden.logical_or(j <= i - in.form.window);
    std::vector<at::Tensor> heads;
    for (int64_t h = 0; h < H; ++h) {
      const int64_t g = h * G / H;
      at::Tensor s =
          at::matmul(in.q.narrow(0, q, n).select(1, h), in.k.narrow(0, k, keys).select(1, g).t()) *
          in.form.scale;
      s = s.masked_fill(hidden.to(s.device()), -1e30);
      if (in.form.sinks_H) s = at::cat({s, in.form.sinks_H->select(0, h).expand({n, 1})}, 1);
      const at::Tensor p = at::softmax(s, 1).narrow(1, 0, keys);
      heads.push_back(at::matmul(p, in.v.narrow(0, k, keys).select(1, g)).unsqueeze(1));
    }
    out.push_back(at::cat(heads, 1));
    q += n;
    k += keys;
  }
  return at::cat(out);
}

TEST(Attention, AgreesWithTheFormula) {
  for (const Case& c : cases()) {
    for (const auto type : {at::kDouble, at::kFloat}) {
      const Inputs in = inputs(c, type);
      const double bound = type == at::kDouble ? 1e-12 : 2e-5;
      EXPECT_TRUE(at::allclose(attention(in.q, in.k, in.v, in.form), reference(in), bound, bound))
          << c.name;
    }
  }
}

TEST(Attention, GradientsAgreeWithTheJacobian) {
  for (const Case& c : cases()) {
    if (c.form.lengths[0] > 66) continue;  // the numeric side costs a forward an element
    const Inputs in = inputs(c, at::kDouble);
    Tensors leaves = {in.q, in.k, in.v};
    if (c.sinks) leaves.push_back(*in.form.sinks_H);
    for (at::Tensor& x : leaves) x.requires_grad_();
    SCOPED_TRACE(c.name);
    testing::expect_gradients(
        [&](const Tensors& x) {
          AttentionForm form = c.form;
          if (c.sinks) form.sinks_H = x[3];
          return attention(x[0], x[1], x[2], form);
        },
        leaves);
  }
}

// Segments whose keys overlap: each is attention of its own queries and keys, and gradients of keys
// that they share add up; keys of none have no gradient.
TEST(Attention, CX6_SegmentsMayShareKeys) {
  const int64_t H = 4, G = 2, d = 6;
  const std::vector<AttentionSegment> segments = {
      {0, 5, 0, 0}, {5, 70, 0, 8}, {75, 1, 30, 9}, {76, 3, 90, 2}};
  for (const int64_t window : {0, 4}) {
    for (const bool by_pytorch : {false, true}) {
      const at::ScalarType type = by_pytorch ? at::kFloat : at::kDouble;
      const double bound = by_pytorch ? 1e-4 : 1e-12;
      AttentionForm form{.scale = 0.3, .window = window};
      form.sinks_H = at::randn({H}).to(type).requires_grad_();
      AttentionForm apart = form;
      apart.sinks_H = form.sinks_H->detach().clone().requires_grad_();
      form.segments = segments;
      Tensors x, y;
      for (const auto& [rows, heads] :
           std::vector<std::pair<int64_t, int64_t>>{{79, H}, {97, G}, {97, G}}) {
        x.push_back(at::randn({rows, heads, d}).to(type).requires_grad_());
        y.push_back(x.back().detach().clone().requires_grad_());
      }
      const at::Tensor got =
          by_pytorch ? attention_sdpa(x[0], x[1], x[2], form) : attention(x[0], x[1], x[2], form);
      Tensors parts;
      for (const AttentionSegment& s : segments) {
        apart.lengths = {s.rows};
        apart.past = s.past;
        const int64_t keys = s.past + s.rows;
        parts.push_back(attention(y[0].narrow(0, s.q, s.rows), y[1].narrow(0, s.k, keys),
                                  y[2].narrow(0, s.k, keys), apart));
      }
      const at::Tensor want = at::cat(parts), g = at::randn(want.sizes()).to(type);
      EXPECT_TRUE(at::allclose(got, want, bound, bound));
      got.backward(g);
      want.backward(g);
      for (size_t i = 0; i < x.size(); ++i) {
        EXPECT_TRUE(at::allclose(x[i].grad(), y[i].grad(), bound, bound)) << i;
      }
      EXPECT_TRUE(at::allclose(form.sinks_H->grad(), apart.sinks_H->grad(), bound, bound));
      if (by_pytorch) continue;
      // Keys and values side by side are the same bits.
      const at::Tensor kv =
          at::cat({x[1].detach().flatten(1), x[2].detach().flatten(1)}, 1).requires_grad_();
      const at::Tensor joined = joined_attention(x[0].detach(), kv, G, form);
      EXPECT_TRUE(at::equal(joined, got));
      joined.backward(g);
      EXPECT_TRUE(
          at::equal(kv.grad(), at::cat({x[1].grad().flatten(1), x[2].grad().flatten(1)}, 1)));
    }
  }
}

TEST(Attention, SegmentsThatDoNotFitAreRefused) {
  const at::Tensor q = at::randn({4, 2, 6}), kv = at::randn({6, 2, 6});
  const auto refused = [&](std::vector<AttentionSegment> segments) {
    TROUPE_EXPECT_REFUSAL(attention(q, kv, kv, {.segments = std::move(segments)}), "segment");
  };
  refused({{0, 3, 0, 0}});                // a query has none
  refused({{0, 2, 0, 0}, {1, 3, 0, 0}});  // one has two
  refused({{0, 4, 3, 0}});                // beyond the keys
  refused({{0, 2, 2, 0}, {2, 2, 0, 0}});  // keys that fall
  TROUPE_EXPECT_REFUSAL(attention(q, kv, kv, {.lengths = {4}, .segments = {{0, 4, 0, 0}}}),
                        "segments, or lengths");
}

TEST(Attention, PyTorchsPathIsTheSameFunction) {
  for (const Case& c : cases()) {
    const Inputs in = inputs(c, at::kFloat);
    Tensors ours = {in.q, in.k, in.v}, theirs;
    for (at::Tensor& x : ours) {
      theirs.push_back(x.clone().requires_grad_());
      x.requires_grad_();
    }
    const at::Tensor a = attention(ours[0], ours[1], ours[2], in.form);
    const at::Tensor b = attention_sdpa(theirs[0], theirs[1], theirs[2], in.form);
    EXPECT_TRUE(at::allclose(a, b, 2e-5, 2e-5)) << c.name;
    const at::Tensor g = at::randn(a.sizes());
    a.backward(g);
    b.backward(g);
    for (size_t i = 0; i < ours.size(); ++i) {
      EXPECT_TRUE(at::allclose(ours[i].grad(), theirs[i].grad(), 1e-4, 1e-4)) << c.name << ' ' << i;
    }
  }
}

TEST(Attention, AJointProductIsTurnedAndAttendedToAsItsPartsAre) {
  const int64_t H = 4, G = 2, d = 6, S = 5, T = 2 * S;
  const at::Tensor angle = at::arange(S, at::kDouble).unsqueeze(1) * at::pow(0.3, at::arange(3));
  const RotaryTables tables = {angle.cos(), angle.sin()};
  const at::Tensor position = at::cat({at::arange(S), at::arange(S)});
  for (const bool placed : {false, true}) {
    for (const bool interleaved : {false, true}) {
      const AttentionForm form = {.scale = 0.4, .lengths = {S, S}};
      const PackedRotary rotary_form = {
          tables, placed ? std::optional(position) : std::nullopt, {.interleaved = interleaved}};
      const at::Tensor leaf = at::randn({T, (H + 2 * G) * d}, at::kDouble).requires_grad_();
      const at::Tensor other = leaf.detach().clone().requires_grad_();
      const at::Tensor got = packed_attention(leaf * 1, {{H, G, d}, {}, rotary_form}, form);
      const auto turned = [&](const at::Tensor& x) {
        return rotary(x, tables, position, rotary_form.options);
      };
      const at::Tensor want = attention(turned(other.narrow(1, 0, H * d).view({T, H, d})),
                                        turned(other.narrow(1, H * d, G * d).view({T, G, d})),
                                        other.narrow(1, (H + G) * d, G * d).view({T, G, d}), form);
      EXPECT_TRUE(at::allclose(got, want, 1e-12, 1e-12));
      const at::Tensor g = at::randn(got.sizes(), at::kDouble);
      got.backward(g);
      want.backward(g);
      EXPECT_TRUE(at::allclose(leaf.grad(), other.grad(), 1e-12, 1e-12));
    }
  }
}

// A norm, of all heads or of each, between the product and the rotation: what the operators give
// one after the other, the same bits in f32 and f64, and on the CPU no more kept than the product.
TEST(Attention, AJointProductIsNormedAsItsPartsAre) {
  const int64_t H = 4, G = 2, d = 6, S = 5, T = 2 * S;
  const at::Tensor angle = at::arange(S, at::kDouble).unsqueeze(1) * at::pow(0.3, at::arange(3));
  const AttentionForm form = {.scale = 0.4, .lengths = {S, S}};
  for (const auto type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    for (const char* kind : {"rms", "rms_rounded", "layer"}) {
      for (const bool whole : {false, true}) {
        const auto wide = type == at::kDouble ? at::kDouble : at::kFloat;
        const RotaryTables tables = {angle.cos().to(wide), angle.sin().to(wide)};
        const NormOptions options{kind, 1e-5};
        const Tensors leaves = {at::randn({T, (H + 2 * G) * d}).to(type),
                                at::randn({whole ? H * d : d}).to(type),
                                at::randn({whole ? G * d : d}).to(type)};
        Tensors x, y;
        for (const at::Tensor& leaf : leaves) {
          x.push_back(leaf.clone().requires_grad_());
          y.push_back(leaf.clone().requires_grad_());
        }
        const at::Tensor got = packed_attention(
            x[0] * 1, {{H, G, d}, PackedNorm{x[1], x[2], options}, PackedRotary{tables, {}, {}}},
            form);
        const auto prepared = [&](int64_t first, int64_t heads, const at::Tensor& weight) {
          const at::Tensor part = y[0].narrow(1, first, heads * d);
          const at::Tensor n = whole ? norm(part, weight, {}, options).view({T, heads, d})
                                     : norm(part.view({T, heads, d}), weight, {}, options);
          return rotary(n.view({2, S, heads, d}), tables, {}, {}).view({T, heads, d});
        };
        const at::Tensor want = attention(prepared(0, H, y[1]), prepared(H * d, G, y[2]),
                                          y[0].narrow(1, (H + G) * d, G * d).view({T, G, d}), form);
        SCOPED_TRACE(std::string(kind) + (whole ? " whole " : " head ") + c10::toString(type));
        EXPECT_TRUE(at::equal(got, want));
        if (type == at::kFloat) {
          const TensorList kept = kept_for_backward(got);
          EXPECT_EQ(kept.size(), 6U);  // the product, o, lse, no sinks, two weights
          EXPECT_EQ(kept[0].sizes(), leaves[0].sizes());
        }
        const at::Tensor g = at::randn(got.sizes()).to(type);
        got.backward(g);
        want.backward(g);
        const double bound = type == at::kBFloat16 ? 0.05 : type == at::kFloat ? 1e-5 : 1e-12;
        for (size_t i = 0; i < x.size(); ++i) {
          EXPECT_TRUE(at::allclose(x[i].grad(), y[i].grad(), bound, bound)) << i;
        }
      }
    }
  }
}

TEST(Attention, G4_ThreadsChangeNoBit) {
  const Inputs in = inputs(cases()[5], at::kFloat);
  const auto run = [&](int threads) {
    at::set_num_threads(threads);
    Tensors x = {in.q.clone(), in.k.clone(), in.v.clone(), in.form.sinks_H->clone()};
    for (at::Tensor& leaf : x) leaf.requires_grad_();
    AttentionForm form = in.form;
    form.sinks_H = x[3];
    const at::Tensor y = attention(x[0], x[1], x[2], form);
    y.sum().backward();
    Tensors out = {y};
    for (const at::Tensor& leaf : x) out.push_back(leaf.grad());
    return out;
  };
  const int before = at::get_num_threads();
  const Tensors one = run(1), three = run(3);
  at::set_num_threads(before);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(at::equal(one[i], three[i])) << i;
}

TEST(Attention, NarrowTypesAreWidenedOnTheCpu) {
  const Inputs in = inputs(cases()[1], at::kFloat);
  const at::Tensor y =
      attention(in.q.to(at::kBFloat16), in.k.to(at::kBFloat16), in.v.to(at::kBFloat16), in.form);
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::allclose(y.to(at::kFloat), reference(in), 0.05, 0.05));
}

TEST(Attention, NoTokensGiveNone) {
  const at::Tensor x = at::randn({0, 2, 4}).requires_grad_();
  const at::Tensor y = attention(x, x, x, {.lengths = {0}});
  EXPECT_EQ(y.sizes(), (std::vector<int64_t>{0, 2, 4}));
  y.sum().backward();
  EXPECT_EQ(x.grad().numel(), 0);
}

TEST(Attention, BadInputIsRefusedByName) {
  const at::Tensor q = at::randn({4, 4, 6}), kv = at::randn({4, 2, 6});
  const AttentionForm form = {.lengths = {4}};
  TROUPE_EXPECT_REFUSAL(attention(q, kv.narrow(2, 0, 4), kv, form), "attention: k");
  TROUPE_EXPECT_REFUSAL(attention(q, kv, at::randn({3, 2, 6}), form), "attention: v");
  TROUPE_EXPECT_REFUSAL(attention(q, kv.to(at::kDouble), kv, form), "attention: k");
  TROUPE_EXPECT_REFUSAL(attention(q, kv, kv, {.lengths = {3}}), "segments hold 3");
  TROUPE_EXPECT_REFUSAL(attention(q.narrow(1, 0, 3), kv, kv, form), "must divide");
  TROUPE_EXPECT_REFUSAL(attention(q, kv, kv, {.lengths = {4}, .sinks_H = at::randn({3})}),
                        "attention: sinks");
  TROUPE_EXPECT_REFUSAL(packed_attention(at::randn({4, 40}), {.heads = {4, 2, 6}}, form),
                        "attention: qkv");
  const PackedNorm norm = {at::ones({24}), at::ones({6}), {}};
  TROUPE_EXPECT_REFUSAL(packed_attention(at::randn({4, 48}), {{4, 2, 6}, norm}, form),
                        "have weights of all of them or of one");
}

}  // namespace
}  // namespace troupe
