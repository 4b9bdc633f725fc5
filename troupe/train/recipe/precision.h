// The type of weights and matrix products of a run (train.precision).
#pragma once

#include <array>

#include "troupe/core/text/text.h"

namespace troupe {

// auto: bf16 on a GPU, fp32 on the CPU, whose bf16 products are far slower. fp64: on the CPU alone,
// with masters, moments and sums in fp64 too.
enum class Precision { kAuto, kFp32, kBf16, kFp16, kFp64 };
constexpr auto names_of(Precision) {
  return std::array{Named{"auto", Precision::kAuto}, Named{"fp32", Precision::kFp32},
                    Named{"bf16", Precision::kBf16}, Named{"fp16", Precision::kFp16},
                    Named{"fp64", Precision::kFp64}};
}

}  // namespace troupe
