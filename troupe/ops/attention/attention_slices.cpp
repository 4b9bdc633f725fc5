#include "troupe/ops/attention/attention_slices.h"

#include <algorithm>
#include <bit>
#include <map>
#include <tuple>
#include <utility>

#include "troupe/core/check.h"

namespace troupe {
namespace {

constexpr int64_t kShortest = 64;  // cuDNN's block of queries: shorter documents cost as much

int64_t power_of_two(int64_t n) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(n)));
}

int64_t rounded_up(int64_t n, int64_t to) {
  return (n + to - 1) / to * to;
}

int64_t padded_length(int64_t n) {
  return std::max(power_of_two(n), kShortest);
}

int64_t padded_bytes(int64_t queries, int64_t keys) {
  return attention_head_bytes(padded_length(queries), padded_length(keys));
}

std::vector<AttentionSegment> cut(const std::vector<AttentionSegment>& segments) {
  std::vector<AttentionSegment> out;
  for (const AttentionSegment& s : segments) {
    const bool causal = s.keys == s.past + s.rows;
    int64_t rows = s.rows;
    while (rows > kShortest && padded_bytes(rows, s.keys) > kAttentionBytes) rows = (rows + 1) / 2;
    for (int64_t i = 0; i < s.rows; i += rows) {
      const int64_t n = std::min(rows, s.rows - i), past = s.past + i;
      out.push_back({s.q + i, n, s.k, past, causal ? past + n : s.keys});
    }
  }
  return out;
}

int64_t largest_divisor(int64_t n, int64_t at_most) {
  int64_t d = std::min(n, at_most);
  while (n % d != 0) --d;
  return d;
}

}  // namespace

std::vector<SequenceGroup> groups_of(const std::vector<int64_t>& lengths) {
  std::vector<AttentionSegment> segments;
  int64_t start = 0;
  for (const int64_t length : lengths) {
    if (length > 0) segments.push_back({start, length, start, 0});
    start += length;
  }
  const bool alike = std::all_of(lengths.begin(), lengths.end(),
                                 [&](int64_t length) { return length == lengths[0]; });
  if (!alike || lengths.empty() || lengths[0] <= 1 ||  // cuDNN has no plan for one token
      attention_head_bytes(lengths[0], lengths[0]) > kAttentionBytes) {
    return groups_of(segments);
  }
  return {{lengths[0], lengths[0], true, AttentionMask::kCausal, segments,
           std::vector<int64_t>(segments.size(), 0)}};
}

std::vector<SequenceGroup> groups_of(const std::vector<AttentionSegment>& segments) {
  std::map<std::tuple<bool, int64_t, int64_t>, SequenceGroup> groups;
  std::vector<int64_t> ends;  // of each layer: where the keys of its last segment end
  for (const AttentionSegment& s : cut(segments)) {
    const bool causal = s.keys == s.past + s.rows;
    const int64_t length = padded_length(s.rows), keys = padded_length(s.keys);
    const auto [found, added] = groups.try_emplace({causal, length, keys});
    SequenceGroup& group = found->second;
    if (added) {
      const AttentionMask mask = causal ? AttentionMask::kCausal : AttentionMask::kNone;
      group = {length, keys, false, mask, {}, {}};
    }
    if (causal && s.past > 0) group.mask = AttentionMask::kCausalLast;
    const auto layer = std::ranges::find_if(ends, [&](int64_t end) { return end <= s.k; });
    group.segments.push_back(s);
    group.layers.push_back(layer - ends.begin());
    if (layer == ends.end()) {
      ends.push_back(s.k + s.keys);
    } else {
      *layer = s.k + s.keys;
    }
  }
  std::vector<SequenceGroup> out;
  for (auto& [key, group] : groups) out.push_back(std::move(group));
  return out;
}

int64_t layers_of(const std::vector<SequenceGroup>& groups) {
  int64_t out = 1;
  for (const SequenceGroup& group : groups) {
    out = std::max(out, 1 + *std::ranges::max_element(group.layers));
  }
  return out;
}

int64_t places(const SequenceGroup& group) {
  const auto n = static_cast<int64_t>(group.segments.size());
  return group.dense ? n : power_of_two(n);
}

int64_t attention_head_bytes(int64_t queries, int64_t keys) {
  return 2 * rounded_up(queries, 64) * rounded_up(keys, 128);
}

AttentionSlices attention_slices(int64_t sequences, int64_t head_bytes, int64_t heads,
                                 int64_t kv_heads, int64_t limit) {
  const int64_t group = heads / kv_heads;
  TROUPE_CHECK(head_bytes <= limit, "attention: a head needs", head_bytes, "bytes of", limit);
  if (sequences * heads * head_bytes <= limit / 2) return {sequences, heads, 1, 1};
  const int64_t in_flight = head_bytes <= limit / 2 ? 2 : 1;
  const int64_t fit = limit / in_flight / head_bytes;
  if (fit >= heads) {
    return {std::min(sequences, fit / heads), heads, 1, in_flight};
  }
  if (fit >= group) return {1, group * largest_divisor(kv_heads, fit / group), 1, in_flight};
  const int64_t part = largest_divisor(group, fit);
  return {1, part, group / part, in_flight};
}

}  // namespace troupe
