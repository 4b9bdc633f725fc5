#include <algorithm>
#include <cstdint>

#include "troupe/core/device/cuda_check.h"
#include "troupe/kernels/device/block_scan.cuh"
#include "troupe/kernels/device/stable_rank.cuh"
#include "troupe/kernels/routing_plan/geometry.h"
#include "troupe/kernels/routing_plan/routing_plan.h"

namespace troupe {
namespace {

constexpr int kThreads = kRankThreads;
static_assert(plan::kMaxFusedExperts == kRankThreads && plan::kTileSlots == kRankTile);

// ---- what both paths do

__device__ bool routed(const RoutingPlan& a, int id) {
  return 0 <= id && id < a.shape.experts;
}

// Writes both maps of one slot; `rank` counts the slots of its expert before it.
__device__ void place(const RoutingPlan& a, int slot, int first_row, int rank) {
  const bool fits = a.shape.capacity == 0 || rank < a.shape.capacity;
  a.slot_row[slot] = fits ? first_row + rank : -1;
  if (!fits) return;
  a.row_slot[first_row + rank] = slot;
  a.row_src[first_row + rank] = slot / static_cast<int>(a.shape.choices);
}

// One warp: the pad rows and the tiles of a segment.
__device__ void finish_segment(const RoutingPlan& a, int e, int first_row, int count, int tile) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int length = static_cast<int>(plan::segment_length(a.shape, count));
  for (int i = count + lane; i < length; i += 32) {
    a.row_slot[first_row + i] = -1;
    a.row_src[first_row + i] = -1;
  }
  const int tiles = static_cast<int>(plan::segment_tiles(a.shape, length));
  for (int i = lane; i < tiles; i += 32) {
    a.tile_list[2 * (tile + i)] = e;
    a.tile_list[2 * (tile + i) + 1] = first_row + i * static_cast<int>(a.shape.tile_height);
  }
}

__device__ void clear_tail(const RoutingPlan& a, int64_t end, int64_t bound) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t r = end + int64_t{blockIdx.x} * blockDim.x + threadIdx.x; r < bound; r += step) {
    a.row_slot[r] = -1;
    a.row_src[r] = -1;
  }
}

// What the layout of one expert adds to the totals.
struct Segment {
  int count, length, tiles, dropped;
};

__device__ Segment segment(const RoutingPlan& a, int slots, bool exists) {
  if (!exists) return {0, 0, 0, 0};
  const int count = static_cast<int>(plan::placed(a.shape, slots));
  const int length = static_cast<int>(plan::segment_length(a.shape, count));
  return {count, length, static_cast<int>(plan::segment_tiles(a.shape, length)), slots - count};
}

__device__ void write_totals(const RoutingPlan& a, int rows, int tiles, int64_t dropped) {
  a.expert_offset[a.shape.experts] = rows;
  if (a.shape.tile_height > 0) *a.tile_count = tiles;
  if (a.overflow != nullptr) *a.overflow = dropped;
}

// ---- up to 1024 experts: two launches

// A block counts the slots of its chunk by expert, in shared memory: histograms is [chunks, E].
__global__ void __launch_bounds__(kThreads)
    count_kernel(RoutingPlan a, int64_t slots_per_chunk, int32_t* histograms) {
  extern __shared__ int32_t count[];
  const int experts = static_cast<int>(a.shape.experts);
  for (int e = threadIdx.x; e < experts; e += kThreads) count[e] = 0;
  __syncthreads();
  const int64_t begin = blockIdx.x * slots_per_chunk;
  const int64_t end = min(begin + slots_per_chunk, a.shape.tokens * a.shape.choices);
#pragma unroll 2
  for (int64_t slot = begin + threadIdx.x; slot < end; slot += kThreads) {
    const int id = a.ids[slot];
    if (routed(a, id)) atomicAdd(&count[id], 1);  // Integer, hence the same in any order.
  }
  __syncthreads();
  for (int e = threadIdx.x; e < experts; e += kThreads) {
    histograms[int64_t{blockIdx.x} * experts + e] = count[e];
  }
}

// Where each expert's segment begins, in shared memory: [E] each.
struct Segments {
  int32_t* first_row;
  int32_t* first_tile;
};

// Thread e lays out expert e; block 0 also writes what the host asked for. Returns the rows' total.
__device__ int lay_out(const RoutingPlan& a, const int32_t* total, const Segments& segments) {
  __shared__ int scratch[kScanScratch];
  const int e = static_cast<int>(threadIdx.x);
  const bool exists = e < a.shape.experts;
  const Segment mine = segment(a, exists ? total[e] : 0, exists);
  const Scanned<int> rows = block_scan(mine.length, scratch);
  const Scanned<int> tiles = block_scan(mine.tiles, scratch);
  if (exists) {
    segments.first_row[e] = rows.before;
    segments.first_tile[e] = tiles.before;
  }
  if (blockIdx.x == 0) {
    const Scanned<int> dropped = block_scan(mine.dropped, scratch);
    if (exists) {
      a.counts[e] = mine.count;
      a.expert_offset[e] = rows.before;
    }
    if (e == 0) write_totals(a, rows.total, tiles.total, dropped.total);
  }
  __syncthreads();
  return rows.total;
}

__device__ void place_tile(const RoutingPlan& a, const RankShared& s, const Segments& segments,
                           int64_t tile_begin) {
  const int64_t slots = a.shape.tokens * a.shape.choices;
  int id[kRankItems], rank[kRankItems];
#pragma unroll
  for (int i = 0; i < kRankItems; ++i) {
    const int64_t slot = tile_begin + rank_position(i);
    id[i] = slot < slots ? a.ids[slot] : -1;
    if (!routed(a, id[i])) id[i] = -1;
  }
  rank_tile(s, id, rank);
#pragma unroll
  for (int i = 0; i < kRankItems; ++i) {
    const int64_t slot = tile_begin + rank_position(i);
    if (slot >= slots) continue;
    if (id[i] < 0) {
      a.slot_row[slot] = -1;
    } else {
      place(a, static_cast<int>(slot), segments.first_row[id[i]], rank[i]);
    }
  }
}

// A block places the slots of its chunk, tile after tile, and shares in pads, tiles and the tail.
// Ids are read once here and once in count_kernel; row maps go out in runs of a tile's slots of one
// expert.
__global__ void __launch_bounds__(kThreads)
    place_kernel(RoutingPlan a, int64_t slots_per_chunk, const int32_t* histograms, int64_t bound) {
  extern __shared__ int32_t memory[];
  const int experts = static_cast<int>(a.shape.experts);
  const Segments segments{memory, memory + experts};
  const RankShared s(memory + 2 * experts, experts);
  sum_histograms(s, histograms);
  const int rows = lay_out(a, s.total, segments);

  const int64_t begin = blockIdx.x * slots_per_chunk;
  const int64_t end = min(begin + slots_per_chunk, a.shape.tokens * a.shape.choices);
  for (int64_t tile = begin; tile < end; tile += kRankTile) place_tile(a, s, segments, tile);

  const int warps = static_cast<int>(gridDim.x) * kRankWarps;
  for (int e = (static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x)) / 32;
       e < experts; e += warps) {
    const int count = static_cast<int>(plan::placed(a.shape, s.total[e]));
    finish_segment(a, e, segments.first_row[e], count, segments.first_tile[e]);
  }
  clear_tail(a, rows, bound);
}

void plan_fused(const RoutingPlan& a, const plan::Chunks& chunks, cudaStream_t stream) {
  auto* histograms = static_cast<int32_t*>(a.workspace);
  const auto blocks = static_cast<unsigned>(chunks.count);
  const auto bytes = static_cast<int>(RankShared::bytes(a.shape.experts) + 8 * a.shape.experts);
  count_kernel<<<blocks, kThreads, a.shape.experts * sizeof(int32_t), stream>>>(
      a, chunks.slots_per_chunk, histograms);
  TROUPE_LAUNCH_CHECK(stream);
  TROUPE_CUDA_CHECK(
      cudaFuncSetAttribute(place_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  place_kernel<<<blocks, kThreads, bytes, stream>>>(a, chunks.slots_per_chunk, histograms,
                                                    row_bound(a.shape));
  TROUPE_LAUNCH_CHECK(stream);
}

// ---- any number of experts: counters in global memory, a warp a chunk

// Workspace: [chunks, E] counters, then [E] slots of each expert, then [E] first tiles.
struct Wide {
  int32_t* counters;
  int32_t* slots;
  int32_t* first_tile;
};

// One thread a slot.
__global__ void wide_count_kernel(RoutingPlan a, int64_t slots_per_chunk, Wide w) {
  const int64_t slots = a.shape.tokens * a.shape.choices, step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t s = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; s < slots; s += step) {
    const int id = a.ids[s];
    if (routed(a, id)) atomicAdd(&w.counters[s / slots_per_chunk * a.shape.experts + id], 1);
  }
}

// One thread an expert: counts to ranks, over the chunks.
__global__ void wide_prefix_kernel(RoutingPlan a, int64_t num_chunks, Wide w) {
  const int64_t e = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (e >= a.shape.experts) return;
  int total = 0;
#pragma unroll 8
  for (int64_t c = 0; c < num_chunks; ++c) {
    int32_t* counter = &w.counters[c * a.shape.experts + e];
    const int here = *counter;
    *counter = total;
    total += here;
  }
  w.slots[e] = total;
}

// One block lays out all segments, 1024 at a time.
__global__ void __launch_bounds__(kThreads) wide_lay_out_kernel(RoutingPlan a, Wide w) {
  __shared__ int scratch[kScanScratch];
  int rows = 0, tiles = 0, dropped = 0;
  for (int64_t first = 0; first < a.shape.experts; first += kThreads) {
    const int64_t e = first + threadIdx.x;
    const bool exists = e < a.shape.experts;
    const Segment mine = segment(a, exists ? w.slots[e] : 0, exists);
    const Scanned<int> in_rows = block_scan(mine.length, scratch);
    const Scanned<int> in_tiles = block_scan(mine.tiles, scratch);
    dropped += block_scan(mine.dropped, scratch).total;
    if (exists) {
      a.counts[e] = mine.count;
      a.expert_offset[e] = rows + in_rows.before;
      w.first_tile[e] = tiles + in_tiles.before;
    }
    rows += in_rows.total;
    tiles += in_tiles.total;
  }
  if (threadIdx.x == 0) write_totals(a, rows, tiles, dropped);
}

// A warp places the slots of its chunk, 32 at a time; its counters are its own.
__global__ void wide_place_kernel(RoutingPlan a, int64_t slots_per_chunk, Wide w) {
  const int64_t chunk = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / 32;
  const int64_t slots = a.shape.tokens * a.shape.choices;
  const int64_t end = min((chunk + 1) * slots_per_chunk, slots);
  int32_t* next = w.counters + chunk * a.shape.experts;
  for (int64_t first = chunk * slots_per_chunk; first < end; first += 32) {
    const int64_t slot = first + threadIdx.x % 32;
    int id = slot < end ? a.ids[slot] : -1;
    if (!routed(a, id)) id = -1;
    const Peers peers = peers_of(id);
    const int start = id >= 0 ? next[id] : 0;
    __syncwarp();
    if (id >= 0 && peers.before == 0) next[id] = start + peers.count;
    __syncwarp();
    if (slot >= end) continue;
    if (id < 0) {
      a.slot_row[slot] = -1;
    } else {
      place(a, static_cast<int>(slot), a.expert_offset[id], start + peers.before);
    }
  }
}

__global__ void wide_finish_kernel(RoutingPlan a, Wide w, int64_t bound) {
  const int64_t warps = int64_t{gridDim.x} * blockDim.x / 32;
  for (int64_t e = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / 32; e < a.shape.experts;
       e += warps) {
    finish_segment(a, static_cast<int>(e), a.expert_offset[e], static_cast<int>(a.counts[e]),
                   w.first_tile[e]);
  }
  clear_tail(a, a.expert_offset[a.shape.experts], bound);
}

void plan_wide(const RoutingPlan& a, const plan::Chunks& chunks, cudaStream_t stream) {
  constexpr int kSmall = 128;  // Threads a block: the chunks' warps then spread over many SMs.
  const int64_t counters = chunks.count * a.shape.experts, slots = a.shape.tokens * a.shape.choices;
  auto* memory = static_cast<int32_t*>(a.workspace);
  const Wide w{memory, memory + counters, memory + counters + a.shape.experts};
  const auto blocks = [](int64_t threads) {
    return static_cast<unsigned>(std::clamp<int64_t>(ceil_div(threads, kSmall), 1, 1 << 16));
  };
  TROUPE_CUDA_CHECK(cudaMemsetAsync(w.counters, 0, counters * sizeof(int32_t), stream));
  wide_count_kernel<<<blocks(slots), kSmall, 0, stream>>>(a, chunks.slots_per_chunk, w);
  TROUPE_LAUNCH_CHECK(stream);
  const auto expert_blocks = static_cast<unsigned>(ceil_div(a.shape.experts, kSmall));
  wide_prefix_kernel<<<expert_blocks, kSmall, 0, stream>>>(a, chunks.count, w);
  TROUPE_LAUNCH_CHECK(stream);
  wide_lay_out_kernel<<<1, kThreads, 0, stream>>>(a, w);
  TROUPE_LAUNCH_CHECK(stream);
  const auto chunk_blocks = static_cast<unsigned>(chunks.count);
  wide_place_kernel<<<chunk_blocks, 32, 0, stream>>>(a, chunks.slots_per_chunk, w);
  TROUPE_LAUNCH_CHECK(stream);
  wide_finish_kernel<<<blocks(32 * a.shape.experts), kSmall, 0, stream>>>(a, w, row_bound(a.shape));
  TROUPE_LAUNCH_CHECK(stream);
}

}  // namespace

void routing_plan_cuda(const RoutingPlan& a, cudaStream_t stream) {
  validate(a);
  TROUPE_CHECK(a.workspace != nullptr, "workspace of", workspace_bytes(a), "bytes");
  const plan::Chunks chunks = plan::chunks(a.shape);
  chunks.fused ? plan_fused(a, chunks, stream) : plan_wide(a, chunks, stream);
}

}  // namespace troupe
