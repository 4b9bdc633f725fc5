// How attention by cuDNN (ops/attention/attention_cudnn) divides its sequences: into groups of like
// length, and the backward of a group into slices. Its repeatable backward writes dS, a number of
// two bytes for each query and key of every head: 2 GiB for four sequences of 4,096 tokens and 16
// heads. Slices of sequences and heads keep what is in flight to a limit. Two of half the limit run
// side by side: the last blocks of one leave the GPU half empty.
#pragma once

#include <cstdint>
#include <vector>

namespace troupe {

// Sequences of one call. One length for all, which lie one behind the other: dense. Else documents
// of at most `length` tokens, a power of two, so that other documents find the same plan.
struct SequenceGroup {
  int64_t length;
  bool dense;
  std::vector<int64_t> starts, lengths;  // in tokens
};
std::vector<SequenceGroup> groups_of(const std::vector<int64_t>& lengths);

// Places for a group's sequences: of documents a power of two.
int64_t places(const SequenceGroup& group);

struct AttentionSlices {
  int64_t sequences, heads;  // of a slice; the last may have fewer sequences
  int64_t parts;             // heads < heads of a key head: slices that add to one key head
  int64_t in_flight;         // slices at a time, 1 or 2
};

constexpr int64_t kAttentionBytes = int64_t{512} << 20;  // of dS in flight

// dS of one head of one sequence, in the blocks that cuDNN rounds it up to.
int64_t attention_head_bytes(int64_t length);

// kv_heads divides heads. attention_head_bytes(length) <= limit.
AttentionSlices attention_slices(int64_t sequences, int64_t length, int64_t heads, int64_t kv_heads,
                                 int64_t limit = kAttentionBytes);

}  // namespace troupe
