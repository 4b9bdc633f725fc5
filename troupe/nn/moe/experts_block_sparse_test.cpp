#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <memory>

#include "troupe/core/check.h"
#include "troupe/nn/moe/experts_problem_test.h"
#include "troupe/nn/moe/moe_layer.h"
#include "troupe/testing/torch/device.h"
#include "troupe/testing/torch/live_bytes.h"

namespace troupe {
namespace {

using namespace experts_problem;

constexpr int64_t kB = kExpertBlock;

Case block_sparse(Case c) {
  c.config.impl = ExpertsImpl::kBlockSparse;
  return c;
}

// The same routing over segments of whole blocks and over packed ones.
struct Rows {
  ExpertRows blocks, packed;
};
Rows rows_twice(at::ScalarType type) {
  at::manual_seed(17);
  const ExpertRows packed = rows_of(type);
  at::manual_seed(17);
  return {rows_of(type, kB), packed};
}

TEST(BlockSparseExperts, X7_EqualsGroupedInAllGradients) {
  const Rows rows = rows_twice(at::kDouble);
  for (const Case& c : forms(kB)) {
    SCOPED_TRACE(c.config.form.activation);
    Experts grouped = experts_of(c), blocks = experts_of(block_sparse(c));
    expect_close(results(blocks, rows.blocks), results(grouped, rows.packed), 1e-10);
  }
}

TEST(BlockSparseExperts, X7_LowPrecisionAgreesWithF64) {
  for (const auto& [type, bound] :
       {std::pair{at::kFloat, 1e-5}, std::pair{at::kBFloat16, 3e-2}, std::pair{at::kHalf, 4e-3}}) {
    Case c = forms(2 * kB).back();
    c.type = type;
    Experts narrow = experts_of(block_sparse(c));
    c.type = at::kDouble;
    Experts exact = experts_of(c);
    auto& wide = exact;
    for (const auto& [to, from] : {std::pair{&wide.w1, &narrow.w1},
                                   {&wide.w2, &narrow.w2},
                                   {&*wide.b1, &*narrow.b1},
                                   {&*wide.b2, &*narrow.b2}}) {
      to->value = from->value.detach().to(at::kDouble).requires_grad_();
    }
    const Rows rows = rows_twice(type);
    const auto& r = rows.packed;
    const ExpertRows same{.source_SD = r.source_SD.detach().to(at::kDouble).requires_grad_(),
                          .scores_SK = r.scores_SK.detach().to(at::kDouble).requires_grad_(),
                          .plan = r.plan};
    expect_close(results(narrow, rows.blocks), results(exact, same), bound);
  }
}

// H is kept, and of the activation nothing: at least U, which the product with W2 would need.
TEST(BlockSparseExperts, M2_RecomputingTheActivationChangesNoBitAndKeepsLess) {
  for (const ExpertsImpl impl : {ExpertsImpl::kBlockSparse, ExpertsImpl::kLoop}) {
    Case c = forms(2 * kB).back();
    c.type = at::kFloat;
    c.config.impl = impl;
    const ExpertRows rows = rows_twice(c.type).blocks;
    const auto kept = [&](Experts& m) {
      const auto bytes = std::make_shared<testing::LiveBytes>();
      const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, bytes);
      const ExpertsOutput out = m.forward(rows);
      return bytes->live;
    };
    Experts plain = experts_of(c);
    c.config.recompute = Recompute::kAct;
    Experts again = experts_of(c);
    const auto want = results(plain, rows), got = results(again, rows);
    for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(got[i].equal(want[i])) << i;
    const int64_t units = rows.plan.counts.sum().item<int64_t>() * c.config.hidden * 4;
    EXPECT_LT(kept(again), kept(plain) - units) << to_text(impl);
  }
}

TEST(BlockSparseExperts, E1_E2_NoTokensAndAnExpertWithoutTokens) {
  const Case c = block_sparse(forms(kB).back());
  Experts m = experts_of(c);
  results(m, rows_twice(at::kDouble).blocks);
  for (const Param* p : {&m.w1, &m.w2, &*m.b1, &*m.b2}) {
    EXPECT_TRUE(p->value.grad()[1].eq(0).all().item<bool>());
    EXPECT_FALSE(p->value.grad()[2].eq(0).all().item<bool>());
    p->value.mutable_grad().reset();
  }
  const ExpertRows none{.source_SD = at::zeros({0, kD}, at::kDouble).requires_grad_(),
                        .scores_SK = at::zeros({0, kK}, at::kDouble).requires_grad_(),
                        .plan = testing::plan_of(at::zeros({0, kK}, at::kInt), kE, kB)};
  const at::Tensor y = m.forward(none).y_SD;
  EXPECT_EQ(y.sizes(), (at::IntArrayRef{0, kD}));
  y.sum().backward();
  EXPECT_TRUE(m.w1.value.grad().eq(0).all().item<bool>());
}

TEST(BlockSparseExperts, RefusesSegmentsThatEndWithinABlock) {
  const Experts m = experts_of(block_sparse(forms(kB)[0]));
  TROUPE_EXPECT_REFUSAL(m.forward(rows_twice(at::kDouble).packed), "multiple of 128 rows");
}

// The layer asks its dispatcher for whole blocks, with a capacity too.
TEST(BlockSparseExperts, X7_TheLayerEqualsTheGroupedLayer) {
  for (const double factor : {0.0, 1.25}) {
    const auto output = [&](ExpertsImpl impl) {
      MoeConfig c;
      c.experts = 6;
      c.ffn.hidden = kB;
      c.ffn.impl = impl;
      c.capacity = {.factor = factor, .pad = true};
      MoeLayer layer(c, MoeShape::alone(kD));
      for_each_param(layer, "moe", [](const std::string& name, Param& p) {
        p.init = {.kind = Init::kNormal, .std = 0.5};
        p.allocate(at::TensorOptions(at::kDouble));
        initialize(p, name, 5);
      });
      at::manual_seed(3);
      const at::Tensor x = at::randn({40, kD}, at::kDouble).requires_grad_();
      layer.forward(x, {}, {.training = true}).y.square().sum().backward();
      return std::vector{x.grad(), layer.experts().w1.value.grad(),
                         layer.experts().w2.value.grad()};
    };
    expect_close(output(ExpertsImpl::kBlockSparse), output(ExpertsImpl::kGrouped), 1e-10);
  }
}

}  // namespace
}  // namespace troupe
