#include "troupe/ops/moe_ffn/fp8_sm90.h"

#include <ATen/ops/empty.h>

#include "troupe/ops/fp8.h"
#include "troupe/ops/moe_ffn/ffn_backend.h"
#include "troupe/ops/moe_ffn/fp8_largest.h"

namespace troupe {

at::Tensor Fp8Sm90::empty(at::IntArrayRef sizes, at::ScalarType type) const {
  return at::empty(sizes, options_.dtype(type));
}

at::Tensor Fp8Sm90::row_scales(int64_t columns, int64_t rows) const {
  return empty({columns / kFp8Tile * rows + kScalesBehind}, at::kFloat);
}

Fp8Sm90::Rows Fp8Sm90::rows_in_8_bits(const at::Tensor& x,
                                      const std::optional<at::Tensor>& largest) {
  const Fp8Matrix q = quantize_fp8(x, {}, std::nullopt, largest);
  return {q.bytes.view(at::kByte), q.scales.view({-1})};
}

Fp8Weight Fp8Sm90::weight(const Fp8Options& fp8, Fp8Weights::Which which, const at::Tensor& w,
                          bool backward) const {
  if (fp8.kept == nullptr) return rounded(w, fp8.recipe, backward);
  return fp8.kept->get(which, w, [&] { return rounded(w, fp8.recipe, /*backward=*/true); });
}

Fp8Weight Fp8Sm90::rounded(const at::Tensor& weight, Fp8Recipe recipe, bool backward) const {
  const at::Tensor w = weight.contiguous();
  const int64_t E = w.size(0), N = w.size(1), K = w.size(2);
  const int64_t blocks = E * N / kFp8Tile * (K / kFp8Tile);
  Fp8Weight out{empty({E * N, K}, at::kByte), {}, empty({blocks + kScalesBehind}, at::kFloat)};
  if (backward) out.transposed = empty({E * K, N}, at::kByte);
  const std::optional<at::Tensor> largest = shared_weight_largest(w, recipe);
  launch(
      Fp8WeightTiles{.w = flat_view(w, "a weight in 8 bits"),
                     .matrix_rows = N,
                     .rows = mat<uint8_t>(out.bytes, "rows"),
                     .transposed = backward ? ptr<uint8_t>(out.transposed, "transposed") : nullptr,
                     .scales = ptr<float>(out.scales, "scales"),
                     .largest = ptr_or_null<const float>(largest, "largest")},
      &CudaKernels::fp8_weight_tiles);
  return out;
}

Fp8Sm90::Tiles Fp8Sm90::empty_tiles(int64_t C, bool rows, bool transposed) const {
  const int64_t R = plan_.rows, blocks = fp8_row_blocks(R, plan_.experts);
  Tiles out;
  if (rows) {
    out.rows = empty({R, C}, at::kByte);
    out.row_scales = row_scales(C, R);
  }
  if (transposed) {
    out.columns = empty({C, blocks * kFp8Tile}, at::kByte);
    out.block_scales = empty({blocks, C / kFp8Tile}, at::kFloat);
  }
  return out;
}

Fp8Sm90::Tiles Fp8Sm90::tiles(const at::Tensor& x, const at::Tensor& factor, bool rows,
                              const std::optional<at::Tensor>& largest) const {
  Tiles out = empty_tiles(x.size(1), rows, factor.defined());
  Fp8RowTiles args{.x = view(x, "rows"),
                   .expert_offset = plan_.expert_offset,
                   .experts = plan_.experts,
                   .row_src = plan_.row_src};
  if (rows) {
    args.rows = mat<uint8_t>(out.rows, "rows in 8 bits");
    args.row_scales = ptr<float>(out.row_scales, "their scales");
    args.row_largest = ptr_or_null<const float>(largest, "largest");
  }
  std::optional<at::Tensor> with_factor;
  if (factor.defined()) {
    with_factor = times_factor(largest, factor);
    args.block_largest = ptr_or_null<const float>(with_factor, "largest with its factor");
    args.factor = scales(factor, "factor");
    args.columns = ptr<uint8_t>(out.columns, "columns in 8 bits");
    args.block_scales = ptr<float>(out.block_scales, "their scales");
  }
  launch(args, &CudaKernels::fp8_row_tiles);
  return out;
}

at::Tensor Fp8Sm90::product(const at::Tensor& rows, const at::Tensor& row_scales,
                            const Fp8Weight& w, bool whole_rows) const {
  const at::Tensor y = empty({rows.size(0), w.bytes.size(0) / plan_.experts});
  launch(MoeDownFp8Sm90{.plan = plan_,
                        .a = bytes(rows, "rows in 8 bits"),
                        .a_scales = scales(row_scales, "their scales"),
                        .w2 = bytes(w.bytes, "weights in 8 bits"),
                        .w2_scales = scales(w.scales, "their scales"),
                        .y = mut_view(y, "y"),
                        .whole_rows = whole_rows},
         &CudaKernels::moe_down_fp8_sm90);
  return y;
}

at::Tensor Fp8Sm90::input_gradient(const Tiles& t, const at::Tensor& transposed,
                                   const at::Tensor& weight_scales) const {
  const at::Tensor grad = empty({t.rows.size(0), transposed.size(0) / plan_.experts});
  launch(MoeRowsGradFp8Sm90{.plan = plan_,
                            .grad_h = bytes(t.rows, "gradient rows in 8 bits"),
                            .grad_h_scales = scales(t.row_scales, "their scales"),
                            .w1t = bytes(transposed, "transposed weights in 8 bits"),
                            .w1_scales = scales(weight_scales, "their scales"),
                            .grad_rows = mut_view(grad, "input gradient")},
         &CudaKernels::moe_rows_grad_fp8_sm90);
  return grad;
}

void Fp8Sm90::weight_gradient(const at::Tensor& source, const Tiles& t, const at::Tensor& grad,
                              bool transposed) const {
  launch(MoeWeightGradFp8Sm90{.plan = plan_,
                              .rows = bytes(source, "gathered rows"),
                              .columns = bytes(t.columns, "columns"),
                              .column_scales = scales(t.block_scales, "column scales"),
                              .grad = flat_out(grad, "weight gradient"),
                              .transposed = transposed},
         &CudaKernels::moe_weight_grad_fp8_sm90);
}

}  // namespace troupe
