#include "troupe/core/device/cuda_check.h"
#include "troupe/kernels/device/pack.cuh"
#include "troupe/kernels/device/reduce.cuh"
#include "troupe/kernels/group_bias/group_bias.h"

namespace troupe {
namespace {

constexpr int kRowsPerBlock = 8;
constexpr int kThreads = kRowsPerBlock * kWarpLanes;
constexpr int kSumWarps = 16;

// Where each expert's rows are: known to the device alone.
struct Groups {
  const int32_t* offset;
  int64_t num_experts;

  // The last e with offset[e] <= r.
  __device__ int64_t expert_of(int64_t r) const {
    int64_t low = 0, high = num_experts;
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      if (offset[middle] <= r) {
        low = middle;
      } else {
        high = middle;
      }
    }
    return low;
  }
};

struct Scores {
  const float* data;  // or null
  int64_t ld;
  __device__ float of(int64_t r) const { return data == nullptr ? 1.0f : data[r * ld]; }
};

Scores scores_of(const MatRef& score) {
  return {static_cast<const float*>(score.data), score.ld};
}

// One warp a row, kN columns a lane at a time.
template <class T, int kN>
__global__ void __launch_bounds__(kThreads)
    group_bias_kernel(Mat<const T> x, Mat<const T> bias, Mat<T> y, Groups groups, Scores scores) {
  const int64_t r = int64_t{blockIdx.x} * kRowsPerBlock + threadIdx.x / kWarpLanes;
  if (r >= x.rows || r >= groups.offset[groups.num_experts]) return;
  const int64_t e = groups.expert_of(r);
  const float score = scores.of(r);
  for (int64_t d = threadIdx.x % kWarpLanes * kN; d < x.cols; d += kWarpLanes * kN) {
    const auto from = load_pack<kN>(x.row(r) + d), b = load_pack<kN>(bias.row(e) + d);
    Pack<T, kN> to;
    for (int i = 0; i < kN; ++i) {
      to.v[i] = static_cast<T>(static_cast<float>(from.v[i]) + score * static_cast<float>(b.v[i]));
    }
    store_pack(y.row(r) + d, to);
  }
}

// One block an expert and 32 columns: warp w sums the expert's rows w, w + 16, ..., and the first
// warp adds the sixteen sums in order.
template <class T>
__global__ void __launch_bounds__(kSumWarps* kWarpLanes)
    column_sum_kernel(Mat<const T> grad, Mat<float> grad_bias, Groups groups, Scores scores) {
  __shared__ float sums[kSumWarps][kWarpLanes];
  const int64_t tiles = (grad.cols + kWarpLanes - 1) / kWarpLanes;
  const int64_t e = blockIdx.x / tiles;
  const int lane = threadIdx.x % kWarpLanes, warp = threadIdx.x / kWarpLanes;
  const int64_t d = blockIdx.x % tiles * kWarpLanes + lane;
  float sum = 0;
  if (d < grad.cols) {
    const int64_t end = groups.offset[e + 1];
    for (int64_t r = groups.offset[e] + warp; r < end; r += kSumWarps) {
      sum += scores.of(r) * static_cast<float>(grad(r, d));
    }
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || d >= grad.cols) return;
  for (int w = 1; w < kSumWarps; ++w) sum += sums[w][lane];
  grad_bias(e, d) = sum;
}

// One warp a row.
template <class T>
__global__ void __launch_bounds__(kThreads)
    score_kernel(Mat<const T> grad, Mat<const T> bias, Mat<float> grad_score, Groups groups,
                 bool add) {
  const int64_t r = int64_t{blockIdx.x} * kRowsPerBlock + threadIdx.x / kWarpLanes;
  const int lane = threadIdx.x % kWarpLanes;
  if (r >= grad.rows || r >= groups.offset[groups.num_experts]) return;
  const int64_t e = groups.expert_of(r);
  float dot = 0;
  for (int64_t d = lane; d < grad.cols; d += kWarpLanes) {
    dot += static_cast<float>(bias(e, d)) * static_cast<float>(grad(r, d));
  }
  dot = warp_sum(dot);
  if (lane == 0) grad_score(r, 0) = dot + (add ? grad_score(r, 0) : 0.0f);
}

unsigned blocks_for(int64_t rows) {
  return static_cast<unsigned>((rows + kRowsPerBlock - 1) / kRowsPerBlock);
}

}  // namespace

void group_bias_cuda(const GroupBias& a, cudaStream_t stream) {
  validate(a);
  if (a.x.rows == 0 || a.x.cols == 0) return;
  const Groups groups{a.expert_offset, a.bias.rows};
  dispatch_float(a.x.dtype, [&]<class T>() {
    const bool packed = rows_are_packed(a.x) && rows_are_packed(a.bias) &&
                        rows_are_packed(a.y.read()) && a.x.cols % kPackOf<T> == 0;
    const auto kernel = packed ? group_bias_kernel<T, kPackOf<T>> : group_bias_kernel<T, 1>;
    kernel<<<blocks_for(a.x.rows), kThreads, 0, stream>>>(a.x.as<T>(), a.bias.as<T>(), a.y.as<T>(),
                                                          groups, scores_of(a.score));
  });
  TROUPE_LAUNCH_CHECK(stream);
}

void group_bias_backward_cuda(const GroupBiasBackward& a, cudaStream_t stream) {
  validate(a);
  const Groups groups{a.expert_offset, a.grad_bias.rows};
  const int64_t tiles = (a.grad_y.cols + kWarpLanes - 1) / kWarpLanes;
  const int64_t sums = a.grad_bias.rows * tiles;
  TROUPE_CHECK(sums <= 0x7fffffff, "experts times columns", sums);
  dispatch_float(a.grad_y.dtype, [&]<class T>() {
    if (sums > 0) {
      column_sum_kernel<T><<<static_cast<unsigned>(sums), kSumWarps * kWarpLanes, 0, stream>>>(
          a.grad_y.as<T>(), a.grad_bias.as<float>(), groups, scores_of(a.score));
    }
    if (a.grad_score.data != nullptr && a.grad_y.rows > 0) {
      score_kernel<T><<<blocks_for(a.grad_y.rows), kThreads, 0, stream>>>(
          a.grad_y.as<T>(), a.bias.as<T>(), a.grad_score.as<float>(), groups, a.add_to_grad_score);
    }
  });
  TROUPE_LAUNCH_CHECK(stream);
}

}  // namespace troupe
