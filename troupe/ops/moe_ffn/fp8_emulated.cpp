#include "troupe/ops/moe_ffn/fp8_emulated.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros.h>

#include <tuple>

namespace troupe {

namespace {

// max |x|, or of each row the row's, in f32. A NaN is the largest.
at::Tensor largest_of(const std::tuple<at::Tensor, at::Tensor>& low_and_high) {
  const auto& [low, high] = low_and_high;
  return at::maximum(high, low.neg()).to(at::kFloat);
}

at::Tensor no_largest(const at::Tensor& x) {
  return at::zeros({1}, x.options().dtype(at::kFloat));
}

}  // namespace

std::optional<at::Tensor> shared_largest(const at::Tensor& x, Fp8Recipe recipe) {
  if (recipe != Fp8Recipe::kTensor) return std::nullopt;
  if (x.sym_numel() == 0) return no_largest(x);
  return largest_of(at::aminmax(x)).view({1});
}

std::optional<at::Tensor> shared_tokens_largest(const at::Tensor& x, const Plan& plan,
                                                Fp8Recipe recipe) {
  if (recipe != Fp8Recipe::kTensor) return std::nullopt;
  if (x.sym_numel() == 0 || plan.row_src.sym_numel() == 0) return no_largest(x);
  const at::Tensor of_tokens = largest_of(at::aminmax(x, 1));
  const at::Tensor of_rows = at::index_select(of_tokens, 0, plan.row_src.clamp_min(0));
  return of_rows.masked_fill(plan.row_src.lt(0), 0).amax().view({1});
}

std::optional<at::Tensor> shared_weight_largest(const at::Tensor& w, Fp8Recipe recipe) {
  if (recipe != Fp8Recipe::kTensor) return std::nullopt;
  return largest_of(at::aminmax(w.reshape({w.size(0), w.size(1) * w.size(2)}), 1));
}

std::optional<at::Tensor> times_factor(const std::optional<at::Tensor>& largest,
                                       const at::Tensor& factor_R) {
  if (!largest.has_value() || factor_R.sym_size(0) == 0) return largest;
  return *largest * factor_R.slice(0, 0, 1);
}

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
