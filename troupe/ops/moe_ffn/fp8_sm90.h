// What all products of 8-bit operands on a Hopper GPU share (moe_ffn_fp8_sm90, linear_fp8): their
// operands rounded and laid out as kernels/moe_sm90/moe_fp8_sm90.h reads them.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "troupe/kernels/fp8_tiles/fp8_tiles.h"
#include "troupe/kernels/moe_sm90/moe_sm90.h"
#include "troupe/ops/moe_ffn/fp8_weights.h"
#include "troupe/ops/support/run.h"
#include "troupe/ops/support/view.h"

namespace troupe {

class Fp8Sm90 {
 public:
  // Whole rows with a scale each, [T, D] and [T].
  struct Rows {
    at::Tensor bytes, scales;
  };
  // Rows packed by expert in 8 bits: along rows, and transposed with a factor taken up.
  struct Tiles {
    at::Tensor rows, row_scales, columns, block_scales;
  };

  // Results are bf16 tensors where `like` is.
  Fp8Sm90(const at::Tensor& like, const PlanRef& plan)
      : options_(like.options().dtype(at::kBFloat16).requires_grad(false)), plan_(plan) {}

  static Mat<const uint8_t> bytes(const at::Tensor& x, const char* name) {
    return mat<const uint8_t>(x, name);
  }
  static const float* scales(const at::Tensor& x, const char* name) {
    return ptr<const float>(x, name);
  }

  template <class Args>
  void launch(const Args& args, void (*CudaKernels::*kernel)(const Args&, cudaStream_t)) const {
    run_cuda(options_.device(), args, kernel);
  }
  at::Tensor empty(at::IntArrayRef sizes, at::ScalarType type = at::kBFloat16) const;
  // A scale for each row and 128 columns, and what is read behind them.
  at::Tensor row_scales(int64_t columns, int64_t rows) const;

  // `largest` here and below: as in ops/fp8.h, of x without the factor.
  static Rows rows_in_8_bits(const at::Tensor& x_TD, const std::optional<at::Tensor>& largest = {});
  // w [E, N, K]. Forward's copy, and backward's, of one reading. One that is kept is for both.
  Fp8Weight weight(const Fp8Options& fp8, Fp8Weights::Which which, const at::Tensor& w,
                   bool backward) const;
  Tiles empty_tiles(int64_t columns, bool rows, bool transposed) const;
  // x [R, C]; `rows`: along rows too; transposed where `factor` is given.
  Tiles tiles(const at::Tensor& x, const at::Tensor& factor, bool rows,
              const std::optional<at::Tensor>& largest = {}) const;
  // rows block(w)^T [R, N]: rows [R, K] with a scale for each 128 columns, or with `whole_rows` one.
  at::Tensor product(const at::Tensor& rows, const at::Tensor& row_scales, const Fp8Weight& w,
                     bool whole_rows) const;
  // rows block(w) [R, K]: t's rows [R, N], and the transposed copy of w with its scales.
  at::Tensor input_gradient(const Tiles& t, const at::Tensor& transposed,
                            const at::Tensor& weight_scales) const;
  // grad [E, M, N], or [E, N, M] where `transposed`: source [T, M] gathered, t of N columns.
  void weight_gradient(const at::Tensor& source, const Tiles& t, const at::Tensor& grad,
                       bool transposed) const;

  const PlanRef& plan() const { return plan_; }

 private:
  Fp8Weight rounded(const at::Tensor& w, Fp8Recipe recipe, bool backward) const;

  at::TensorOptions options_;
  PlanRef plan_;
};

}  // namespace troupe
