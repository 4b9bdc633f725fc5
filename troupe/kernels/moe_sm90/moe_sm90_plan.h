// How the products of moe_sm90.h are run, as host arithmetic: the same bits whatever is chosen.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace troupe {

// A block computes a tile of C; two blocks with the same columns are a cluster.
constexpr int kSm90TileRows = 128, kSm90TileColumns = 256;

// The ring of shared-memory slots that feeds a block: each holds `depth` terms of the sum.
struct Sm90Ring {
  int slots;
  int depth;
};
constexpr Sm90Ring kRowsRing{.slots = 4, .depth = 64};        // up, down, rows
constexpr Sm90Ring kHiddenGradRing{.slots = 6, .depth = 32};  // hidden
constexpr Sm90Ring kWeightGradRing{.slots = 4, .depth = 64};  // grad W1, grad W2

// One H200, 29 November 2026 (bench/gpu_ops.py --only gemm), before: gradients of weights of one
// expert 0.93 and 0.75 of cuBLAS, now 0.99 and 0.91; layers of 128 experts as they were.
constexpr int kStaggerWavesSm90 = 16;

struct MoeSm90Plan {
  // Tiles that share operands are kept in step along a long sum, so that each operand comes from
  // device memory once: all whole tiles first, the experts' rests after them. A short sum is the
  // other way about: there the blocks' starts are spread over a tile's time, so that some store
  // while others multiply, in launches of kStaggerWavesSm90 tiles for each cluster or more.
  bool in_step = false;
  int stagger_cycles = 0;
};

// For a sum of `length` terms: k of a product over rows.
MoeSm90Plan choose_rows_plan(int64_t length);

// For weight gradients, which are sums over an expert's rows: `rows` of all `experts`, in segments
// of `segment_rows` at most (0: not cut).
MoeSm90Plan choose_weight_plan(int64_t rows, int64_t experts, int64_t segment_rows = 0);

// A weight gradient sums over the rows of an expert. An expert with more than `rows` rows is summed
// in segments of `rows` rows each, and the partial sums are added in order, in fp32. So the bits
// depend on `rows` too, and on nothing else. 0: one sum over all rows.
struct SegmentsSm90 {
  int64_t rows = 0;           // a multiple of 64
  void* workspace = nullptr;  // workspace_bytes(), where that is above 0
};

// The rows of a segment for a gradient [m, n] of each expert: kSegmentRowsSm90 where it has too few
// tiles to occupy the multiprocessors, else 0. The choice depends on the gradient's sizes alone,
// and segments begin at an expert's first row, so an expert's bits do not depend on other experts.
constexpr int64_t kSegmentRowsSm90 = 8192;
int64_t choose_weight_segment(int64_t m, int64_t n);

// How many segments `experts` with `rows` rows together have at most: all, and those of experts
// with two or more, which are held as partial sums.
struct SegmentSlots {
  int64_t all, held;
};
SegmentSlots segment_slots(int64_t rows, int64_t experts, int64_t segment_rows);
// Bytes of counters beside `held_tiles` tiles, and of partial sums and counters, for a gradient
// [m, n] of each expert.
int64_t counter_bytes(int64_t held_tiles);
int64_t segment_bytes(const SegmentSlots& slots, int64_t m, int64_t n);
// The workspace of a product of `rows` rows whose sums are cut, or not.
int64_t workspace_bytes(const SegmentsSm90& segments, int64_t rows, int64_t experts, int64_t m,
                        int64_t n);

// One kernel of a layer with what its launcher chooses, for people: `troupe doctor --recipe`.
struct Sm90Kernel {
  std::string_view name;  // as in moe_sm90.h
  int64_t length;         // of its sums; of weight gradients the mean over the experts
  Sm90Ring ring;
  MoeSm90Plan plan;
  int64_t segment = 0;  // rows after which a weight gradient's sum is cut; 0: it is whole
};
struct Sm90Layer {
  int64_t width, hidden, experts;
  int64_t rows;  // of all experts
};
// `trial`: with sums of weight gradients cut where choose_weight_segment() says so.
std::array<Sm90Kernel, 6> sm90_kernels(const Sm90Layer& layer, bool trial = false);
// "sums of 2048; tiles of 128 x 256, 4 slots of 64, starts spread over 38200 cycles from 16 waves on"
std::string to_text(const Sm90Kernel& kernel);

}  // namespace troupe
