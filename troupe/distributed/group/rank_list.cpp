#include "troupe/distributed/group/rank_list.h"

namespace troupe {
namespace {

constexpr size_t kShortestRun = 5;

}  // namespace

std::string rank_list(const std::vector<int64_t>& ranks) {
  std::string out;
  const auto add = [&](const std::string& text) {
    out.append(out.empty() ? "" : ", ").append(text);
  };
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (end - i >= kShortestRun) {
      add(std::to_string(ranks[i]) + " to " + std::to_string(ranks[end - 1]));
      i = end;
    }
    for (; i < end; ++i) add(std::to_string(ranks[i]));
  }
  return out;
}

}  // namespace troupe
