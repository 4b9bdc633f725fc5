#include "troupe/train/optim/moments8.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/where.h>

#include "troupe/core/check.h"
#include "troupe/core/number/moment8.h"

namespace troupe {
namespace {

constexpr int64_t kOne = detail::kMomentOne;

int64_t top(bool second) {
  return second ? 255 : 127;
}

// [ceil(n / 256), 256], the end filled with 0.
at::Tensor in_blocks(const at::Tensor& x) {
  const int64_t n = x.numel(), blocks = moment_blocks(n);
  const int64_t rest = blocks * kMomentBlock - n;
  return (rest == 0 ? x : at::constant_pad_nd(x, {0, rest})).view({blocks, kMomentBlock});
}

int32_t word(uint32_t x) {
  return static_cast<int32_t>(x);
}

at::Tensor shifted(const at::Tensor& x, int64_t by) {  // of unsigned numbers
  return x.bitwise_right_shift(by).bitwise_and((int64_t{1} << (32 - by)) - 1);
}

// moment_dither(x, x). int32 numbers wrap.
at::Tensor dither_of(const at::Tensor& bits, bool second) {
  at::Tensor h = (bits * word(0x9e3779b1u)).bitwise_xor(bits * word(0x85ebca77u));
  h = h.bitwise_xor(shifted(h, 16)) * word(0x7feb352du);
  h = h.bitwise_xor(shifted(h, 15)) * word(0x846ca68bu);
  h = h.bitwise_xor(shifted(h, 16));
  return shifted(second ? h * word(0x9e3779b1u) : h, 12);
}

}  // namespace

at::Tensor moments_of(const at::Tensor& codes, const at::Tensor& scales, bool second) {
  const at::Tensor code = in_blocks(codes).to(at::kInt);
  const at::Tensor size = second ? code : code.bitwise_and(127);
  const at::Tensor bits = (size + (kOne - top(second))).bitwise_left_shift_(20);
  at::Tensor y = bits.masked_fill_(size == 0, 0).view(at::kFloat);
  if (!second) y = at::where(code > 127, -y, y);
  return (y * scales.unsqueeze(1)).view(-1).narrow(0, 0, codes.numel());
}

void code_moments(const at::Tensor& x, const at::Tensor& codes, const at::Tensor& scales,
                  bool second, bool dithered) {
  const int64_t n = x.numel();
  TROUPE_CHECK(codes.numel() == n && scales.numel() == moment_blocks(n), "-", n, "moments have",
               codes.numel(), "codes and", scales.numel(), "scales");
  if (n == 0) return;
  const at::Tensor padded = in_blocks(x), own = padded.view(at::kInt);
  const at::Tensor size = own.bitwise_and(0x7fffffff);
  const at::Tensor largest = size.amax(1, /*keepdim=*/true);
  const at::Tensor above = largest > 0x7e800000;
  const at::Tensor power = (largest + 0x007fffff).bitwise_and_(0x7f800000);
  scales.copy_(power.masked_fill(above, 0x7fc00000).view(at::kFloat).view(-1));
  const at::Tensor inverse =
      (0x7f000000 - power).masked_fill_(above.logical_or(power == 0), 0).view(at::kFloat);
  const at::Tensor y = (size.view(at::kFloat) * inverse).view(at::kInt);
  const at::Tensor upper =
      (dithered ? y + dither_of(own, second) : y + int64_t{kToNearest}).bitwise_right_shift_(20);
  at::Tensor code = upper.clamp_(kOne - top(second), kOne).sub_(kOne - top(second));
  if (second) {
    code = at::where((code == 0).logical_and(padded > 0), 1, code);
  } else {
    code = at::where((own < 0).logical_and(code > 0), code + 128, code);
  }
  codes.copy_(code.view(-1).narrow(0, 0, n));
}

}  // namespace troupe
