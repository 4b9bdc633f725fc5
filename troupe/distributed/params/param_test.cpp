#include "troupe/distributed/params/param.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <memory>
#include <optional>

#include "troupe/core/check.h"

namespace troupe {
namespace {

constexpr Init kNormal{.kind = Init::kNormal, .std = 0.02};

at::Tensor whole(Param p, const std::string& name, uint64_t seed = 1) {
  initialize(p, name, seed);
  return p.value.detach();
}

TEST(Param, I1_ExpertsAreTheSameBitsUnderAnyPlacement) {
  const std::string name = "layers.3.moe.experts.w1";
  const at::Tensor all = whole(Param::of_experts({5, 3, 7}, kNormal), name);
  const HeldExperts held = std::vector<int64_t>{4, 1};
  const at::Tensor some = whole(Param::of_experts({5, 3, 7}, kNormal, held), name);
  EXPECT_TRUE(some[0].equal(all[4]));
  EXPECT_TRUE(some[1].equal(all[1]));
  EXPECT_FALSE(all[0].equal(all[1]));
}

TEST(Param, I1_ExpertsHaveTheBitsOfATensorNamedWithTheGlobalNumber) {
  const at::Tensor all = whole(Param::of_experts({5, 3, 7}, kNormal), "layers.3.moe.experts.w1");
  const at::Tensor one = whole(Param::of({3, 7}, kNormal), "layers.3.moe.experts.4.w1");
  EXPECT_TRUE(all[4].equal(one));
  EXPECT_EQ(expert_name("w1", 2), "2.w1");
}

size_t peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<size_t>(usage.ru_maxrss) << 10;
}

// The whole would be 8 GiB; the bound is rule I1's.
TEST(Param, I1_ARankNeverMakesTheWholeTensor) {
  const HeldExperts held = std::vector<int64_t>{7};
  Param p = Param::of_experts({2048, 1024, 1024}, kNormal, held);
  const size_t before = peak_resident_bytes(), shard = size_t{4} << 20;
  EXPECT_EQ(whole(p, "w1").numel(), 1024 * 1024);
  EXPECT_LE(peak_resident_bytes(), before + shard + (size_t{64} << 20));
}

// In few bits: what is drawn, packed.
TEST(Param, AValueInFewBitsIsThePackedDraw) {
  for (const bool experts : {false, true}) {
    const auto made = [&] {
      return experts ? Param::of_experts({3, 2, 8, 128}, kNormal).showing({3, 16, 128})
                     : Param::of({16, 128}, kNormal);
    };
    Param p = made();
    p.keep_in(LowBitFormat::kNf4);
    EXPECT_FALSE(p.allocated() || p.trainable());
    initialize(p, "m.w1", 1);
    EXPECT_FALSE(p.value.defined());
    const LowBit want = low_bit_pack(whole(made(), "m.w1"), LowBitFormat::kNf4);
    EXPECT_TRUE(p.stored()[0].equal(want.values));
    EXPECT_TRUE(p.stored()[1].equal(want.scales));
    EXPECT_THROW(p.pack(64, p.stored()[1]), Error);
  }
}

TEST(Param, I1_ABoxHasTheBitsOfItsPlaceInTheWhole) {
  const at::Tensor all = whole(Param::of({6, 10}, kNormal), "a");
  Param part = Param::of({6, 10}, kNormal);
  part.take_box(0, 2, 3, Axis::kFullShard);
  part.take_box(1, 4, 5, Axis::kTensor);
  EXPECT_TRUE(whole(part, "a").equal(all.narrow(0, 2, 3).narrow(1, 4, 5)));
}

TEST(Param, H2_GateAndUpHalvesAreCutEachForItself) {
  const auto w1 = [] { return Param::of_experts({2, 2, 6, 5}, kNormal).showing({2, 12, 5}); };
  const at::Tensor all = whole(w1(), "m.w1").view({2, 2, 6, 5});
  Param part = w1();
  part.take_box(2, 2, 3, Axis::kExpert);
  const at::Tensor got = whole(part, "m.w1");
  EXPECT_EQ(got.sizes(), (at::IntArrayRef{2, 6, 5}));
  EXPECT_TRUE(got.view({2, 2, 3, 5}).equal(all.narrow(2, 2, 3)));
  EXPECT_EQ(part.numel(), 60);
}

TEST(Param, I1_SeedAndNameChangeTheDraw) {
  const at::Tensor a = whole(Param::of({64}, kNormal), "a");
  EXPECT_TRUE(a.equal(whole(Param::of({64}, kNormal), "a")));
  EXPECT_FALSE(a.equal(whole(Param::of({64}, kNormal), "b")));
  EXPECT_FALSE(a.equal(whole(Param::of({64}, kNormal), "a", 2)));
}

TEST(Param, I1_ALowPrecisionValueIsTheRoundedDraw) {
  Param p = Param::of({33, 5}, kNormal);
  p.allocate(at::TensorOptions(at::kBFloat16));
  EXPECT_TRUE(whole(p, "a").equal(whole(Param::of({33, 5}, kNormal), "a").to(at::kBFloat16)));
}

TEST(Param, I2_MeanAndStdAreRightForEachExpertSeparately) {
  const int64_t n = 40000;
  const at::Tensor w = whole(Param::of_experts({4, 200, 200}, kNormal), "m.w1").to(at::kDouble);
  for (int64_t e = 0; e < 4; ++e) {
    const double mean = w[e].mean().item<double>(), std = w[e].std().item<double>();
    EXPECT_LT(std::abs(mean), 4 * 0.02 / std::sqrt(n));
    EXPECT_LT(std::abs(std - 0.02), 4 * 0.02 / std::sqrt(2.0 * n));
  }
}

TEST(Param, I2_TruncationRedrawsAndKeepsTheOthers) {
  Init cut = kNormal;
  cut.truncate = 3;
  const at::Tensor a = whole(Param::of({100000}, kNormal), "a");
  const at::Tensor b = whole(Param::of({100000}, cut), "a");
  EXPECT_LE(b.abs().max().item<float>(), 0.06f);
  const int64_t changed = a.ne(b).sum().item<int64_t>();
  EXPECT_EQ(changed, a.abs().gt(0.06f).sum().item<int64_t>());
  EXPECT_GT(changed, 150);  // 270 expected
  EXPECT_LT(b.abs().eq(0.06f).sum().item<int64_t>(), 2);
}

TEST(Param, I2_KaimingFollowsTheFanIn) {
  const Init init{.kind = Init::kKaiming};
  const double std = whole(Param::of({300, 50}, init), "a").std().item<double>();
  EXPECT_NEAR(std, 0.2, 4 * 0.2 / std::sqrt(2.0 * 15000));
}

TEST(Param, I2_KaimingUniformIsWithinItsBound) {
  const Init init{.kind = Init::kKaimingUniform};
  const at::Tensor w = whole(Param::of({300, 25}, init), "a");
  const double bound = 1 / std::sqrt(25.0);
  EXPECT_LE(w.abs().max().item<double>(), bound);
  EXPECT_GT(w.max().item<double>(), 0.99 * bound);
  EXPECT_LT(w.min().item<double>(), -0.99 * bound);
  EXPECT_NEAR(w.mean().item<double>(), 0, 4 * bound / std::sqrt(3.0 * 7500));
}

TEST(Param, I2_ExpertsMayStartAsCopies) {
  Init init = kNormal;
  init.same_experts = true;
  const at::Tensor w = whole(Param::of_experts({3, 4, 5}, init), "m.w2");
  EXPECT_TRUE(w[0].equal(w[2]));
}

TEST(Param, U1_RepeatedRowsAreDrawnOnce) {
  Init init = kNormal;
  init.repeat = 3;
  const at::Tensor w = whole(Param::of({6, 5}, init), "router");
  const at::Tensor drawn = whole(Param::of({2, 5}, kNormal), "router");
  for (int64_t r = 0; r < 6; ++r) EXPECT_TRUE(w[r].equal(drawn[r / 3])) << r;
}

TEST(Param, E21_NoLocalExpertsIsAnEmptyValue) {
  const Param p = Param::of_experts({3, 4, 5}, kNormal, std::vector<int64_t>{});
  EXPECT_EQ(whole(p, "m.w2").numel(), 0);
}

TEST(Param, OnlyTrainableValuesWantAGradient) {
  Param a = Param::of({2}, kNormal), b = a, c = Param::of({2}, {}).as_state();
  b.frozen = true;
  for (Param* p : {&a, &b, &c}) p->allocate(at::TensorOptions(at::kBFloat16));
  EXPECT_TRUE(a.value.requires_grad());
  EXPECT_FALSE(b.value.requires_grad());
  EXPECT_FALSE(c.value.requires_grad());
  EXPECT_EQ(c.value.scalar_type(), at::kFloat);
}

TEST(Param, ABoxMayBeEmptyAndTellsWhichNeighborsHaveItToo) {
  Param p = Param::of({6, 10}, kNormal);
  EXPECT_EQ(p.tensor_repeat(4), 4);  // not cut: all have it
  p.take_box(0, 2, 2, Axis::kTensor, 2);
  EXPECT_EQ(p.tensor_repeat(4), 2);
  Param none = Param::of({6, 10}, kNormal);
  none.take_box(0, 6, 0, Axis::kTensor);
  EXPECT_EQ(whole(none, "a").numel(), 0);
  EXPECT_THROW(none.take_box(0, 0, 0, Axis::kTensor), Error);
}

TEST(Param, RefusesABoxOutside) {
  Param p = Param::of({6, 10}, kNormal);
  EXPECT_THROW(p.take_box(0, 4, 3, Axis::kTensor), Error);
  EXPECT_THROW(p.take_box(2, 0, 1, Axis::kTensor), Error);
  EXPECT_THROW(Param::of_experts({2, 2}, kNormal, std::vector<int64_t>{2}), Error);
}

struct Leaf {
  Param weight = Param::of({2}, {});
  static void visit(auto& m, auto&& f) { f("weight", m.weight); }
};
struct Tree {
  Leaf norm;
  std::vector<Leaf> layers = std::vector<Leaf>(2);
  std::optional<Param> bias;
  std::unique_ptr<Leaf> head = std::make_unique<Leaf>();
  static void visit(auto& m, auto&& f) {
    f("norm", m.norm);
    f("layers", m.layers);
    f("bias", m.bias);
    f("head", m.head);
  }
};

TEST(Param, TheWalkNamesEveryParameterInOrder) {
  Tree tree;
  std::string names;
  for_each_param(tree, "model", [&](const std::string& name, Param&) { names += name + ' '; });
  EXPECT_EQ(names,
            "model.norm.weight model.layers.0.weight model.layers.1.weight model.head.weight ");
}

}  // namespace
}  // namespace troupe
