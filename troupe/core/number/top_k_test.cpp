#include "troupe/core/number/top_k.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

namespace troupe {
namespace {

template <class W>
void expect_sorted(const std::vector<W>& x) {
  const auto n = static_cast<int64_t>(x.size());
  TopK<W> top(n + 5);
  for (int64_t i = 0; i < n; ++i) top.keys()[i] = TopK<W>::key_of(x[i]);
  top.start(n);
  const auto value = [&](int i) { return std::isnan(x[i]) ? W(-INFINITY) : x[i]; };
  std::vector<int> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int i, int j) { return value(i) > value(j); });
  for (const int want : order) {
    const auto got = top.take();
    ASSERT_EQ(got.index, want) << "of " << n;
    ASSERT_EQ(TopK<W>::value_of(got.key), value(want));
  }
}

template <class W>
void expect_all_sorted() {
  std::mt19937 rng(5);
  const W inf = INFINITY;
  expect_sorted<W>({0, W(-0.0), 1, -inf, W(NAN), inf, -1, W(-NAN), -inf, 0, W(1e-30), W(-1e-30)});
  for (const int n : {0, 1, 15, 16, 17, 128, 129, 1000}) {
    std::vector<W> x(n);
    std::normal_distribution<W> normal;
    for (W& v : x) v = rng() % 3 == 0 ? static_cast<W>(rng() % 4) : normal(rng);
    expect_sorted(x);
  }
}

TEST(TopK, G2_TakesByValueThenIndex) {
  expect_all_sorted<float>();
  expect_all_sorted<double>();
}

TEST(TopK, MayBeStartedAgainOnFewer) {
  TopK<float> top(40);
  for (const int n : {40, 3}) {
    for (int i = 0; i < n; ++i) top.keys()[i] = TopK<float>::key_of(static_cast<float>(i));
    top.start(n);
    EXPECT_EQ(top.take().index, n - 1);
    EXPECT_EQ(top.take().index, n - 2);
  }
}

}  // namespace
}  // namespace troupe
