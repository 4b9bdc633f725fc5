// The rank-th largest of an array of keys (topk.cuh), by a block: digit by digit from the top, a
// histogram of the digit over the keys that agree with the digits found so far. Four passes,
// nothing is moved; integer counts, hence the same in any order.
#pragma once

#include <cstdint>

#include "troupe/kernels/device/block_scan.cuh"

namespace troupe {

struct Selected {
  uint32_t key;
  int64_t ties;  // how many of the keys equal to it are among the rank largest, 1 or more
};

// 1 <= rank <= n. Called by all of a block's kThreads >= 256 threads.
template <int kThreads>
__device__ Selected radix_select(const uint32_t* keys, int64_t n, int64_t rank) {
  constexpr int kBits = 8, kDigits = 1 << kBits;
  static_assert(kThreads >= kDigits);
  __shared__ int64_t scratch[kScanScratch], found[2];  // digit, keys above it
  __shared__ int bins[kDigits];
  Selected s{0, rank};
  uint32_t decided = 0;
  for (int shift = 32 - kBits; shift >= 0; shift -= kBits) {
    if (threadIdx.x < kDigits) bins[threadIdx.x] = 0;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < n; i += kThreads) {
      if ((keys[i] & decided) == s.key) atomicAdd(&bins[keys[i] >> shift & (kDigits - 1)], 1);
    }
    __syncthreads();
    const int digit = kDigits - 1 - static_cast<int>(threadIdx.x);  // Largest first.
    const int64_t here = digit >= 0 ? bins[digit] : 0;
    const int64_t above = block_scan(here, scratch).before;
    if (above < s.ties && s.ties <= above + here) {  // True in exactly one thread.
      found[0] = digit;
      found[1] = above;
    }
    __syncthreads();
    s.key |= static_cast<uint32_t>(found[0]) << shift;
    s.ties -= found[1];
    decided |= static_cast<uint32_t>(kDigits - 1) << shift;
    __syncthreads();
  }
  return s;
}

// The place of the ties-th key equal to s.key, by rising place.
template <int kThreads>
__device__ int64_t last_tie(const uint32_t* keys, int64_t n, Selected s) {
  __shared__ int scratch[kScanScratch];
  __shared__ int64_t place;
  int64_t before = 0;
  for (int64_t first = 0; before < s.ties; first += kThreads) {
    const int64_t i = first + threadIdx.x;
    const int tie = i < n && keys[i] == s.key;
    const Scanned<int> ties = block_scan(tie, scratch);
    if (tie && before + ties.before + 1 == s.ties) place = i;
    before += ties.total;
  }
  __syncthreads();
  return place;
}

}  // namespace troupe
