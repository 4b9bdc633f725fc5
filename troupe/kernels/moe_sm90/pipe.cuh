// The tile of all products of this folder, and the ring of shared-memory slots that feeds it.
//
// A block of 384 threads is one producer warpgroup and two consumer warpgroups; it makes a 128 x
// 256 tile, 64 rows a consumer. Two blocks form a cluster: they take neighboring 128 rows and the
// same 256 columns, so each loads half of operand B and sends it to both. A slot holds kK of k.
#pragma once

#include "troupe/kernels/device/async_copy.cuh"
#include "troupe/kernels/device/mbarrier.cuh"
#include "troupe/kernels/device/wgmma.cuh"
#include "troupe/kernels/moe_sm90/moe_sm90_plan.h"

namespace troupe::sm90 {

constexpr int kTileM = kSm90TileRows, kTileN = kSm90TileColumns;
constexpr int kClusterM = 2 * kTileM;
constexpr int kWarpgroup = 128;
constexpr int kConsumers = 2;
constexpr int kThreads = (1 + kConsumers) * kWarpgroup;
constexpr int kMaxExperts = 1024;

// A block's shared memory: the ring, a staging area for each consumer's epilogue, barriers, tables.
// Few k a slot and many slots: a slot is taken while it is read, and the fewer bytes that is, the
// more are in flight.
// `kBytesOfScales`: more of a slot, for the loops in 8 bits, which keep tiles beside them.
template <int kSlotK, int kNumSlots, uint32_t kBytesOfStaging, uint32_t kBytesOfScales = 0,
          int kBarriersOfEpilogue = 4>
struct Geometry {
  static constexpr int kK = kSlotK;
  static constexpr int kSlots = kNumSlots;
  static constexpr uint32_t kStagingBytes = kBytesOfStaging;  // a consumer
  static constexpr uint32_t kABytes = kTileM * kK * 2;
  static constexpr uint32_t kBBytes = kTileN * kK * 2;
  static constexpr uint32_t kSlotBytes = kABytes + kBBytes;
  static constexpr uint32_t kStagingAt = kSlots * kSlotBytes;
  static constexpr uint32_t kBarriersAt = kStagingAt + kConsumers * kStagingBytes;
  static constexpr int kEpilogueBarriers = kBarriersOfEpilogue;  // a consumer
  static_assert((2 * kSlots + kConsumers * kEpilogueBarriers) * 8 <= 256);
  static constexpr uint32_t kTilesAt = kBarriersAt + 256;
  static constexpr uint32_t kScaleBytes = kBytesOfScales;  // a slot
  static constexpr uint32_t kScalesAt = kTilesAt + (kScaleBytes > 0 ? 128 : 0);
  static constexpr uint32_t kTablesAt = kScalesAt + kSlots * kScaleBytes;
  static constexpr uint32_t kBytes = kTablesAt + (kMaxExperts + 1) * 10;
  static_assert(kBytes <= 232448);
};

// One role's place in the ring. Barriers, 8 bytes each, in this order: full [kSlots], empty
// [kSlots], kEpilogueBarriers a consumer. Full barriers count the producer's arrivals and bytes;
// empty barriers count every consumer warp of both blocks, since both blocks' copies write to both.
template <class G>
struct Pipe {
  uint32_t base;
  int slot = 0;
  uint32_t phase = 0;

  __device__ uint32_t a() const { return base + slot * G::kSlotBytes; }
  __device__ uint32_t b() const { return a() + G::kABytes; }
  __device__ uint32_t scales() const { return base + G::kScalesAt + slot * G::kScaleBytes; }
  __device__ uint32_t full() const { return base + G::kBarriersAt + slot * 8; }
  __device__ uint32_t empty(int of_slot) const {
    return base + G::kBarriersAt + (G::kSlots + of_slot) * 8;
  }
  __device__ uint32_t epilogue_barriers(int consumer) const {
    return base + G::kBarriersAt + (2 * G::kSlots + consumer * G::kEpilogueBarriers) * 8;
  }
  __device__ uint32_t staging(int consumer) const {
    return base + G::kStagingAt + consumer * G::kStagingBytes;
  }

  __device__ void init(uint32_t full_arrivals) const {
    for (int s = 0; s < G::kSlots; ++s) {
      barrier_init(base + G::kBarriersAt + s * 8, full_arrivals);
      barrier_init(empty(s), 2 * kConsumers * 4);
    }
    for (int i = 0; i < kConsumers * G::kEpilogueBarriers; ++i) {
      barrier_init(epilogue_barriers(0) + i * 8, 1);
    }
    barrier_init_fence();
  }

  __device__ void wait_full() const { barrier_wait(full(), phase); }
  __device__ void wait_empty() const { barrier_wait(empty(slot), phase ^ 1); }
  __device__ void advance() {
    if (++slot == G::kSlots) {
      slot = 0;
      phase ^= 1;
    }
  }
};

// A consumer warpgroup's half of a tile: acc = sum over the steps of A's 64 rows times B.
// An idle one (no rows in its half) keeps the ring turning. `aside` is called once, under the first
// products: what the epilogue needs is fetched there.
//
// kThreadsCopy: threads copy rows into the ring (generic proxy), which the PTX model wants ordered
// before wgmma reads them (async proxy), after the full barrier.
template <class G, Major kA, Major kB, bool kThreadsCopy>
struct Multiply {
  static constexpr int kAsideStep = 4;
  int warpgroup;
  int lane;
  uint32_t empty;  // the first empty barrier of block `lane` of the cluster

  __device__ Multiply(const Pipe<G>& pipe, int group, int my_lane)
      : warpgroup(group), lane(my_lane), empty(remote_address(pipe.empty(0), my_lane & 1)) {}

  // By all lanes of a warp: lanes 0 and 1 tell block 0 and block 1.
  __device__ void release(int slot) const {
    if (lane < 2) barrier_arrive_remote(empty + slot * 8);
  }

  template <class F>
  __device__ void run(Accumulator& acc, Pipe<G>& pipe, int steps, bool active, F&& aside) const {
    if (!active) {
      aside();
      return skip(pipe, steps);
    }
    const int aside_step = min(kAsideStep, steps - 1);
    int previous = pipe.slot;
    for (int step = 0; step < steps; ++step) {
      pipe.wait_full();
      if (kThreadsCopy) async_proxy_fence();
      const uint64_t a = operand<G::kK>(pipe.a() + warpgroup * (G::kABytes / 2), kA);
      const uint64_t b = operand<G::kK>(pipe.b(), kB);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < G::kK / 16; ++k) {
        wgmma<kA, kB>(acc, a + k * next_k16(kA), b + k * next_k16(kB), step > 0 || k > 0);
      }
      wgmma_commit();
      if (step > 0) {
        wgmma_wait<1>();
        release(previous);
      }
      previous = pipe.slot;
      pipe.advance();
      if (step == aside_step) aside();
    }
    wgmma_wait<0>();
    settle(acc);
    release(previous);
  }

  __device__ void skip(Pipe<G>& pipe, int steps) const {
    for (int step = 0; step < steps; ++step) {
      pipe.wait_full();
      release(pipe.slot);
      pipe.advance();
    }
  }
};

// A consumer warpgroup as its epilogue sees it.
struct Consumer {
  uint32_t staging;
  uint32_t barriers;
  int index;  // 0 or 1
  int warp;   // 0..3
  int lane;

  __device__ bool leads() const { return warp == 0 && lane == 0; }
  __device__ void sync() const {
    if (index == 0) {
      named_sync<1>(kWarpgroup);
    } else {
      named_sync<2>(kWarpgroup);
    }
  }
  // Whether it holds in one thread of the warpgroup or more.
  __device__ bool any(bool holds) const {
    return index == 0 ? named_any<1>(kWarpgroup, holds) : named_any<2>(kWarpgroup, holds);
  }
};

}  // namespace troupe::sm90
