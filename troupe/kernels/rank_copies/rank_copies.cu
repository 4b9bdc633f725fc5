#include <cstdint>

#include "troupe/core/check.h"
#include "troupe/core/device/cuda_check.h"
#include "troupe/core/number/round.h"
#include "troupe/kernels/rank_copies/rank_copies.h"
#include "troupe/kernels/rank_copies/rank_copies_rule.h"

namespace troupe {
namespace {

constexpr int kThreads = 128;
constexpr int64_t kShared = 4096;  // targets whose counts a block keeps to itself

// A thread a token. Integers are counted, hence the same in any order. `found`, [targets, 2], is a
// block's own, or for more targets than it has room for everybody's.
__global__ void __launch_bounds__(kThreads) list_kernel(ListCopies a, bool shared, int width) {
  extern __shared__ int32_t found[];
  const int targets = static_cast<int>(a.targets);
  for (int i = threadIdx.x; shared && i < 2 * targets; i += kThreads) found[i] = 0;
  __syncthreads();
  const auto count = [&](int32_t target, int column) {
    atomicAdd(shared ? &found[2 * target + column] : &a.counts[3 * target + column], 1);
  };
  const int64_t t = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (t < a.tokens) {
    const int copies = list_token(a, t, [&](int32_t target) { count(target, 1); });
    for (int i = 0; i < copies; ++i) count(a.copy_target[t * width + i], 0);
  }
  __syncthreads();
  for (int i = threadIdx.x; shared && i < 2 * targets; i += kThreads) {
    if (found[i] > 0) atomicAdd(&a.counts[3 * (i / 2) + i % 2], found[i]);
  }
}

__global__ void __launch_bounds__(kThreads) begin_kernel(int32_t* counts, int64_t n, int capacity) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < n) counts[i] = i % 3 == 2 ? capacity : 0;
}

// A thread a word; that of the first column also names the token.
__global__ void __launch_bounds__(kThreads) tell_kernel(TellCopies a, int columns) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x, c = i / columns;
  if (c >= a.copies) return;
  const int64_t j = i - c * columns;
  const CopyOf copy = copy_of(a, c);
  if (j == 0) a.token[c] = max(int64_t{0}, copy.token);
  a.message[i] = message_word(a, copy, j);
}

unsigned blocks_for(int64_t threads) {
  const int64_t blocks = ceil_div(threads, int64_t{kThreads});
  TROUPE_CHECK(blocks <= 0x7fffffff, "threads", threads);
  return static_cast<unsigned>(blocks);
}

}  // namespace

void list_copies_cuda(const ListCopies& a, cudaStream_t stream) {
  validate(a);
  if (a.targets == 0) return;
  begin_kernel<<<blocks_for(3 * a.targets), kThreads, 0, stream>>>(a.counts, 3 * a.targets,
                                                                   static_cast<int>(a.capacity));
  TROUPE_LAUNCH_CHECK(stream);
  if (a.tokens == 0) return;
  const bool shared = a.targets <= kShared;
  const auto bytes = shared ? static_cast<size_t>(2 * a.targets) * sizeof(int32_t) : 0;
  list_kernel<<<blocks_for(a.tokens), kThreads, bytes, stream>>>(a, shared,
                                                                 static_cast<int>(a.width()));
  TROUPE_LAUNCH_CHECK(stream);
}

void tell_copies_cuda(const TellCopies& a, cudaStream_t stream) {
  validate(a);
  TROUPE_CHECK(a.columns() > 0, "no column to send for", a.copies, "copies");
  if (a.copies == 0) return;
  tell_kernel<<<blocks_for(a.copies * a.columns()), kThreads, 0, stream>>>(
      a, static_cast<int>(a.columns()));
  TROUPE_LAUNCH_CHECK(stream);
}

}  // namespace troupe
