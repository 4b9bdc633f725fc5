// Barriers in shared memory (mbarrier), cluster barriers, named barriers: one PTX instruction each.
// Shared memory is named by its 32-bit address, as these instructions want it.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace troupe::sm90 {

__device__ inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ inline uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// All threads of all blocks of the cluster; what was written before is visible after.
__device__ inline void cluster_sync() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;\n" ::
          : "memory");
}

__device__ inline void barrier_init(uint32_t bar, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}

// Makes initialized barriers known to the other blocks of the cluster and to the copy engine.
__device__ inline void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ inline void barrier_arrive(uint32_t bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

// The address of `shared` in block `cta` of the cluster.
__device__ inline uint32_t remote_address(uint32_t shared, uint32_t cta) {
  uint32_t remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(shared), "r"(cta));
  return remote;
}

__device__ inline int32_t load_remote(uint32_t remote) {
  int32_t value;
  asm volatile("ld.shared::cluster.s32 %0, [%1];" : "=r"(value) : "r"(remote) : "memory");
  return value;
}

// Arrives at a barrier of any block of the cluster. Orders what this thread has read, not what it
// wrote: a release at cluster scope would cost a fence over the whole GPU.
__device__ inline void barrier_arrive_remote(uint32_t remote) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(remote) : "memory");
}

// Arrives, and makes the phase wait for `bytes` of the copy engine.
__device__ inline void barrier_expect(uint32_t bar, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
               : "memory");
}

__device__ inline bool barrier_try_wait(uint32_t bar, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}\n"
      : "=r"(done)
      : "r"(bar), "r"(parity)
      : "memory");
  return done != 0;
}

// Whether the phase is over now; does not wait.
__device__ inline bool barrier_test(uint32_t bar, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.test_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}\n"
      : "=r"(done)
      : "r"(bar), "r"(parity)
      : "memory");
  return done != 0;
}

// Ends the kernel with an illegal address, which the host sees. Not __trap(): beside bulk-copy
// waits it makes ptxas ignore setmaxnreg's larger share of registers and spill (nvcc 13.0).
__device__ inline void give_up() {
  asm volatile("st.global.u32 [%0], %1;" ::"l"(uint64_t{0}), "r"(0u) : "memory");
}

// No spin without a limit: about two seconds.
constexpr int64_t kSpinCycles = int64_t{1} << 32;

__device__ inline void barrier_wait(uint32_t bar, uint32_t parity) {
  if (barrier_try_wait(bar, parity)) return;
  const int64_t start = clock64();
  while (!barrier_try_wait(bar, parity)) {
    if (clock64() - start > kSpinCycles) give_up();
  }
}

// A named barrier, 1..15, among `threads` threads of a block.
template <int kId>
__device__ inline void named_sync(int threads) {
  asm volatile("bar.sync %0, %1;" ::"n"(kId), "r"(threads) : "memory");
}

// The same; returns whether `holds` in one of these threads or more.
template <int kId>
__device__ inline bool named_any(int threads, bool holds) {
  uint32_t found;
  asm volatile(
      "{\n.reg .pred mine, some;\n"
      "setp.ne.u32 mine, %3, 0;\n"
      "barrier.cta.red.or.pred some, %1, %2, mine;\n"
      "selp.u32 %0, 1, 0, some;\n}\n"
      : "=r"(found)
      : "n"(kId), "r"(threads), "r"(uint32_t{holds})
      : "memory");
  return found != 0;
}

// Orders shared memory written by ordinary stores before reads by tensor cores and copy engine.
__device__ inline void async_proxy_fence() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// The same value, but nothing computed from it is moved out of a loop and kept in a register.
__device__ inline int opaque(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

// A warpgroup gives registers back or takes more; every warp of it must execute this.
template <int kRegisters>
__device__ inline void registers_shrink() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void registers_grow() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace troupe::sm90
