// The tile of all products of this folder, and the ring of shared-memory stages that feeds it.
//
// A block of 384 threads is one producer warpgroup and two consumer warpgroups; it makes a 128 x
// 256 tile, 64 rows a consumer. Two blocks form a cluster: they take neighbouring 128 rows and the
// same 256 columns, so each loads half of operand B and sends it to both. A stage is 64 of k.
#pragma once

#include "troupe/kernels/device/async_copy.cuh"
#include "troupe/kernels/device/mbarrier.cuh"
#include "troupe/kernels/device/wgmma.cuh"

namespace troupe::sm90 {

constexpr int kTileM = 128, kTileN = 256, kTileK = 64;
constexpr int kClusterM = 2 * kTileM;
constexpr int kStages = 4;
constexpr int kWarpgroup = 128;
constexpr int kConsumers = 2;
constexpr int kThreads = (1 + kConsumers) * kWarpgroup;
constexpr int kMaxExperts = 1024;

constexpr uint32_t kABytes = kTileM * kTileK * 2;
constexpr uint32_t kBBytes = kTileN * kTileK * 2;
constexpr uint32_t kStageBytes = kABytes + kBBytes;
constexpr uint32_t kStagingBytes = 3072;  // A warp's corner for its epilogue.

// Offsets into the block's shared memory, from a 1024-byte boundary.
constexpr uint32_t kStagingAt = kStages * kStageBytes;
constexpr uint32_t kBarriersAt = kStagingAt + kConsumers * 4 * kStagingBytes;
constexpr uint32_t kTablesAt = kBarriersAt + 128;
constexpr uint32_t kSharedBytes = kTablesAt + 2 * (kMaxExperts + 1) * 4 + 1024;
static_assert(kSharedBytes <= 232448);

// One role's place in the ring. Full barriers count the producer's arrivals and bytes; empty
// barriers count every consumer warp of both blocks, since both blocks' copies write to both.
struct Pipe {
  uint32_t base;
  int slot = 0;
  uint32_t phase = 0;

  __device__ uint32_t a() const { return base + slot * kStageBytes; }
  __device__ uint32_t b() const { return a() + kABytes; }
  __device__ uint32_t full() const { return base + kBarriersAt + slot * 8; }
  __device__ uint32_t empty(int of_slot) const {
    return base + kBarriersAt + (kStages + of_slot) * 8;
  }
  // Completes once a tile, when the first consumer has done its first steps of it.
  __device__ uint32_t lead() const { return base + kBarriersAt + 2 * kStages * 8; }

  __device__ void init(uint32_t full_arrivals) const {
    for (int s = 0; s < kStages; ++s) {
      barrier_init(base + kBarriersAt + s * 8, full_arrivals);
      barrier_init(empty(s), 2 * kConsumers * 4);
    }
    barrier_init(lead(), 4);
    barrier_init_fence();
  }

  __device__ void wait_full() const { barrier_wait(full(), phase); }
  __device__ void wait_empty() const { barrier_wait(empty(slot), phase ^ 1); }
  // By all lanes of a consumer warp: lanes 0 and 1 tell block 0 and block 1.
  __device__ void release(int of_slot, int lane) const {
    if (lane < 2) barrier_arrive_at(empty(of_slot), lane);
  }
  __device__ void advance() {
    if (++slot == kStages) {
      slot = 0;
      phase ^= 1;
    }
  }
};

// A consumer warpgroup's half of a tile: acc = sum over the steps of A's 64 rows times B.
// An idle one (no rows in its half) keeps the ring turning. Where kLead > 0, warpgroup 1 starts a
// tile only when warpgroup 0 has done kLead steps of it, so that one's epilogue runs under the
// other's products. (kLead < kStages <= steps keeps the lead barrier within one phase.)
struct Multiply {
  int warpgroup;
  int lane;
  uint32_t lead_phase = 0;

  template <Major kA, Major kB, bool kFence, int kLead>
  __device__ void run(Accumulator& acc, Pipe& pipe, int steps, bool active) {
    const bool leads = kLead > 0 && steps >= kStages;
    if (leads && warpgroup == 1) barrier_wait(pipe.lead(), lead_phase);
    if (leads) lead_phase ^= 1;
    if (!active) return skip<kLead>(pipe, steps, leads);

    int previous = pipe.slot;
    for (int step = 0; step < steps; ++step) {
      pipe.wait_full();
      if (kFence) async_proxy_fence();
      const uint64_t a = operand(pipe.a() + warpgroup * kSlabBytes, kA);
      const uint64_t b = operand(pipe.b(), kB);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kTileK / 16; ++k) {
        wgmma<kA, kB>(acc, a + k * next_k16(kA), b + k * next_k16(kB), step > 0 || k > 0);
      }
      wgmma_commit();
      if (step > 0) {
        wgmma_wait<1>();
        pipe.release(previous, lane);
        if (leads && step == kLead) tell_lead(pipe);
      }
      previous = pipe.slot;
      pipe.advance();
    }
    wgmma_wait<0>();
    settle(acc);
    pipe.release(previous, lane);
  }

  template <int kLead>
  __device__ void skip(Pipe& pipe, int steps, bool leads) {
    for (int step = 0; step < steps; ++step) {
      pipe.wait_full();
      pipe.release(pipe.slot, lane);
      if (leads && step == kLead) tell_lead(pipe);
      pipe.advance();
    }
  }

  __device__ void tell_lead(const Pipe& pipe) const {
    if (warpgroup == 0 && lane == 0) barrier_arrive(pipe.lead());
  }
};

}  // namespace troupe::sm90
