#include <utility>

#include "troupe/core/device/cuda_check.h"
#include "troupe/kernels/device/pack.cuh"
#include "troupe/kernels/device/reduce.cuh"
#include "troupe/kernels/norm/norm.h"

namespace troupe {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kWarpColumns = 4096;  // Rows up to here are a warp's work, longer ones a block's.
constexpr int kSumThreads = 64;         // of a block that sums rows
constexpr int kSumWarps = 16;

// A team of kTeam threads, a warp or the whole block, has a row.
template <int kRowThreads>
struct RowThreads {
  static_assert(kRowThreads == kWarpLanes || kRowThreads == kThreads);
  float* shared;

  __device__ int64_t row() const {
    return int64_t{blockIdx.x} * (kThreads / kRowThreads) + threadIdx.x / kRowThreads;
  }
  __device__ int rank() const { return threadIdx.x % kRowThreads; }
  __device__ float sum(float v) const {
    if constexpr (kRowThreads == kWarpLanes) return warp_sum(v);
    if constexpr (kRowThreads == kThreads) return block_sum<kThreads>(v, shared);
  }
};

template <class T>
struct NormViews {
  Mat<const T> x, residual;  // residual and below: data null where absent
  Mat<T> sum, y;
  const T *weight, *bias;
  float *mean, *rstd;
  int64_t mean_ld, rstd_ld;
  float eps;
  bool layer, round;
};

template <class T>
__device__ float normalized(float s, float mean, float rstd, bool round) {
  const float n = (s - mean) * rstd;
  return round ? static_cast<float>(static_cast<T>(n)) : n;
}

// Writes s where there is a residual; the sum of s for LayerNorm, of s^2 for RMSNorm.
template <class T, int kN, int kRowThreads>
__device__ float add_and_sum(const NormViews<T>& v, int64_t r, int rank) {
  float sum = 0;
  for (int64_t d = rank * kN; d < v.x.cols; d += kRowThreads * kN) {
    auto s = load_pack<kN>(v.x.row(r) + d);
    if (v.residual.data != nullptr) {
      const auto other = load_pack<kN>(v.residual.row(r) + d);
      for (int i = 0; i < kN; ++i) {
        s.v[i] = static_cast<T>(static_cast<float>(s.v[i]) + static_cast<float>(other.v[i]));
      }
      store_pack(v.sum.row(r) + d, s);
    }
    for (int i = 0; i < kN; ++i) {
      const float value = static_cast<float>(s.v[i]);
      sum += v.layer ? value : value * value;
    }
  }
  return sum;
}

template <class T, int kN, int kRowThreads>
__device__ float squares_around(const T* s, int64_t cols, float mean, int rank) {
  float sum = 0;
  for (int64_t d = rank * kN; d < cols; d += kRowThreads * kN) {
    const auto pack = load_pack<kN>(s + d);
    for (int i = 0; i < kN; ++i) {
      const float x = static_cast<float>(pack.v[i]) - mean;
      sum += x * x;
    }
  }
  return sum;
}

// One team a row. x is read from memory once; the later passes find it in a cache.
template <class T, int kN, int kRowThreads>
__global__ void __launch_bounds__(kThreads) norm_kernel(NormViews<T> v) {
  __shared__ float shared[kThreads / kWarpLanes];
  const RowThreads<kRowThreads> row_threads{shared};
  const int64_t r = row_threads.row(), D = v.x.cols;
  const int rank = row_threads.rank();
  if (r >= v.x.rows) return;  // Whole teams leave together.

  float squares = row_threads.sum(add_and_sum<T, kN, kRowThreads>(v, r, rank)), mean = 0;
  const T* s = v.residual.data == nullptr ? v.x.row(r) : v.sum.row(r);
  if (v.layer) {
    mean = squares / static_cast<float>(D);
    squares = row_threads.sum(squares_around<T, kN, kRowThreads>(s, D, mean, rank));
  }
  const float rstd = 1.0f / sqrtf(squares / static_cast<float>(D) + v.eps);

  for (int64_t d = rank * kN; d < D; d += kRowThreads * kN) {
    const auto in = load_pack<kN>(s + d), weight = load_pack<kN>(v.weight + d);
    Pack<T, kN> bias, out;
    if (v.bias != nullptr) bias = load_pack<kN>(v.bias + d);
    for (int i = 0; i < kN; ++i) {
      const float n = normalized<T>(static_cast<float>(in.v[i]), mean, rstd, v.round);
      const float b = v.bias == nullptr ? 0.0f : static_cast<float>(bias.v[i]);
      out.v[i] = static_cast<T>(n * static_cast<float>(weight.v[i]) + b);
    }
    store_pack(v.y.row(r) + d, out);
  }
  if (rank != 0) return;
  if (v.mean != nullptr) v.mean[r * v.mean_ld] = mean;
  if (v.rstd != nullptr) v.rstd[r * v.rstd_ld] = rstd;
}

template <class T>
struct BackwardViews {
  Mat<const T> s, grad, grad_sum;  // grad_sum: data null where absent
  Mat<T> grad_s;
  const T* weight;
  const float *mean, *rstd;
  int64_t mean_ld, rstd_ld;
  bool layer, round;

  __device__ float mean_of(int64_t r) const { return layer ? mean[r * mean_ld] : 0.0f; }
  __device__ float rstd_of(int64_t r) const { return rstd[r * rstd_ld]; }
};

// One team a row: two sums, then the gradient, from rows that the first pass left in a cache.
template <class T, int kN, int kRowThreads>
__global__ void __launch_bounds__(kThreads) norm_backward_kernel(BackwardViews<T> v) {
  __shared__ float shared[kThreads / kWarpLanes];
  const RowThreads<kRowThreads> row_threads{shared};
  const int64_t r = row_threads.row(), D = v.s.cols;
  if (r >= v.s.rows) return;
  const float mean = v.mean_of(r), rstd = v.rstd_of(r);

  float sum_an = 0, sum_a = 0;
  for (int64_t d = row_threads.rank() * kN; d < D; d += kRowThreads * kN) {
    const auto s = load_pack<kN>(v.s.row(r) + d), grad = load_pack<kN>(v.grad.row(r) + d);
    const auto weight = load_pack<kN>(v.weight + d);
    for (int i = 0; i < kN; ++i) {
      const float a = static_cast<float>(grad.v[i]) * static_cast<float>(weight.v[i]);
      sum_an += a * ((static_cast<float>(s.v[i]) - mean) * rstd);
      sum_a += a;
    }
  }
  const float along = row_threads.sum(sum_an) / static_cast<float>(D);
  const float shift = v.layer ? row_threads.sum(sum_a) / static_cast<float>(D) : 0.0f;

  for (int64_t d = row_threads.rank() * kN; d < D; d += kRowThreads * kN) {
    const auto s = load_pack<kN>(v.s.row(r) + d), grad = load_pack<kN>(v.grad.row(r) + d);
    const auto weight = load_pack<kN>(v.weight + d);
    Pack<T, kN> around, out;
    if (v.grad_sum.data != nullptr) around = load_pack<kN>(v.grad_sum.row(r) + d);
    for (int i = 0; i < kN; ++i) {
      const float a = static_cast<float>(grad.v[i]) * static_cast<float>(weight.v[i]);
      const float n = (static_cast<float>(s.v[i]) - mean) * rstd;
      const float other = v.grad_sum.data == nullptr ? 0.0f : static_cast<float>(around.v[i]);
      out.v[i] = static_cast<T>(rstd * (a - n * along - shift) + other);
    }
    store_pack(v.grad_s.row(r) + d, out);
  }
}

// The first stage of grad_weight and grad_bias: kN columns a thread, down a range of rows; a block
// is one range. Bound by reading s and the gradient, hence several rows in flight.
template <class T, int kN>
__global__ void __launch_bounds__(kSumThreads)
    range_sums_kernel(BackwardViews<T> v, NormRanges ranges, float* weights, float* biases) {
  const int64_t D = v.s.cols, tiles = (D + kSumThreads * kN - 1) / (kSumThreads * kN);
  const int64_t range = blockIdx.x / tiles;
  const int64_t d = (blockIdx.x % tiles * kSumThreads + threadIdx.x) * kN;
  if (d >= D) return;
  const int64_t begin = range * ranges.rows_per_range;
  const int64_t end = min(begin + ranges.rows_per_range, v.s.rows);
  float sum_weight[kN] = {}, sum_bias[kN] = {};
#pragma unroll 4
  for (int64_t r = begin; r < end; ++r) {
    const auto grads = load_pack<kN>(v.grad.row(r) + d), all = load_pack<kN>(v.s.row(r) + d);
    const float mean = v.mean_of(r), rstd = v.rstd_of(r);
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      const auto grad = static_cast<float>(grads.v[i]);
      sum_weight[i] += grad * normalized<T>(static_cast<float>(all.v[i]), mean, rstd, v.round);
      sum_bias[i] += grad;
    }
  }
#pragma unroll
  for (int i = 0; i < kN; ++i) {
    if (weights != nullptr) weights[range * D + d + i] = sum_weight[i];
    if (biases != nullptr) biases[range * D + d + i] = sum_bias[i];
  }
}

// The second stage. One block 32 columns: warp w adds the ranges w, w + 16, ..., and the first warp
// adds the sixteen sums in order.
__global__ void __launch_bounds__(kSumWarps* kWarpLanes)
    add_ranges_kernel(const float* sums, int64_t count, int64_t D, float* out) {
  __shared__ float shared[kSumWarps][kWarpLanes];
  const int lane = threadIdx.x % kWarpLanes, warp = threadIdx.x / kWarpLanes;
  const int64_t d = int64_t{blockIdx.x} * kWarpLanes + lane;
  float sum = 0;
  if (d < D) {
    for (int64_t i = warp; i < count; i += kSumWarps) sum += sums[i * D + d];
  }
  shared[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || d >= D) return;
  for (int w = 1; w < kSumWarps; ++w) sum += shared[w][lane];
  out[d] = sum;
}

unsigned blocks_for(int64_t n, int64_t each) {
  return static_cast<unsigned>((n + each - 1) / each);
}

// f.operator()<kN, kTeam>(): the widest loads that fit, and a warp or a block a row.
template <class T, class Body>
void dispatch_row_threads(int64_t cols, bool packed, Body&& body) {
  const bool wide = packed && cols % kPackOf<T> == 0, warp = cols <= kWarpColumns;
  if (wide && warp) return body.template operator()<kPackOf<T>, kWarpLanes>();
  if (wide) return body.template operator()<kPackOf<T>, kThreads>();
  if (warp) return body.template operator()<1, kWarpLanes>();
  body.template operator()<1, kThreads>();
}

template <class T>
Mat<const T> read(const MatRef& x) {
  return {static_cast<const T*>(x.data), x.rows, x.cols, x.ld};
}
template <class T>
Mat<T> write(const MutRef& x) {
  return {static_cast<T*>(x.data), x.rows, x.cols, x.ld};
}

template <class T>
void launch_forward(const Norm& a, cudaStream_t stream) {
  const NormViews<T> v{.x = read<T>(a.x),
                       .residual = read<T>(a.residual),
                       .sum = write<T>(a.sum),
                       .y = write<T>(a.y),
                       .weight = static_cast<const T*>(a.weight.data),
                       .bias = static_cast<const T*>(a.bias.data),
                       .mean = static_cast<float*>(a.mean.data),
                       .rstd = static_cast<float*>(a.rstd.data),
                       .mean_ld = a.mean.ld,
                       .rstd_ld = a.rstd.ld,
                       .eps = a.eps,
                       .layer = a.kind == NormKind::kLayer,
                       .round = a.round_before_weight};
  const bool packed = rows_are_packed(a.x) && rows_are_packed(a.residual) &&
                      rows_are_packed(a.sum.read()) && rows_are_packed(a.y.read()) &&
                      rows_are_packed(a.weight) && rows_are_packed(a.bias);
  dispatch_row_threads<T>(a.x.cols, packed, [&]<int kN, int kRowThreads>() {
    norm_kernel<T, kN, kRowThreads>
        <<<blocks_for(a.x.rows, kThreads / kRowThreads), kThreads, 0, stream>>>(v);
  });
}

template <class T>
void launch_sums(const NormBackward& a, const BackwardViews<T>& v, bool packed,
                 cudaStream_t stream) {
  const NormRanges ranges = norm_ranges(a.s.rows);
  const int64_t D = a.s.cols;
  float* weights = a.grad_weight.data == nullptr ? nullptr : static_cast<float*>(a.workspace);
  float* biases = a.grad_bias.data == nullptr ? nullptr : static_cast<float*>(a.workspace);
  if (weights != nullptr && biases != nullptr) biases += ranges.count * D;
  if (a.grad_weight.data == nullptr && a.grad_bias.data == nullptr) return;
  if (ranges.count > 0) {
    const bool wide = packed && D % kPackOf<T> == 0;
    const auto kernel = wide ? range_sums_kernel<T, kPackOf<T>> : range_sums_kernel<T, 1>;
    const unsigned tiles = blocks_for(D, kSumThreads * (wide ? kPackOf<T> : 1));
    kernel<<<tiles* static_cast<unsigned>(ranges.count), kSumThreads, 0, stream>>>(v, ranges,
                                                                                   weights, biases);
  }
  for (const auto& [sums, out] : {std::pair{weights, a.grad_weight}, {biases, a.grad_bias}}) {
    if (out.data == nullptr) continue;
    add_ranges_kernel<<<blocks_for(D, kWarpLanes), kSumWarps * kWarpLanes, 0, stream>>>(
        sums, ranges.count, D, static_cast<float*>(out.data));
  }
}

template <class T>
void launch_backward(const NormBackward& a, cudaStream_t stream) {
  const BackwardViews<T> v{.s = read<T>(a.s),
                           .grad = read<T>(a.grad_y),
                           .grad_sum = read<T>(a.grad_sum),
                           .grad_s = write<T>(a.grad_s),
                           .weight = static_cast<const T*>(a.weight.data),
                           .mean = static_cast<const float*>(a.mean.data),
                           .rstd = static_cast<const float*>(a.rstd.data),
                           .mean_ld = a.mean.ld,
                           .rstd_ld = a.rstd.ld,
                           .layer = a.kind == NormKind::kLayer,
                           .round = a.round_before_weight};
  const bool packed = rows_are_packed(a.s) && rows_are_packed(a.grad_y) &&
                      rows_are_packed(a.grad_sum) && rows_are_packed(a.grad_s.read()) &&
                      rows_are_packed(a.weight);
  launch_sums(a, v, packed, stream);  // First: grad_s may be written over grad_y.
  if (a.s.rows == 0) return;
  dispatch_row_threads<T>(a.s.cols, packed, [&]<int kN, int kRowThreads>() {
    norm_backward_kernel<T, kN, kRowThreads>
        <<<blocks_for(a.s.rows, kThreads / kRowThreads), kThreads, 0, stream>>>(v);
  });
}

}  // namespace

void norm_cuda(const Norm& a, cudaStream_t stream) {
  validate(a);
  if (a.x.rows == 0) return;
  dispatch_float(a.x.dtype, [&]<class T>() { launch_forward<T>(a, stream); });
  TROUPE_LAUNCH_CHECK(stream);
}

void norm_backward_cuda(const NormBackward& a, cudaStream_t stream) {
  validate(a);
  if (a.s.cols == 0) return;
  dispatch_float(a.s.dtype, [&]<class T>() { launch_backward<T>(a, stream); });
  TROUPE_LAUNCH_CHECK(stream);
}

}  // namespace troupe
