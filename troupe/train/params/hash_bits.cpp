#include "troupe/train/params/hash_bits.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "troupe/core/file/hash.h"

namespace troupe {
namespace {

constexpr int64_t kWordBytes = 8;
constexpr int64_t kAtOnce = int64_t{1} << 20;  // words: what is between two passes stays in a cache
// 2^64 over the golden ratio, and the finalizer of SplitMix64, whose multipliers are odd.
constexpr auto kStep = static_cast<int64_t>(0x9e3779b97f4a7c15);
constexpr auto kFirst = static_cast<int64_t>(0xbf58476d1ce4e5b9);
constexpr auto kSecond = static_cast<int64_t>(0x94d049bb133111eb);

// x ^= x >> bits, in place. A shift of int64 copies the sign: cut off, or it would not be one to
// one.
void fold(const at::Tensor& x, int64_t bits) {
  const int64_t kept = (int64_t{1} << (64 - bits)) - 1;
  x.bitwise_xor_(x.bitwise_right_shift(bits).bitwise_and_(kept));
}

// As words: a view, or where they do not begin and end on a word, a copy.
at::Tensor words_of(const at::Tensor& bytes) {
  const int64_t n = bytes.numel();
  if (n % kWordBytes == 0 && bytes.storage_offset() % kWordBytes == 0) return bytes.view(at::kLong);
  const at::Tensor out =
      at::zeros({(n + kWordBytes - 1) / kWordBytes * kWordBytes}, bytes.options());
  out.narrow(0, 0, n).copy_(bytes);
  return out.view(at::kLong);
}

}  // namespace

at::Tensor hash_bits(const at::Tensor& x) {
  if (!x.is_cpu()) return sum_of_mixed_words(x);
  // 15x over the sums below (256 MiB of f32, one core).
  const at::Tensor here = x.detach().contiguous();
  const uint64_t hash = hash64(std::span(static_cast<const std::byte*>(here.const_data_ptr()),
                                         static_cast<size_t>(here.nbytes())));
  return at::full({}, static_cast<int64_t>(hash), at::TensorOptions(at::kLong));
}

at::Tensor sum_of_mixed_words(const at::Tensor& x) {
  const at::Tensor bytes = x.detach().contiguous().view({-1}).view(at::kByte);
  const at::TensorOptions options = at::TensorOptions(at::kLong).device(x.device());
  const int64_t chunk = kAtOnce * kWordBytes, n = bytes.numel();
  at::Tensor out = at::zeros({}, options);
  // i g of the first words; of the others it is so much more.
  const at::Tensor places =
      at::arange(std::min(kAtOnce, (n + kWordBytes - 1) / kWordBytes), options).mul_(kStep);
  for (int64_t at = 0; at < n; at += chunk) {
    const at::Tensor words = words_of(bytes.narrow(0, at, std::min(chunk, n - at)));
    const auto skipped = static_cast<uint64_t>(at / kWordBytes) * static_cast<uint64_t>(kStep);
    const at::Tensor mixed = words + places.narrow(0, 0, words.numel());
    mixed.add_(static_cast<int64_t>(skipped));
    fold(mixed, 30);
    mixed.mul_(kFirst);
    fold(mixed, 27);
    mixed.mul_(kSecond);
    fold(mixed, 31);
    out.add_(mixed.sum());
  }
  return out;
}

}  // namespace troupe
