#include "troupe/ops/moe_ffn/fp8_emulated.h"

#include "troupe/ops/moe_ffn/fp8_largest.h"

namespace troupe {

at::Tensor tile_emulated(const at::Tensor& x, const std::optional<at::Tensor>& largest) {
  const Fp8Tiles tiles{.rows = 1, .columns = kFp8Tile};
  return dequantize_fp8(quantize_fp8(x, tiles, std::nullopt, largest), tiles, x.scalar_type());
}

at::Tensor block_emulated(const at::Tensor& x, const at::Tensor& factor_R,
                          const at::Tensor& expert_offset,
                          const std::optional<at::Tensor>& largest) {
  const Fp8Tiles tiles{.rows = kFp8Tile, .columns = kFp8Tile, .expert_offset = expert_offset};
  const Fp8Matrix q = quantize_fp8(x, tiles, factor_R, times_factor(largest, factor_R));
  return dequantize_fp8(q, tiles, x.scalar_type());
}

at::Tensor weight_emulated(const Fp8Options& fp8, Fp8Weights::Which which, const at::Tensor& w,
                           int64_t part_rows) {
  const Fp8Tiles tiles{.rows = kFp8Tile, .columns = kFp8Tile, .part_rows = part_rows};
  const auto round = [&]() -> Fp8Weight {
    std::optional<at::Tensor> largest = shared_weight_largest(w, fp8.recipe);
    if (largest) largest = largest->repeat_interleave(w.size(1) / part_rows);
    const Fp8Matrix q =
        quantize_fp8(w.reshape({w.size(0) * w.size(1), w.size(2)}), tiles, std::nullopt, largest);
    return {q.bytes, {}, q.scales};
  };
  const Fp8Weight weight = fp8.kept != nullptr ? fp8.kept->get(which, w, round) : round();
  return dequantize_fp8({weight.bytes, weight.scales}, tiles, w.scalar_type()).view(w.sizes());
}

}  // namespace troupe
