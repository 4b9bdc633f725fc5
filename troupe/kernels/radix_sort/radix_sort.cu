#include <cstdint>

#include "troupe/core/device/cuda_check.h"
#include "troupe/kernels/device/block_scan.cuh"
#include "troupe/kernels/device/stable_rank.cuh"
#include "troupe/kernels/radix_sort/passes.h"
#include "troupe/kernels/radix_sort/radix_sort.h"

namespace troupe {
namespace {

using radix::Digit;
using radix::kDigits;
static_assert(radix::kTile == kRankTile);

// What a pass reads; indices are null in the first one, where item i has index i.
template <class T>
struct Items {
  const T* values;
  const int32_t* indices;
  int64_t count;
};

// A block counts the digits of its chunk: histograms is [chunks, kDigits].
template <class T>
__global__ void __launch_bounds__(kRankThreads)
    digit_count_kernel(Items<T> from, Digit<T> digit, int64_t items_per_chunk,
                       int32_t* histograms) {
  __shared__ int32_t count[kDigits];
  if (threadIdx.x < kDigits) count[threadIdx.x] = 0;
  __syncthreads();
  const int64_t begin = blockIdx.x * items_per_chunk;
  const int64_t end = min(begin + items_per_chunk, from.count);
  for (int64_t i = begin + threadIdx.x; i < end; i += kRankThreads) {
    atomicAdd(&count[digit(from.values[i])], 1);  // Integer, hence the same in any order.
  }
  __syncthreads();
  if (threadIdx.x < kDigits) {
    histograms[int64_t{blockIdx.x} * kDigits + threadIdx.x] = count[threadIdx.x];
  }
}

// A block puts the items of its chunk in place, tile after tile.
template <class T>
__global__ void __launch_bounds__(kRankThreads)
    digit_place_kernel(Items<T> from, Digit<T> digit, int64_t items_per_chunk,
                       const int32_t* histograms, T* values, int32_t* indices) {
  __shared__ int32_t memory[kDigits * (8 + 2 * kRankWarps) / 4];
  __shared__ int32_t first[kDigits];
  __shared__ int scratch[kScanScratch];
  const RankShared s(memory, kDigits);
  sum_histograms(s, histograms);
  const int d = static_cast<int>(threadIdx.x);
  const int before = block_scan(d < kDigits ? s.total[d] : 0, scratch).before;
  if (d < kDigits) first[d] = before;
  __syncthreads();

  const int64_t begin = blockIdx.x * items_per_chunk;
  const int64_t end = min(begin + items_per_chunk, from.count);
  for (int64_t tile = begin; tile < end; tile += kRankTile) {
    T value[kRankItems];
    int key[kRankItems], rank[kRankItems];
#pragma unroll
    for (int i = 0; i < kRankItems; ++i) {
      const int64_t at = tile + rank_position(i);
      value[i] = at < end ? from.values[at] : T{0};
      key[i] = at < end ? digit(value[i]) : -1;
    }
    rank_tile(s, key, rank);
#pragma unroll
    for (int i = 0; i < kRankItems; ++i) {
      if (key[i] < 0) continue;
      const int64_t at = tile + rank_position(i);
      const int64_t place = first[key[i]] + rank[i];
      values[place] = value[i];
      indices[place] = from.indices == nullptr ? static_cast<int32_t>(at) : from.indices[at];
    }
  }
}

template <class T>
void sort_values(const RadixSort& a, cudaStream_t stream) {
  const int64_t n = a.x.cols;
  const radix::Chunks chunks = radix::chunks(n);
  auto* histograms = static_cast<int32_t*>(a.workspace);
  int32_t* other_indices = histograms + chunks.count * kDigits;
  T* other_values = reinterpret_cast<T*>(other_indices + round_up(n, 2));
  const int passes = radix::num_passes(a.end_bit);
  const auto blocks = static_cast<unsigned>(chunks.count);
  Items<T> from{a.x.as<T>(), nullptr, n};
  for (int p = 0; p < passes; ++p) {
    const bool to_out = (passes - 1 - p) % 2 == 0;
    T* values = to_out ? a.out.as<T>() : other_values;
    int32_t* indices = to_out ? a.indices : other_indices;
    const Digit<T> digit{p * radix::kDigitBits, a.end_bit};
    digit_count_kernel<<<blocks, kRankThreads, 0, stream>>>(from, digit, chunks.items_per_chunk,
                                                            histograms);
    TROUPE_LAUNCH_CHECK(stream);
    digit_place_kernel<<<blocks, kRankThreads, 0, stream>>>(from, digit, chunks.items_per_chunk,
                                                            histograms, values, indices);
    TROUPE_LAUNCH_CHECK(stream);
    from = {values, indices, n};
  }
}

}  // namespace

void radix_sort_cuda(const RadixSort& a, cudaStream_t stream) {
  validate(a);
  if (a.x.cols == 0) return;
  TROUPE_CHECK(a.workspace != nullptr, "workspace of", workspace_bytes(a), "bytes");
  dispatch_integer(a.x.dtype, [&]<class T>() { sort_values<T>(a, stream); });
}

}  // namespace troupe
