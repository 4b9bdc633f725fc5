// A row of x and the buffers that it is packed into: what the test and the benchmark run on.
#pragma once

#include <cstdint>

#include "troupe/kernels/low_bit/low_bit.h"
#include "troupe/testing/matrix.h"

namespace troupe::low_bit_detail {

struct LowBitProblem {
  LowBitProblem(int64_t elements, Dtype dtype, LowBitFormat f)
      : format(f),
        group(low_bit_group(f)),
        x(dtype, 1, elements),
        values(static_cast<size_t>(elements * low_bit_bits(f) / 8)),
        scales(static_cast<size_t>(elements / group)),
        exponents(static_cast<size_t>(elements / group)),
        non_finite(1) {
    x.fill_normal(1);
    non_finite[0] = 0;
  }
  bool mx() const { return format == LowBitFormat::kMxfp4; }
  LowBitPack pack() {
    return {.x = x.view(),
            .values = values.data(),
            .scales = mx() ? nullptr : scales.data(),
            .exponents = mx() ? exponents.data() : nullptr,
            .non_finite = non_finite.data(),
            .format = format};
  }
  LowBitUnpack unpack_to(MutRef to) {
    return {.values = values.data(),
            .scales = mx() ? nullptr : scales.data(),
            .exponents = mx() ? exponents.data() : nullptr,
            .x = to,
            .format = format};
  }
  LowBitFormat format;
  int64_t group;
  testing::Matrix x;
  testing::Buffer<uint8_t> values;
  testing::Buffer<float> scales;
  testing::Buffer<uint8_t> exponents;
  testing::Buffer<int64_t> non_finite;
};

}  // namespace troupe::low_bit_detail
