// Asynchronous copies from global to shared memory: 16 bytes a thread (cp.async), and boxes of a
// tensor by the copy engine (TMA), to one block or to all blocks of a cluster named in a mask.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "troupe/kernels/device/mbarrier.cuh"

namespace troupe::sm90 {

// Copies the first `bytes` (0 or 16) of 16 bytes and fills the rest with zeros.
__device__ inline void copy16(uint32_t dst, const void* src, uint32_t bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(dst), "l"(src),
               "r"(bytes)
               : "memory");
}

// The same of 4 bytes.
__device__ inline void copy4(uint32_t dst, const void* src, uint32_t bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(dst), "l"(src), "r"(bytes)
               : "memory");
}

// Arrives when all earlier copy16 and copy4 of this thread have landed. The barrier counts this
// arrival.
__device__ inline void copy16_arrive(uint32_t bar) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
}

__device__ inline void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

struct BoxAt {
  int x, y, z, w;  // Fastest dimension first.
};

__device__ inline void copy_box_2d(uint32_t dst, const CUtensorMap* map, int x, int y,
                                   uint32_t bar) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(dst),
      "l"(map), "r"(x), "r"(y), "r"(bar)
      : "memory");
}

__device__ inline void copy_box_4d(uint32_t dst, const CUtensorMap* map, BoxAt at, uint32_t bar) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(dst),
      "l"(map), "r"(at.x), "r"(at.y), "r"(at.z), "r"(at.w), "r"(bar)
      : "memory");
}

// The same box into the same address of every block in `mask`; each block's own barrier counts it.
__device__ inline void copy_box_4d_multicast(uint32_t dst, const CUtensorMap* map, BoxAt at,
                                             uint32_t bar, uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(dst),
      "l"(map), "r"(at.x), "r"(at.y), "r"(at.z), "r"(at.w), "r"(bar), "h"(mask)
      : "memory");
}

// Asks for a box to be brought into L2.
__device__ inline void prefetch_box_2d(const CUtensorMap* map, int x, int y) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"(map), "r"(x),
               "r"(y)
               : "memory");
}

// A box from shared memory to global memory. Copies of one thread between two commits are a group;
// wait until at most kPending groups have not yet read all of their shared memory.
__device__ inline void store_box_2d(const CUtensorMap* map, int x, int y, uint32_t src) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map),
      "r"(x), "r"(y), "r"(src)
      : "memory");
}
// The same, whose lines leave L2 before others do: what is read next shall stay there.
__device__ inline void store_box_2d_streaming(const CUtensorMap* map, int x, int y, uint32_t src) {
  asm volatile(
      "{\n.reg .b64 policy;\n"
      "createpolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
      "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group.L2::cache_hint "
      "[%0, {%1, %2}], [%3], policy;\n}\n" ::"l"(map),
      "r"(x), "r"(y), "r"(src)
      : "memory");
}
__device__ inline void store_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
template <int kPending>
__device__ inline void store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

}  // namespace troupe::sm90
