// Block-sparse products on Hopper's tensor cores: 128 x 256 tiles, all operands by the
// copy engine, for blocks are boxes. B = 128; bf16 and f16.
//
// A block of 384 threads is one producer warpgroup and two consumer warpgroups of 64 rows each. One
// thread of the producer walks the tiles and fills a ring of slots, 64 of k each; with the first
// slot of a tile comes a word that says what it is, so that consumers read no topology. A consumer
// stages its whole half of the tile and lets the copy engine store it while it multiplies the next.
#pragma once

#include "troupe/kernels/block_sparse/lines.h"
#include "troupe/kernels/device/async_copy.cuh"
#include "troupe/kernels/device/matrix_store.cuh"
#include "troupe/kernels/device/mbarrier.cuh"
#include "troupe/kernels/device/tensor_map.cuh"
#include "troupe/kernels/device/wgmma.cuh"

namespace troupe::sparse {

using sm90::Half16;
using sm90::Major;

constexpr int kRows = 128, kColumns = 256;  // of a tile
constexpr int kDepth = 64;                  // of k, a slot
constexpr int kSlots = 3;
constexpr uint32_t kABytes = kRows * kDepth * 2, kBBytes = kColumns * kDepth * 2;
constexpr uint32_t kSlotBytes = kABytes + kBBytes;
constexpr uint32_t kChunkBytes = 64 * 64 * 2;  // of a consumer's 64 rows, 64 columns
constexpr uint32_t kStagingAt = kSlots * kSlotBytes, kStagingBytes = 4 * kChunkBytes;
constexpr uint32_t kWordsAt = kStagingAt + 2 * kStagingBytes;
constexpr uint32_t kBarriersAt = kWordsAt + kSlots * 16;
constexpr uint32_t kSharedBytes = kBarriersAt + 2 * kSlots * 8;
static_assert(kSharedBytes <= 232448);
constexpr int kTileThreads = 384, kGroup = 128, kConsumerWarps = 8;

// What a tile is, for its consumers. steps < 0: there are no more.
struct Word {
  int steps;
  int x, y;   // of its corner in the result, in elements
  int parts;  // stored blocks that it makes; of a dense result nothing
};

// A place in the ring.
struct Slots {
  uint32_t base;
  int slot = 0;
  uint32_t phase = 0;

  __device__ uint32_t a() const { return base + static_cast<uint32_t>(slot) * kSlotBytes; }
  __device__ uint32_t b() const { return a() + kABytes; }
  __device__ uint32_t word() const { return base + kWordsAt + static_cast<uint32_t>(slot) * 16; }
  __device__ uint32_t full(int of) const {
    return base + kBarriersAt + static_cast<uint32_t>(of) * 8;
  }
  __device__ uint32_t empty(int of) const { return full(kSlots + of); }
  __device__ void init() const {
    for (int s = 0; s < kSlots; ++s) {
      sm90::barrier_init(full(s), 1);
      sm90::barrier_init(empty(s), kConsumerWarps);
    }
    sm90::barrier_init_fence();
  }
  __device__ void advance() {
    if (++slot == kSlots) slot = 0, phase ^= 1;
  }
};

// Copies 64 of k from k0 on of kExtent rows (or columns) from `from` on.
template <Major kMajor, int kExtent>
__device__ inline void load_operand(uint32_t to, const CUtensorMap* map, int from, int k0,
                                    uint32_t bar) {
  constexpr int kBox = kMajor == Major::kK ? 128 : 64;
#pragma unroll
  for (int i = 0; i < kExtent / kBox; ++i) {
    const uint32_t at = to + static_cast<uint32_t>(i) * kBox * kDepth * 2;
    const int mn = from + i * kBox;
    sm90::copy_box_2d(at, map, kMajor == Major::kK ? k0 : mn, kMajor == Major::kK ? mn : k0, bar);
  }
}

// The producer's view of the ring.
template <Major kA, Major kB>
struct Feed {
  Slots slots;
  const CUtensorMap* a_map;
  const CUtensorMap* b_map;

  // The word of a tile without k, or of the end: a slot without operands.
  __device__ void tell(const Word& word) {
    open(&word);
    sm90::barrier_arrive(slots.full(slots.slot));
    slots.advance();
  }
  // A step of k; the first of a tile with its word.
  struct Step {
    int a_from, a_k, b_from, b_k;
  };
  __device__ void step(const Word* word, const Step& at) {
    open(word);
    const uint32_t bar = slots.full(slots.slot);
    sm90::barrier_expect(bar, kABytes + kBBytes);
    load_operand<kA, kRows>(slots.a(), a_map, at.a_from, at.a_k, bar);
    load_operand<kB, kColumns>(slots.b(), b_map, at.b_from, at.b_k, bar);
    slots.advance();
  }

 private:
  __device__ void open(const Word* word) {
    sm90::barrier_wait(slots.empty(slots.slot), slots.phase ^ 1);
    if (word == nullptr) return;
    asm volatile("st.shared.v4.s32 [%0], {%1, %2, %3, %4};" ::"r"(slots.word()), "r"(word->steps),
                 "r"(word->x), "r"(word->y), "r"(word->parts)
                 : "memory");
  }
};

// A consumer warpgroup.
template <Major kA, Major kB, Half16 kType, bool kTransposed>
struct Maker {
  Slots slots;
  const CUtensorMap* c_map;
  int columns;  // of op(B): a dense result ends there
  int index, warp, lane;
  sm90::Accumulator acc = {};

  __device__ void run() {
    for (;;) {
      sm90::barrier_wait(slots.full(slots.slot), slots.phase);
      const Word word = read();
      if (word.steps < 0) break;
      if (word.steps == 0) {
#pragma unroll
        for (int i = 0; i < 128; ++i) acc[i] = 0;
        release(slots.slot);
        slots.advance();
      } else {
        multiply(word.steps);
      }
      store(word);
    }
    if (leads()) sm90::store_wait_read<0>();
  }

 private:
  __device__ bool leads() const {
    return warp == 0 && lane == 0;
  }
  __device__ void sync() const {
    index == 0 ? sm90::named_sync<1>(kGroup) : sm90::named_sync<2>(kGroup);
  }
  __device__ Word read() const {
    Word w;
    asm volatile("ld.shared.v4.s32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w.steps), "=r"(w.x), "=r"(w.y), "=r"(w.parts)
                 : "r"(slots.word())
                 : "memory");
    return w;
  }
  __device__ void release(int slot) const {
    __syncwarp();
    if (lane == 0) sm90::barrier_arrive(slots.empty(slot));
  }

  // The first slot has been waited for.
  __device__ void multiply(int steps) {
    int previous = slots.slot;
    for (int step = 0; step < steps; ++step) {
      if (step > 0) sm90::barrier_wait(slots.full(slots.slot), slots.phase);
      const uint64_t a =
          sm90::operand<kDepth>(slots.a() + static_cast<uint32_t>(index) * (kABytes / 2), kA);
      const uint64_t b = sm90::operand<kDepth>(slots.b(), kB);
      sm90::wgmma_fence();
#pragma unroll
      for (int k = 0; k < kDepth / 16; ++k) {
        sm90::wgmma<kA, kB, kType>(acc, a + k * sm90::next_k16(kA), b + k * sm90::next_k16(kB),
                                   step > 0 || k > 0);
      }
      sm90::wgmma_commit();
      if (step > 0) {
        sm90::wgmma_wait<1>();
        release(previous);
      }
      previous = slots.slot;
      slots.advance();
    }
    sm90::wgmma_wait<0>();
    sm90::settle(acc);
    release(previous);
  }

  __device__ static uint32_t pack(float low, float high) {
    return kType == Half16::kBF16 ? sm90::pack_bf16(low, high) : sm90::pack_f16(low, high);
  }

  // Chunk c is columns 64 c .. 64 c + 63, in rows of 128 swizzled bytes: the tile's rows, or where
  // it is transposed its columns.
  __device__ void store(const Word& word) const {
    const uint32_t staging = slots.base + kStagingAt + static_cast<uint32_t>(index) * kStagingBytes;
    const int matrix = lane / 8, i = lane % 8;
    if (leads()) sm90::store_wait_read<0>();  // what the tile before left there is gone
    sync();
#pragma unroll
    for (int c = 0; c < kColumns / 64; ++c) {
      const uint32_t chunk = staging + static_cast<uint32_t>(c) * kChunkBytes;
#pragma unroll
      for (int j = 0; j < 8; j += 2) {  // two blocks of 8 columns
        uint32_t words[4];
#pragma unroll
        for (int b = 0; b < 4; ++b) {
          const float* d = acc + 4 * (8 * c + j + b / 2) + 2 * (b % 2);
          words[b] = pack(d[0], d[1]);
        }
        const int block = j + matrix / 2;         // of 8 columns
        const int octet = 2 * warp + matrix % 2;  // of 8 rows
        if constexpr (kTransposed) {
          sm90::store_matrices_transposed(staged(chunk, 8 * block + i, octet), words[0], words[1],
                                          words[2], words[3]);
        } else {
          sm90::store_matrices(staged(chunk, 8 * octet + i, block), words[0], words[1], words[2],
                               words[3]);
        }
      }
    }
    sm90::async_proxy_fence();
    sync();
    if (!leads()) return;
#pragma unroll
    for (int c = 0; c < kColumns / 64; ++c) {
      const uint32_t chunk = staging + static_cast<uint32_t>(c) * kChunkBytes;
      if (word.parts > 0) {  // stored blocks, one under the other in memory
        if (c / 2 < word.parts) {
          sm90::store_box_2d(c_map, 64 * (c % 2), word.y + 128 * (c / 2) + 64 * index, chunk);
        }
      } else if (const int at = (kTransposed ? word.y : word.x) + 64 * c; at < columns) {
        const int x = kTransposed ? word.x + 64 * index : at;
        sm90::store_box_2d(c_map, x, kTransposed ? at : word.y + 64 * index, chunk);
      }
    }
    sm90::store_commit();
  }

  __device__ static uint32_t staged(uint32_t chunk, int row, int group) {
    return chunk + static_cast<uint32_t>(row * 128 + ((group ^ (row & 7)) << 4));
  }
};

// Work::feed() walks the tiles of a block of threads and fills the ring.
template <class Work, Half16 kType>
__global__ void __launch_bounds__(kTileThreads, 1)
    wgmma_tiles_kernel(const __grid_constant__ Work work, const __grid_constant__ CUtensorMap a_map,
                       const __grid_constant__ CUtensorMap b_map,
                       const __grid_constant__ CUtensorMap c_map) {
  extern __shared__ __align__(1024) uint8_t shared[];
  const Slots slots{sm90::shared_address(shared)};
  const int group = static_cast<int>(threadIdx.x) / kGroup;
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4,
            lane = static_cast<int>(threadIdx.x) % 32;
  if (threadIdx.x == 0) {
    if (slots.base % 1024 != 0) sm90::give_up();
    slots.init();
    sm90::prefetch_map(&a_map), sm90::prefetch_map(&b_map), sm90::prefetch_map(&c_map);
  }
  __syncthreads();
  if (group == 0) {
    sm90::registers_shrink<40>();
    if (threadIdx.x == 0) {
      Feed<Work::kMajorA, Work::kMajorB> feed{slots, &a_map, &b_map};
      work.feed(feed);
      feed.tell({.steps = -1, .x = 0, .y = 0, .parts = 0});
    }
  } else {
    sm90::registers_grow<232>();
    Maker<Work::kMajorA, Work::kMajorB, kType, Work::kTransposed>{slots,     &c_map, work.columns,
                                                                  group - 1, warp,   lane}
        .run();
  }
}

// ---- the host's half

// A matrix as operand: boxes of 64 of k x 128, or of 64 x 64 of k where k runs down its rows. One
// without elements may have no memory; the map must still name some, and is not read.
inline CUtensorMap operand_map(const MatRef& x, Major major, const MutRef& result) {
  if (x.rows == 0 || x.cols == 0) return operand_map(result.read(), major, result);
  return sm90::tensor_map<2>(x.data,
                             {{x.cols, x.rows}, {x.ld}, {64, major == Major::kK ? 128 : 64}});
}
inline CUtensorMap result_map(const MutRef& x) {
  return sm90::tensor_map<2>(x.data, {{x.cols, x.rows}, {x.ld}, {64, 64}});
}

template <class Work, Half16 kType>
void launch_tiles(const Work& work, int64_t tiles, const std::array<CUtensorMap, 3>& maps,
                  cudaStream_t stream) {
  const auto kernel = wgmma_tiles_kernel<Work, kType>;
  const int64_t blocks = std::min<int64_t>(sm90::num_multiprocessors(), tiles);
  TROUPE_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  kernel<<<static_cast<unsigned>(blocks), kTileThreads, kSharedBytes, stream>>>(work, maps[0],
                                                                                maps[1], maps[2]);
  TROUPE_LAUNCH_CHECK(stream);
}

// f.operator()<kA, kB, kType>() for the orders of both operands and the type of both.
template <class F>
void dispatch_operands(Major a, Major b, Dtype dtype, F&& f) {
  const auto typed = [&]<Major kA, Major kB>() {
    dtype == Dtype::kBF16 ? f.template operator()<kA, kB, Half16::kBF16>()
                          : f.template operator()<kA, kB, Half16::kF16>();
  };
  constexpr Major kK = Major::kK, kMN = Major::kMN;
  if (a == kK)
    return b == kK ? typed.template operator()<kK, kK>() : typed.template operator()<kK, kMN>();
  b == kK ? typed.template operator()<kMN, kK>() : typed.template operator()<kMN, kMN>();
}

}  // namespace troupe::sparse
