#include "troupe/ops/moe_ffn/fp8_packed_sm90.h"

namespace troupe {

Fp8PackedSm90::Fp8PackedSm90(const at::Tensor& like, const Plan& plan, const Fp8Options& fp8)
    : Fp8Sm90(like, plan_ref(plan, "moe_ffn_fp8")), fp8_(fp8) {}

at::Tensor Fp8PackedSm90::product(const at::Tensor& x_RC, const std::optional<at::Tensor>& largest,
                                  Fp8Weights::Which which, const at::Tensor& w,
                                  WeightOrder order) const {
  const at::Tensor x = x_RC.contiguous();
  const bool backward = order == WeightOrder::kInOut;
  const Tiles t = tiles(x, {}, /*rows=*/true, largest);
  const Fp8Weight w8 = weight(fp8_, which, w, backward);
  if (backward) return input_gradient(t, w8.transposed, w8.scales);
  return Fp8Sm90::product(t.rows, t.row_scales, w8, /*whole_rows=*/false);
}

at::Tensor Fp8PackedSm90::weight_gradient(const at::Tensor& tokens_TD, const at::Tensor& rows_RC,
                                          const Largest& largest, bool tokens_first) const {
  const at::Tensor tokens = tokens_TD.contiguous(), rows = rows_RC.contiguous();
  const Rows q = rows_in_8_bits(tokens, largest.tokens);
  const Tiles t = tiles(rows, q.scales, /*rows=*/false, largest.rows);
  const int64_t D = tokens.size(1), C = rows.size(1), E = plan().experts;
  const at::Tensor grad = tokens_first ? empty({E, D, C}) : empty({E, C, D});
  Fp8Sm90::weight_gradient(q.bytes, t, grad, /*transposed=*/!tokens_first);
  return grad;
}

}  // namespace troupe
