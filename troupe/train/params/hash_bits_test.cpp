#include "troupe/train/params/hash_bits.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

namespace troupe {
namespace {

// A tensor of `n` elements of any bits.
at::Tensor any_bits(int64_t n, at::ScalarType type) {
  const auto size = static_cast<int64_t>(c10::elementSize(type));
  return at::randint(0, 256, {n * size}, at::TensorOptions(at::kByte)).view(type);
}

// What a CPU does, and what other devices do.
class HashBits : public ::testing::TestWithParam<bool> {
 protected:
  static int64_t hash_of(const at::Tensor& x) {
    return (GetParam() ? sum_of_mixed_words(x) : hash_bits(x)).item<int64_t>();
  }
};
INSTANTIATE_TEST_SUITE_P(Ways, HashBits, ::testing::Bool());

// The formula, a word at a time.
int64_t reference(const at::Tensor& x) {
  const at::Tensor bytes = x.contiguous().view({-1}).view(at::kByte);
  uint64_t sum = 0;
  for (int64_t at = 0; at < bytes.numel(); at += 8) {
    uint64_t word = 0;
    for (int64_t b = at; b < std::min<int64_t>(at + 8, bytes.numel()); ++b) {
      word |= uint64_t{bytes.const_data_ptr<uint8_t>()[b]} << (8 * (b - at));
    }
    word += static_cast<uint64_t>(at / 8) * 0x9e3779b97f4a7c15;
    word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9;
    word = (word ^ (word >> 27)) * 0x94d049bb133111eb;
    sum += word ^ (word >> 31);
  }
  return static_cast<int64_t>(sum);
}

const std::vector<at::ScalarType> kTypes = {at::kByte, at::kShort, at::kBFloat16, at::kHalf,
                                            at::kInt,  at::kFloat, at::kLong,     at::kDouble};

TEST(SumOfMixedWords, IsTheFormulaOfAnyTypeAndSize) {
  for (const at::ScalarType type : kTypes) {
    for (const int64_t n : {0, 1, 2, 3, 7, 8, 9, 1000}) {
      const at::Tensor x = any_bits(n, type);
      EXPECT_EQ(sum_of_mixed_words(x).item<int64_t>(), reference(x)) << type << ' ' << n;
    }
  }
  // Tensors of several pieces, where the last is whole, and where it ends within a word.
  for (const int64_t n : {3 << 20, (2 << 20) + 5}) {
    const at::Tensor x = any_bits(n, at::kFloat);
    EXPECT_EQ(sum_of_mixed_words(x).item<int64_t>(), reference(x)) << n;
  }
}

TEST_P(HashBits, EachFlippedBitChangesIt) {
  for (const at::ScalarType type : kTypes) {
    for (const int64_t n : {1, 3, 7, 33}) {
      const at::Tensor x = any_bits(n, type), bytes = x.view(at::kByte);
      std::set<int64_t> seen = {hash_of(x)};
      for (int64_t bit = 0; bit < 8 * bytes.numel(); ++bit) {
        auto* const byte = bytes.mutable_data_ptr<uint8_t>() + bit / 8;
        const auto mask = static_cast<uint8_t>(1 << bit % 8);
        *byte ^= mask;
        EXPECT_TRUE(seen.insert(hash_of(x)).second) << type << ' ' << n << " bit " << bit;
        *byte ^= mask;
      }
    }
  }
}

TEST_P(HashBits, TwoFlipsOfOneBitDoNotCancel) {
  const at::Tensor x = at::zeros({64}, at::TensorOptions(at::kLong));
  std::set<int64_t> seen = {hash_of(x)};
  for (int64_t i = 1; i < 64; ++i) {
    const at::Tensor y = x.clone();
    y[0] = INT64_MIN, y[i] = INT64_MIN;
    EXPECT_TRUE(seen.insert(hash_of(y)).second) << i;
  }
}

TEST_P(HashBits, TheOrderOfWordsAndOfBytesCounts) {
  const at::Tensor x = at::arange(1000, at::TensorOptions(at::kInt));
  EXPECT_NE(hash_of(x), hash_of(x.flip(0)));
  EXPECT_NE(hash_of(x), hash_of(at::cat({x.narrow(0, 1, 999), x.narrow(0, 0, 1)})));
  // Pieces in another place.
  const at::Tensor y = any_bits(int64_t{4} << 20, at::kInt);
  EXPECT_NE(hash_of(y), hash_of(at::cat({y.narrow(0, 2 << 20, 2 << 20), y.narrow(0, 0, 2 << 20)})));
}

// A view that begins within a word, and one that is not contiguous: as a copy of it.
TEST_P(HashBits, IsOfTheNumbersAndNotOfWhereTheyLie) {
  const at::Tensor x = any_bits(1001, at::kBFloat16);
  for (const int64_t from : {0, 1, 3, 4}) {
    const at::Tensor part = x.narrow(0, from, 900);
    EXPECT_EQ(hash_of(part), hash_of(part.clone())) << from;
  }
  const at::Tensor m = any_bits(35 * 11, at::kFloat).view({35, 11});
  EXPECT_EQ(hash_of(m.t()), hash_of(m.t().contiguous()));
  EXPECT_NE(hash_of(m.t()), hash_of(m));
  EXPECT_EQ(hash_of(m.view({-1})), hash_of(m));
}

TEST_P(HashBits, TheSignOfAZeroAndTheBitsOfANanCount) {
  const at::Tensor x = at::zeros({5}, at::TensorOptions(at::kFloat)), y = x.clone();
  y[2] = -0.0F;
  EXPECT_NE(hash_of(x), hash_of(y));
  const at::Tensor a = x.clone(), b = x.clone();
  a.view(at::kInt)[1] = 0x7fc00000, b.view(at::kInt)[1] = 0x7fc00001;
  EXPECT_NE(hash_of(a), hash_of(b));
}

}  // namespace
}  // namespace troupe
