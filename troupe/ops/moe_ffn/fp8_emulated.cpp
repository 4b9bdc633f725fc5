#include "troupe/ops/moe_ffn/fp8_emulated.h"

namespace troupe {

at::Tensor tile_emulated(const at::Tensor& x) {
  const Fp8Tiles tiles{.rows = 1, .columns = kFp8Tile};
  return dequantize_fp8(quantize_fp8(x, tiles), tiles, x.scalar_type());
}

at::Tensor block_emulated(const at::Tensor& x, const at::Tensor& factor_R,
                          const at::Tensor& expert_offset) {
  const Fp8Tiles tiles{.rows = kFp8Tile, .columns = kFp8Tile, .expert_offset = expert_offset};
  return dequantize_fp8(quantize_fp8(x, tiles, factor_R), tiles, x.scalar_type());
}

at::Tensor weight_emulated(Fp8Weights* kept, Fp8Weights::Which which, const at::Tensor& w,
                           int64_t part_rows) {
  const Fp8Tiles tiles{.rows = kFp8Tile, .columns = kFp8Tile, .part_rows = part_rows};
  const auto round = [&]() -> Fp8Weight {
    const Fp8Matrix q = quantize_fp8(w.reshape({w.size(0) * w.size(1), w.size(2)}), tiles);
    return {q.bytes, {}, q.scales};
  };
  const Fp8Weight weight = kept != nullptr ? kept->get(which, w, round) : round();
  return dequantize_fp8({weight.bytes, weight.scales}, tiles, w.scalar_type()).view(w.sizes());
}

}  // namespace troupe
