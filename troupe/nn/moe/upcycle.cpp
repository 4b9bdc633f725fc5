#include "troupe/nn/moe/upcycle.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <cmath>

#include "troupe/core/check.h"

namespace troupe {
namespace {

bool third_degree(const Upcycle& u) {
  return u.gated || u.activation == "relu2";
}

// [G F_dense, ...] to [E, G F, ...]: expert j g + i gets rows [i F, (i + 1) F) of each of the G
// halves.
at::Tensor sliced_rows(const at::Tensor& w, int64_t halves, int64_t g, int64_t copies) {
  auto sizes = w.sizes().vec();
  const int64_t F = sizes[0] / halves / g;
  std::vector<int64_t> cut = {halves, g, F};
  cut.insert(cut.end(), sizes.begin() + 1, sizes.end());
  std::vector<int64_t> merged = {g, halves * F};
  merged.insert(merged.end(), sizes.begin() + 1, sizes.end());
  const at::Tensor by_slice = w.reshape(cut).transpose(0, 1).reshape(merged);
  std::vector<int64_t> times(merged.size(), 1);
  times[0] = copies;
  return by_slice.repeat(times);
}

}  // namespace

int64_t slices(const Upcycle& u, int64_t dense_hidden) {
  TROUPE_CHECK(u.hidden > 0 && dense_hidden % u.hidden == 0, "an expert's width", u.hidden,
               "must divide the dense width", dense_hidden);
  const int64_t g = dense_hidden / u.hidden;
  TROUPE_CHECK(u.experts > 0 && u.experts % g == 0, "the experts", u.experts,
               "must be a multiple of the slices", g);
  TROUPE_CHECK(1 <= u.top_k && u.top_k <= u.experts, "k", u.top_k, "of", u.experts);
  TROUPE_CHECK(u.allow_inexact || u.top_k % g == 0, "k", u.top_k, "is no multiple of the slices", g,
               "so a copy would be used in part;", "set allow_inexact to accept that");
  return g;
}

double weight_scale(const Upcycle& u, int64_t dense_hidden) {
  const auto g = static_cast<double>(slices(u, dense_hidden));
  const double copies = static_cast<double>(u.experts) / g;
  const double a = u.weights_sum_to_one ? g : copies * g * g / static_cast<double>(u.top_k);
  return std::pow(a, third_degree(u) ? 1.0 / 3 : 1.0 / 2);
}

bool is_exact(const Upcycle& u, int64_t dense_hidden) {
  const int64_t g = slices(u, dense_hidden);
  const bool scales = u.activation == "relu" || (u.activation == "relu2" && !u.gated);
  return u.weights_sum_to_one && u.top_k % g == 0 && (g == 1 || scales);
}

ExpertWeights upcycle(const DenseWeights& dense, const Upcycle& u) {
  const at::NoGradGuard no_grad;
  const int64_t halves = u.gated ? 2 : 1, D = dense.w2.size(0), dense_hidden = dense.w2.size(1);
  TROUPE_CHECK(
      dense.w1.dim() == 2 && dense.w1.size(0) == halves * dense_hidden && dense.w1.size(1) == D,
      "upcycle: w1 must be [", halves * dense_hidden, ",", D, "]; it is", dense.w1.sizes());
  const int64_t g = slices(u, dense_hidden), copies = u.experts / g;
  const double scale = weight_scale(u, dense_hidden);
  ExpertWeights out{
      .w1 = sliced_rows(dense.w1, halves, g, copies) * scale,
      .b1 = std::nullopt,
      .w2 = dense.w2.reshape({D, g, u.hidden}).transpose(0, 1).repeat({copies, 1, 1}) * scale,
      .b2 = std::nullopt};
  if (dense.b1) out.b1 = sliced_rows(*dense.b1, halves, g, copies) * scale;
  if (dense.b2) out.b2 = dense.b2->unsqueeze(0).repeat({u.experts, 1});
  return out;
}

at::Tensor upcycle_router(const at::Tensor& rows_qD, const Upcycle& u, int64_t dense_hidden) {
  const int64_t g = slices(u, dense_hidden);
  TROUPE_CHECK(rows_qD.dim() == 2 && rows_qD.size(0) * g == u.experts, "upcycle: the router needs",
               u.experts / g, "rows; it has", rows_qD.sizes());
  return rows_qD.repeat_interleave(g, 0);
}

}  // namespace troupe
