#include "troupe/distributed/world/verdict.h"

#include <cstddef>
#include <string>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/distributed/world/heartbeat.h"
#include "troupe/distributed/world/key_value_store.h"

namespace troupe {
namespace {

constexpr const char* kWhose = "the first rank that ended";

}  // namespace

std::string failed_text(int64_t rank, int64_t size, const std::string& words) {
  return "rank " + std::to_string(rank) + " of " + std::to_string(size) +
         " failed: " + within_words(words);
}

std::string to_text(const FirstEnd& first) {
  return first.verdict ? to_text(*first.verdict) : std::to_string(first.rank);
}

std::string to_text(const Verdict& v) {
  const RankStatus& s = v.status;
  std::vector<std::string> parts;
  for (const int64_t n :
       {v.by, v.rank, s.done, static_cast<int64_t>(s.phase), int64_t{s.unit}, int64_t{s.units},
        int64_t{s.microbatch}, int64_t{s.stage}, int64_t{s.stages}}) {
    parts.push_back(std::to_string(n));
  }
  parts.push_back(to_text(v.code));
  parts.push_back(to_text(v.cause));
  parts.push_back(v.causes);
  return std::to_string(v.rank >= 0 ? v.rank : v.by) + ' ' + joined(parts);
}

FirstEnd first_end_of(const std::string& text) {
  const size_t end = text.find(' ');
  FirstEnd out{.rank = first_end_rank(text)};
  if (end == std::string::npos) return out;
  const std::vector<std::string> parts = parted(text.substr(end + 1));
  constexpr size_t kParts = 12;
  if (parts.size() != kParts) {
    fail(Code::kRankLost, "the store", "holds what no rank wrote, instead of", kWhose);
  }
  size_t at = 0;
  const auto number = [&] { return number_of_peer(parts[at++], kWhose); };
  const auto small = [&] { return static_cast<int>(number()); };
  Verdict v;
  v.by = number();
  v.rank = number();
  v.status.done = number();
  const int64_t phase = number();
  if (phase < 0 || phase > static_cast<int64_t>(Phase::kExit)) {
    fail(Code::kRankLost, "the store", "holds what no rank wrote, instead of a phase:", phase);
  }
  v.status.phase = static_cast<Phase>(phase);
  v.status.unit = small();
  v.status.units = small();
  v.status.microbatch = small();
  v.status.stage = small();
  v.status.stages = small();
  v.code = code_of(parts[at++]).value_or(Code::kRankLost);
  v.cause = code_of(parts[at++]).value_or(Code::kBrokenContract);
  v.causes = parts[at++];
  out.verdict = v;
  return out;
}

}  // namespace troupe
