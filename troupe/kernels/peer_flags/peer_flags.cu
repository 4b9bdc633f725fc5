#include "troupe/core/device/cuda_check.h"
#include "troupe/kernels/peer_flags/peer_flags.h"

namespace troupe {
namespace {

// `stop` and `missing` are the host's memory: they are looked at less often.
constexpr int kLooksPerStop = 64;
constexpr int kNone = static_cast<int>(2 * kMostPeers);  // above all that `missing` may become

__device__ __forceinline__ uint32_t load_acquire(const uint32_t* flag) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
}

// Whether the host or an earlier wait says that this one is for nothing.
__device__ __forceinline__ bool is_over(const AwaitFlags& a) {
  const auto* const missing = reinterpret_cast<const uint32_t*>(a.missing);
  return (a.stop != nullptr && load_acquire(a.stop) != 0) ||
         static_cast<int32_t>(load_acquire(missing)) >= 0;
}

__device__ __forceinline__ uint64_t global_ns() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

// One thread a flag. What earlier kernels of the stream wrote, also into other GPUs' memory, and
// the mark are visible to whoever sees the flag: the fence is cumulative, at system scope.
__global__ void signal_flags_kernel(const __grid_constant__ SignalFlags a) {
  const auto i = static_cast<int64_t>(threadIdx.x);
  if (i >= a.count) return;
  const uint32_t value = a.value_at != nullptr ? load_acquire(a.value_at) : a.value;
  if (a.marked) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(a.flags[i] + 1), "r"(a.mark)
                 : "memory");
  }
  __threadfence_system();
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(a.flags[i]), "r"(value) : "memory");
}

// One thread a flag, one block: it occupies one SM while it waits. Kernels that follow it in the
// stream begin with an empty first-level cache and see what the flags' writers wrote.
__global__ void await_flags_kernel(const __grid_constant__ AwaitFlags a) {
  __shared__ int lowest;
  if (threadIdx.x == 0) lowest = kNone;
  __syncthreads();
  const auto i = static_cast<int64_t>(threadIdx.x);
  const uint32_t want = a.want_at != nullptr ? load_acquire(a.want_at) : a.want;
  const uint64_t begin = global_ns();
  for (int look = 1; i < a.count; ++look) {
    if (static_cast<int32_t>(load_acquire(a.flags[i]) - want) >= 0) {
      const bool differs = a.marked && load_acquire(a.flags[i] + 1) != a.mark;
      if (differs) atomicMin(&lowest, static_cast<int>(kMostPeers + i));
      break;
    }
    const bool stopped = look % kLooksPerStop == 0 && is_over(a);
    if (stopped || static_cast<int64_t>(global_ns() - begin) > a.limit_ns) {
      atomicMin(&lowest, static_cast<int>(i));
      break;
    }
  }
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (lowest == kNone && a.advance != nullptr) *a.advance = want + 1;
  if (lowest < kNone && *a.missing < 0) *a.missing = lowest;
}

}  // namespace

void signal_flags_cuda(const SignalFlags& a, cudaStream_t stream) {
  validate(a);
  if (a.count == 0) return;
  signal_flags_kernel<<<1, kMostPeers, 0, stream>>>(a);
  TROUPE_LAUNCH_CHECK(stream);
}

void await_flags_cuda(const AwaitFlags& a, cudaStream_t stream) {
  validate(a);
  if (a.count == 0) return;
  await_flags_kernel<<<1, kMostPeers, 0, stream>>>(a);
  TROUPE_LAUNCH_CHECK(stream);
}

}  // namespace troupe
