#include "troupe/ops/moe_ffn/linear_fp8.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include "troupe/core/check.h"
#include "troupe/ops/fp8.h"
#include "troupe/ops/grouped_gemm.h"
#include "troupe/ops/moe_ffn/dense_plan.h"
#include "troupe/ops/moe_ffn/fp8_emulated.h"
#include "troupe/ops/moe_ffn/fp8_largest.h"
#include "troupe/ops/moe_ffn/fp8_sm90.h"
#include "troupe/ops/moe_ffn/moe_ffn_fp8_sm90.h"
#include "troupe/ops/support/define.h"

namespace troupe {
namespace {

constexpr const char* kLinearName = "linear_fp8";

// What backward reads, in the order of LinearFp8Forward::saved.
struct Saved {
  at::Tensor x8, x_scales;  // row(X)'s bytes and scales; undefined without weight_grad
  at::Tensor w, w_scales;   // transposed in 8 bits, with its scales; emulated: W itself
  at::Tensor x;             // undefined with weight_grad
  explicit Saved(const TensorList& s)
      : x8(s[0]), x_scales(s[1]), w(s[2]), w_scales(s[3]), x(s[4]) {}
};

// By the two sizes of the weight, in either order, type and device, so that forward and backward take
// the same path.
bool multiplies_bytes(const at::Tensor& like, int64_t N, int64_t K, const Fp8Linear& fp8) {
  const Sm90Form form{N, K, 1, /*plain=*/true, like.scalar_type(), gpu_of(like.device())};
  return !fp8.options.emulate && fp8_sm90_fault(form).empty();
}

// In the order of Saved: of rows, what the weight gradient reads and nothing else.
TensorList linear_saved(const Fp8Sm90::Rows& x8, const at::Tensor& w, const at::Tensor& w_scales,
                        const at::Tensor& x, const Fp8Linear& fp8) {
  if (fp8.options.weight_grad) return {x8.bytes, x8.scales.view({-1}), w, w_scales, at::Tensor()};
  return {at::Tensor(), at::Tensor(), w, w_scales, x};
}

std::optional<at::Tensor> input_largest(const at::Tensor& x, const Fp8Linear& fp8, bool keep) {
  return shared_largest(x, {fp8.options, input_of(fp8.which), keep});
}

std::optional<at::Tensor> gradient_largest(const at::Tensor& dy, const Fp8Linear& fp8) {
  return shared_largest(dy, {fp8.options, gradient_of(fp8.which), /*counts=*/true});
}

at::Tensor one_expert(const at::Tensor& w) {
  return w.unsqueeze(0);
}

LinearFp8Forward forward_sm90(const at::Tensor& x_TK, const at::Tensor& w_NK, const Fp8Linear& fp8,
                              bool keep) {
  const Plan plan = dense_plan(x_TK);
  const Fp8Sm90 calls(x_TK, plan_ref(plan, kLinearName));
  const bool tiled = fp8.options.recipe == Fp8Recipe::kBlock;
  Fp8Sm90::Rows x;  // whole ones, which a weight gradient reads under every recipe
  if (!tiled || (keep && fp8.options.weight_grad)) {
    x = Fp8Sm90::rows_in_8_bits(x_TK, input_largest(x_TK, fp8, keep));
  }
  const Fp8Sm90::Tiles t = tiled ? calls.tiles(x_TK, {}, /*rows=*/true) : Fp8Sm90::Tiles();
  const Fp8Weight w = calls.weight(fp8.options, fp8.which, one_expert(w_NK), keep);
  LinearFp8Forward out{
      .y = calls.product(tiled ? t.rows : x.bytes, tiled ? t.row_scales : x.scales, w,
                         /*whole_rows=*/!tiled),
      .saved = {}};
  if (!keep) return out;
  out.saved = linear_saved({x.bytes, x.scales}, w.transposed, w.scales, x_TK, fp8);
  return out;
}

LinearGrads backward_sm90(const at::Tensor& dy, const Saved& s, const Fp8Linear& fp8, bool of_x,
                          bool of_w) {
  const Plan plan = dense_plan(dy);
  const Fp8Sm90 calls(dy, plan_ref(plan, kLinearName));
  const bool columns = of_w && fp8.options.weight_grad;
  LinearGrads out;
  if (of_w && !columns) out.w = at::mm(dy.t(), s.x);
  if (!of_x && !columns) return out;
  const Fp8Sm90::Tiles t =
      calls.tiles(dy, columns ? s.x_scales : at::Tensor(), of_x, gradient_largest(dy, fp8));
  if (of_x) out.x = calls.input_gradient(t, s.w, s.w_scales);
  if (columns) {
    const at::Tensor dw = calls.empty({1, dy.size(1), s.w.size(0)});
    calls.weight_gradient(s.x8, t, dw, /*transposed=*/true);
    out.w = dw[0];
  }
  return out;
}

// 0 and T, which may be a symbol.
at::Tensor offset_of_all(const at::Tensor& x) {
  const auto ints = x.options().dtype(at::kInt).requires_grad(false);
  const at::Tensor count =
      at::ones_symint({x.sym_size(0)}, ints).sum(0, /*keepdim=*/true, at::kInt);
  return at::cat({at::zeros({1}, ints), count});
}

LinearFp8Forward forward_emulated(const at::Tensor& x, const at::Tensor& w, const Fp8Linear& fp8,
                                  bool keep) {
  const bool tiled = fp8.options.recipe == Fp8Recipe::kBlock;
  Fp8Matrix q;  // whole rows, which a weight gradient reads under every recipe
  if (!tiled || (keep && fp8.options.weight_grad)) {
    q = quantize_fp8(x, {}, std::nullopt, input_largest(x, fp8, keep));
  }
  const at::Tensor w8 = weight_emulated(fp8.options, fp8.which, one_expert(w), w.size(0));
  const at::Tensor rounded = tiled ? tile_emulated(x) : dequantize_fp8(q, {}, x.scalar_type());
  LinearFp8Forward out{.y = grouped_gemm(rounded, w8, offset_of_all(x)), .saved = {}};
  if (keep) out.saved = linear_saved({q.bytes, q.scales}, w, at::Tensor(), x, fp8);
  return out;
}

LinearGrads backward_emulated(const at::Tensor& dy, const Saved& s, const Fp8Linear& fp8, bool of_x,
                              bool of_w) {
  const at::Tensor offset = offset_of_all(dy);
  const std::optional<at::Tensor> largest = gradient_largest(dy, fp8);
  LinearGrads out;
  if (of_x) {
    const at::Tensor w8 = weight_emulated(fp8.options, fp8.which, one_expert(s.w), s.w.size(0));
    out.x = grouped_gemm(tile_emulated(dy, largest), w8, offset, WeightOrder::kInOut);
  }
  if (of_w) {
    const bool rounded = fp8.options.weight_grad;
    out.w = grouped_gemm_weight(rounded ? block_emulated(dy, s.x_scales, offset, largest) : dy,
                                rounded ? s.x8.to(dy.scalar_type()) : s.x, offset)[0];
  }
  return out;
}

struct LinearFp8Args {
  const at::Tensor& x;
  const at::Tensor& w;
  bool weight_grad, emulate;
  std::string recipe;

  static constexpr const char *kName = kLinearName, *kResults = "Tensor";
  static auto visit(auto& a, auto&& f) {
    return f(arg("x", a.x), arg("w", a.w),
             arg("weight_grad", a.weight_grad, kKeywordOnly, Default{true}),
             arg("emulate", a.emulate, Default{false}), arg("recipe", a.recipe, Default{"row"}));
  }
};

at::Tensor linear_fp8_op(const LinearFp8Args& a) {
  return linear_fp8(a.x, a.w,
                    {.options = {.weight_grad = a.weight_grad,
                                 .emulate = a.emulate,
                                 .recipe = fp8_recipe_of(a.recipe, kLinearName)}});
}

}  // namespace

LinearFp8Forward linear_fp8_forward(const at::Tensor& x_TK, const at::Tensor& w,
                                    const Fp8Linear& fp8, bool keep) {
  TROUPE_CHECK(x_TK.dim() == 2 && w.dim() == 2 && x_TK.sym_size(1) == w.size(1),
               "linear_fp8: w must be [N, K] and x [T, K]; w is", w.sizes());
  TROUPE_CHECK(w.size(0) >= kFp8Tile && w.size(1) >= kFp8Tile, "linear_fp8: sizes", w.size(0),
               "and", w.size(1), "must be at least", kFp8Tile);
  const at::Tensor x = x_TK.contiguous();
  const bool fast = multiplies_bytes(x, w.size(0), w.size(1), fp8);
  return fast ? forward_sm90(x, w, fp8, keep) : forward_emulated(x, w, fp8, keep);
}

LinearGrads linear_fp8_backward(const at::Tensor& grad_y, const TensorList& saved,
                                const Fp8Linear& fp8, bool of_x, bool of_w) {
  const Saved s(saved);
  const at::Tensor dy = grad_y.contiguous();
  const bool fast = multiplies_bytes(dy, s.w.size(0), s.w.size(1), fp8);
  return fast ? backward_sm90(dy, s, fp8, of_x, of_w) : backward_emulated(dy, s, fp8, of_x, of_w);
}

at::Tensor linear_fp8(const at::Tensor& x, const at::Tensor& w, const Fp8Linear& fp8) {
  const bool keep = wants_grad({x, w});
  LinearFp8Forward f;
  {
    const at::NoGradGuard no_grad;
    f = linear_fp8_forward(x, w, fp8, keep);
  }
  if (!keep) return f.y;
  record({.name = kLinearName,
          .inputs = {x, w},
          .outputs = {f.y},
          .saved = f.saved,
          .backward = [fp8](const Gradients& g) -> TensorList {
            const at::NoGradGuard no_grad;
            const LinearGrads out =
                linear_fp8_backward(g.outputs[0], g.saved, fp8, g.needs[0], g.needs[1]);
            return {out.x, out.w};
          }});
  return f.y;
}

TORCH_LIBRARY_FRAGMENT(troupe, m) {
  define_whole<linear_fp8_op>(m);
}

}  // namespace troupe
