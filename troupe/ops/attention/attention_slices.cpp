#include "troupe/ops/attention/attention_slices.h"

#include <algorithm>
#include <bit>
#include <map>

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

int64_t largest_divisor(int64_t n, int64_t at_most) {
  int64_t d = std::min(n, at_most);
  while (n % d != 0) --d;
  return d;
}

}  // namespace

std::vector<SequenceGroup> groups_of(const std::vector<int64_t>& lengths) {
  const bool alike = std::all_of(lengths.begin(), lengths.end(),
                                 [&](int64_t length) { return length == lengths[0]; });
  const bool dense =
      alike && !lengths.empty() && lengths[0] > 1;  // cuDNN has no plan for one token
  std::map<int64_t, SequenceGroup> groups;
  int64_t start = 0;
  for (const int64_t length : lengths) {
    if (length == 0) continue;
    const int64_t of = dense ? length : std::max(power_of_two(length), kShortest);
    SequenceGroup& group = groups.try_emplace(of, SequenceGroup{of, dense, {}, {}}).first->second;
    group.starts.push_back(start);
    group.lengths.push_back(length);
    start += length;
  }
  std::vector<SequenceGroup> out;
  for (auto& [length, group] : groups) out.push_back(std::move(group));
  return out;
}

int64_t places(const SequenceGroup& group) {
  const auto n = static_cast<int64_t>(group.starts.size());
  return group.dense ? n : power_of_two(n);
}

int64_t attention_head_bytes(int64_t length) {
  return 2 * rounded_up(length, 64) * rounded_up(length, 128);
}

AttentionSlices attention_slices(int64_t sequences, int64_t length, int64_t heads, int64_t kv_heads,
                                 int64_t limit) {
  const int64_t bytes = attention_head_bytes(length), group = heads / kv_heads;
  TROUPE_CHECK(bytes <= limit, "attention: a head of", length, "tokens needs", bytes, "bytes of",
               limit);
  if (sequences * heads * bytes <= limit / 2) return {sequences, heads, 1, 1};
  const int64_t in_flight = bytes <= limit / 2 ? 2 : 1;
  const int64_t fit = limit / in_flight / bytes;
  if (fit >= heads) {
    return {std::min(sequences, fit / heads), heads, 1, in_flight};
  }
  if (fit >= group) return {1, group * largest_divisor(kv_heads, fit / group), 1, in_flight};
  const int64_t part = largest_divisor(group, fit);
  return {1, part, group / part, in_flight};
}

}  // namespace troupe
