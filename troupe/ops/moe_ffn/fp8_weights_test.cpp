#include "troupe/ops/moe_ffn/fp8_weights.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "troupe/ops/moe_ffn/moe_ffn_fp8.h"

namespace troupe {
namespace {

// What was asked of the copies of one weight, in order.
struct CopyCalls {
  Fp8Weight rounded(const at::Tensor& w) {
    calls.emplace_back("round");
    return {w.clone(), {}, {}};
  }
  void put(const at::Tensor& w) {
    copies.put(Fp8Weights::kIn, w, {w.clone(), {}, {}}, [this] { calls.emplace_back("wait"); });
  }
  double get(const at::Tensor& w) {
    const Fp8Weight& out = copies.get(Fp8Weights::kIn, w, [&] { return rounded(w); });
    calls.emplace_back("read");
    return out.bytes.sum().item<double>();
  }

  Fp8Weights copies;
  std::vector<std::string> calls;
};

TEST(Fp8Weights, EachReadOfACopyThatWasBegunBeforeIsBehindItsWait) {
  CopyCalls c;
  const at::Tensor w = at::ones({2, 3});
  EXPECT_FALSE(c.copies.holds(Fp8Weights::kIn, w));
  c.put(w);
  EXPECT_TRUE(c.copies.holds(Fp8Weights::kIn, w));
  EXPECT_FALSE(c.copies.holds(Fp8Weights::kOut, w));
  EXPECT_TRUE(c.calls.empty()) << "nobody reads yet";
  EXPECT_EQ(c.get(w), 6);
  EXPECT_EQ(c.get(w), 6);
  EXPECT_EQ(c.calls, (std::vector<std::string>{"wait", "read", "wait", "read"}));
}

TEST(Fp8Weights, ACopyOfValuesThatWereWrittenSinceOrOfAnotherTensorIsNotRead) {
  CopyCalls c;
  const at::Tensor w = at::ones({2, 3});
  c.put(w);
  w.mul_(2);
  EXPECT_FALSE(c.copies.holds(Fp8Weights::kIn, w));
  EXPECT_EQ(c.get(w), 12);
  EXPECT_EQ(c.calls, (std::vector<std::string>{"round", "read"}));
  EXPECT_EQ(c.get(at::full({2, 3}, 5)), 30);
  EXPECT_EQ(c.calls, (std::vector<std::string>{"round", "read", "round", "read"}));
}

// Stands for work on another stream: when it ends, are the bytes that it writes still the copy's?
struct WorkOn {
  WorkOn(const at::Tensor& b, bool& h) : bytes(b), held(h) {}
  WorkOn(const WorkOn&) = delete;
  WorkOn& operator=(const WorkOn&) = delete;
  ~WorkOn() { held = bytes.use_count() == 2; }  // the test's and the copy's

  const at::Tensor& bytes;
  bool& held;
};

TEST(Fp8Weights, MemoryOfACopyGoesBehindTheWorkThatWritesIt) {
  for (const bool replaced : {true, false}) {
    auto copies = std::make_unique<Fp8Weights>();
    const at::Tensor w = at::ones({2, 3}), bytes = w.clone();
    bool held = false;
    {
      const auto work = std::make_shared<WorkOn>(bytes, held);
      copies->put(Fp8Weights::kIn, w, {bytes, {}, {}}, [work] {});
    }
    ASSERT_EQ(bytes.use_count(), 2);
    if (replaced) {
      copies->get(Fp8Weights::kIn, at::full({2, 3}, 5), [&] { return Fp8Weight{w, {}, {}}; });
    } else {
      copies = nullptr;
    }
    EXPECT_TRUE(held) << "freed before, replaced: " << replaced;
    EXPECT_EQ(bytes.use_count(), 1) << "replaced: " << replaced;
  }
}

// No tensor core multiplies bytes on a CPU: nothing begins, whatever is kept.
TEST(Fp8Weights, Q8_OnACpuNothingIsRoundedAhead) {
  const ExpertWeights experts{.w1 = at::ones({2, 256, 128}, at::kBFloat16),
                              .b1 = std::nullopt,
                              .w2 = at::ones({2, 128, 128}, at::kBFloat16),
                              .b2 = std::nullopt};
  Fp8Options options{.beside = std::make_shared<SideStream>()};
  EXPECT_EQ(round_ahead(experts, {}, options, /*backward=*/true), nullptr);
  options.keep_weights(true);
  EXPECT_EQ(round_ahead(experts, {}, options, /*backward=*/true), nullptr);
  EXPECT_FALSE(options.kept->holds(Fp8Weights::kIn, experts.w1));
}

}  // namespace
}  // namespace troupe
