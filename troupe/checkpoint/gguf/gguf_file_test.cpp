#include "troupe/checkpoint/gguf/gguf_file.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {
namespace {

template <class Bytes>
std::string hex(const Bytes& bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  for (const auto byte : bytes) {
    out += kDigits[static_cast<unsigned char>(byte) >> 4];
    out += kDigits[static_cast<unsigned char>(byte) & 15];
  }
  return out;
}

// Halves from -8 up, and a last one that is no multiple of the scale.
std::vector<float> golden_block() {
  std::vector<float> out;
  for (int i = 0; i < 32; ++i) out.push_back(static_cast<float>(i - 16) * 0.5F);
  out.back() = 8.25F;
  return out;
}

// Both texts are what the Python package gguf 0.19.0 writes for the same.
TEST(GgufFile, HasTheBytesOfTheFormat) {
  const std::string header =
      gguf_header({{"general.architecture", std::string("llama")},
                   {"a", uint32_t{7}},
                   {"b", 0.5F},
                   {"c", true},
                   {"d", std::vector<int32_t>{1, -2}},
                   {"e", std::vector<float>{0.25F}},
                   {"f", std::vector<std::string>{"x", "yz"}}},
                  {{"t", {2, 3}, GgufType::kF32}, {"q", {1, 32}, GgufType::kQ8_0}});
  EXPECT_EQ(hex(header),
            "4747554603000000020000000000000007000000000000001400000000000000"
            "67656e6572616c2e617263686974656374757265080000000500000000000000"
            "6c6c616d61010000000000000061040000000700000001000000000000006206"
            "0000000000003f01000000000000006307000000010100000000000000640900"
            "000005000000020000000000000001000000feffffff01000000000000006509"
            "0000000600000001000000000000000000803e01000000000000006609000000"
            "0800000002000000000000000100000000000000780200000000000000797a01"
            "0000000000000074020000000300000000000000020000000000000000000000"
            "0000000000000000010000000000000071020000002000000000000000010000"
            "0000000000080000002000000000000000000000000000000000000000000000");
}

TEST(GgufFile, BlocksOfEightBitsAreThoseOfLlamaCpp) {
  std::vector<std::byte> out;
  ASSERT_TRUE(append_q8_0(golden_block(), out));
  EXPECT_EQ(hex(out), "282c858d949ca4abb3bbc2cad2dae1e9f1f800080f171f262e363e454d555c646c7f");
}

TEST(GgufFile, ABlockOfZerosHasScaleZero) {
  std::vector<std::byte> out;
  ASSERT_TRUE(append_q8_0(std::vector<float>(64, 0), out));
  EXPECT_EQ(out, std::vector<std::byte>(68));
}

TEST(GgufFile, RefusesNumbersWithoutAScale) {
  for (const float bad : {std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN(), 127 * 65536.0F}) {
    std::vector<float> numbers = golden_block();
    numbers[3] = bad;
    std::vector<std::byte> out(5);
    EXPECT_FALSE(append_q8_0(numbers, out)) << bad;
    EXPECT_EQ(out.size(), 5);
  }
}

TEST(GgufFile, CountsBytesByType) {
  EXPECT_EQ(gguf_bytes({"t", {3, 64}, GgufType::kF32}), 768);
  EXPECT_EQ(gguf_bytes({"t", {3, 64}, GgufType::kBF16}), 384);
  EXPECT_EQ(gguf_bytes({"t", {3, 64}, GgufType::kQ8_0}), 204);
}

}  // namespace
}  // namespace troupe
