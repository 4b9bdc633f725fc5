#include "troupe/distributed/dispatch/turns.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <string>

#include "troupe/core/check.h"

namespace troupe {
namespace {

// a and b, with their turns.
struct Two {
  Turns turns{c10::kCPU};
  std::string order = {};

  std::function<void()> of(char name, int steps, int throws_at = -1) {
    return [this, name, steps, throws_at] {
      for (int i = 0; i < steps; ++i) {
        if (i == throws_at) fail(Code::kBadValue, std::string(1, name), "throws");
        order += name + std::to_string(i);
        if (i + 1 < steps) turns.pass();
      }
    };
  }
};

TEST(Turns, OV8_AreTakenAndThenTheLongerOneGoesOn) {
  Two two;
  for (int again = 0; again < 3; ++again) {
    two.order.clear();
    two.turns.both(two.of('a', 2), two.of('b', 4));
    EXPECT_EQ(two.order, "a0b0a1b1b2b3");
    two.order.clear();
    two.turns.both(two.of('a', 3), two.of('b', 1));
    EXPECT_EQ(two.order, "a0b0a1a2");
  }
  two.order.clear();
  two.of('a', 3)();  // alone
  EXPECT_EQ(two.order, "a0a1a2");
}

TEST(Turns, BothEndWhereOneThrows) {
  Two two;
  const auto thrown = [&](const std::function<void()>& a, const std::function<void()>& b) {
    two.order.clear();
    try {
      two.turns.both(a, b);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_TRUE(thrown(two.of('a', 4, 1), two.of('b', 4)).starts_with("a: "));
  EXPECT_EQ(two.order, "a0b0");
  EXPECT_TRUE(thrown(two.of('a', 4), two.of('b', 4, 1)).starts_with("b: "));
  EXPECT_EQ(two.order, "a0b0a1");
  EXPECT_TRUE(thrown(two.of('a', 1, 0), two.of('b', 4)).starts_with("a: "));
  EXPECT_EQ(two.order, "");  // the other never began
  EXPECT_EQ(thrown(two.of('a', 1), two.of('b', 1)), "");
  EXPECT_EQ(two.order, "a0b0");
}

TEST(Turns, BothHaveTheModesOfTheCaller) {
  Turns turns{c10::kCPU};
  for (const bool mode : {false, true}) {
    const at::AutoGradMode set(mode);
    bool first = !mode, second = !mode;
    turns.both([&] { first = at::GradMode::is_enabled(); },
               [&] { second = at::GradMode::is_enabled(); });
    EXPECT_EQ(first, mode);
    EXPECT_EQ(second, mode);
  }
}

}  // namespace
}  // namespace troupe
