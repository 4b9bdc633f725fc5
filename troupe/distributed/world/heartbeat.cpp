#include "troupe/distributed/world/heartbeat.h"

#include <algorithm>
#include <sstream>
#include <string_view>

#include "troupe/core/text/utf8.h"

namespace troupe {
namespace {

constexpr size_t kMostSeen = 8;

}  // namespace

std::string beat_text(const Beat& b) {
  std::ostringstream os;
  os.precision(17);
  os << b.count << ' ' << b.time << ' ' << b.status.done << ' ' << static_cast<int>(b.status.phase)
     << ' ' << b.status.unit << ' ' << b.status.units << ' ' << b.status.microbatch << ' '
     << b.status.stage << ' ' << b.status.stages << ' ' << b.age << ' ' << b.waiting << ' '
     << b.lost;
  const size_t seen = std::min(b.seen.size(), kMostSeen);
  os << ' ' << seen;
  for (size_t i = 0; i < seen; ++i) {
    os << ' ' << b.seen[i].rank << ' ' << static_cast<int>(b.seen[i].how);
  }
  if (!b.words.empty()) os << ' ' << to_text(b.code) << ' ' << within_words(b.words);
  return os.str();
}

std::optional<Beat> beat_of(const std::string& text) {
  Beat b;
  int phase = 0;
  size_t seen = 0;
  std::istringstream in(text);
  in >> b.count >> b.time >> b.status.done >> phase >> b.status.unit >> b.status.units >>
      b.status.microbatch >> b.status.stage >> b.status.stages >> b.age >> b.waiting >> b.lost >>
      seen;
  if (!in || seen > kMostSeen || phase < 0 || phase > static_cast<int>(Phase::kExit)) return {};
  b.status.phase = static_cast<Phase>(phase);
  for (size_t i = 0; i < seen; ++i) {
    int how = 0;
    SeenRank& one = b.seen.emplace_back();
    in >> one.rank >> how;
    if (!in || how < 0 || how > static_cast<int>(Seen::kStopped)) return {};
    one.how = static_cast<Seen>(how);
  }
  std::string code;
  if (in >> code) {
    b.code = code_of(code).value_or(Code::kBrokenContract);
    in.get();  // the blank before the words
    b.words.assign(std::istreambuf_iterator<char>(in), {});
  }
  return b;
}

std::string within_words(const std::string& text) {
  if (text.size() <= kLongestWords) return text;
  const std::string_view begin = std::string_view(text).substr(0, kLongestWords);
  return std::string(begin.substr(0, begin.size() - incomplete_utf8_tail(begin))) + " ...";
}

}  // namespace troupe
