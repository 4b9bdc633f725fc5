// How attention by cuDNN (ops/attention/attention_cudnn) divides its sequences: into groups of like
// length, and the backward of a group into slices. Its repeatable backward writes dS, a number of
// two bytes for each query and key of every head: 2 GiB for four sequences of 4,096 tokens and 16
// heads. Slices of sequences and heads keep what is in flight to a limit. Two of half the limit run
// side by side: the last blocks of one leave the GPU half empty.
#pragma once

#include <cstdint>
#include <vector>

#include "troupe/ops/attention/attention_segment.h"
#include "troupe/ops/support/cudnn_attention.h"

namespace troupe {

constexpr int64_t kAttentionBytes = int64_t{512} << 20;  // of dS in flight
constexpr int64_t kMostLayers = 8;  // each holds as many bytes as the keys and values

// dS of one head of one sequence, in the blocks that cuDNN rounds it up to.
int64_t attention_head_bytes(int64_t queries, int64_t keys);

// Sequences of one call. One length for all, which are one behind the other: dense. Else segments
// of at most `length` queries and `keys` keys, powers of two, so that others find the same plan;
// fewer groups of more keys each take 1.04 to 1.08 of a backward's time (bench/attention, 2 ranks).
struct SequenceGroup {
  int64_t length, keys;
  bool dense;
  AttentionMask mask;
  std::vector<AttentionSegment> segments;
  std::vector<int64_t> layers;  // of each: which of the sums of its keys' gradients it adds to
};
// Sequences of these lengths, one after the other, that see their own keys.
std::vector<SequenceGroup> groups_of(const std::vector<int64_t>& lengths);
// Keys ascend. No two segments that share keys are of one layer. Each ends with its last query's
// own key or before the first's next one. If dS of a head exceeds kAttentionBytes, the queries
// are cut into enough segments that it does not.
std::vector<SequenceGroup> groups_of(const std::vector<AttentionSegment>& segments);
int64_t layers_of(const std::vector<SequenceGroup>& groups);

// Places for a group's sequences: of segments a power of two.
int64_t places(const SequenceGroup& group);

struct AttentionSlices {
  int64_t sequences, heads;  // of a slice; the last may have fewer sequences
  int64_t parts;             // heads < heads of a key head: slices that add to one key head
  int64_t in_flight;         // slices at a time, 1 or 2
};

// kv_heads divides heads. head_bytes <= limit.
AttentionSlices attention_slices(int64_t sequences, int64_t head_bytes, int64_t heads,
                                 int64_t kv_heads, int64_t limit = kAttentionBytes);

}  // namespace troupe
