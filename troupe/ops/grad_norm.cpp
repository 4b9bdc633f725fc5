#include "troupe/ops/grad_norm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "troupe/kernels/grad_norm/grad_norm.h"
#include "troupe/ops/support/define.h"
#include "troupe/ops/support/run.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

using Two = std::tuple<at::Tensor, at::Tensor>;

at::Tensor sum_squares_meta(at::TensorList xs) {
  for (const at::Tensor& x : xs) {
    dtype_of_tensor(x, "sum_squares: x");
    check_same_device(x, xs[0], "sum_squares: x");
  }
  return at::zeros_symint(
      {1}, xs.empty() ? at::TensorOptions(at::kDouble) : xs[0].options().dtype(at::kDouble));
}

at::Tensor sum_squares_device(at::TensorList xs) {
  at::Tensor out = sum_squares_meta(xs);
  int64_t most = 0;
  for (const at::Tensor& x : xs) most = std::max(most, x.numel());
  // One workspace: the tensors follow each other on the stream.
  const SumSquares largest{.x = {nullptr, Dtype::kF32, 1, most, most}};
  const at::Tensor workspace =
      at::empty({workspace_bytes(largest)}, out.options().dtype(at::kByte));
  for (const at::Tensor& x : xs) {
    const at::Tensor flat = x.contiguous();
    const MatRef row = {flat.const_data_ptr(), dtype_of_tensor(flat, "sum_squares: x"), 1,
                        flat.numel(), flat.numel()};
    const SumSquares args{.x = row,
                          .out = out.mutable_data_ptr<double>(),
                          .workspace = workspace.mutable_data_ptr(),
                          .add = true};
    run(out.device(), args, sum_squares_cpu, &CudaKernels::sum_squares);
  }
  return out;
}

Two clip_scale_meta(const at::Tensor& sum, double max_norm) {
  check_sizes(sum, {1}, "clip_scale: sum_squares");
  check_dtype(sum, at::kDouble, "clip_scale: sum_squares");
  TROUPE_CHECK(max_norm > 0, "clip_scale: max_norm must be positive; it is", max_norm);
  const auto options = sum.options().dtype(at::kFloat);
  return {at::empty_symint({1}, options), at::empty_symint({1}, options)};
}

Two clip_scale_device(const at::Tensor& sum, double max_norm) {
  Two out = clip_scale_meta(sum, max_norm);
  const ClipScale args{.sum_squares = ptr<const double>(sum, "clip_scale: sum_squares"),
                       .scale = std::get<0>(out).mutable_data_ptr<float>(),
                       .norm = std::get<1>(out).mutable_data_ptr<float>(),
                       .max_norm = static_cast<float>(max_norm)};
  run(sum.device(), args, clip_scale_cpu, &CudaKernels::clip_scale);
  return out;
}

}  // namespace

at::Tensor sum_squares(const std::vector<at::Tensor>& tensors) {
  if (tensors.empty()) return sum_squares_meta({});
  static const auto op = raw_op<decltype(sum_squares_device)>("troupe::sum_squares");
  return op(tensors);
}

std::pair<at::Tensor, at::Tensor> clip_scale(const at::Tensor& sum, double max_norm) {
  static const auto op = raw_op<decltype(clip_scale_device)>("troupe::clip_scale");
  const auto [scale, norm] = op(sum, max_norm);
  return {scale, norm};
}

TORCH_LIBRARY_FRAGMENT(troupe, m) {
  define(m, "sum_squares(Tensor[] tensors) -> Tensor", sum_squares_device, sum_squares_meta);
  define(m, "clip_scale(Tensor sum_squares, float max_norm) -> (Tensor, Tensor)", clip_scale_device,
         clip_scale_meta);
}

}  // namespace troupe
