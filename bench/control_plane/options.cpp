#include "bench/control_plane/options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

#include "troupe/core/check.h"

namespace troupe::control_plane {

const char* const kUsage =
    "control_plane --model NAME (--ranks N | --curve N,N,..) [phases] [faults] [limits]\n"
    "  --model NAME        a preset, or the beginning of its name: deepseek-v3, qwen3-235b, dbrx\n"
    "  --ranks N           ranks of the run; above 256, runs of 32 and 128 first predict what it "
    "takes\n"
    "                      whether a phase fits into this machine\n"
    "  --curve N,N,..      a run of each\n"
    "  --expert, --pipeline, --tensor, --context, --shard-ranks N     its mesh;\n"
    "                      without them one that takes so many ranks\n"
    "phases, after the start:\n"
    "  --save --load       one save; loads by a run of the same layout, and of --load-ranks M\n"
    "  --hour              an hour of heartbeats and four saves\n"
    "  --lose R,R,..       these ranks (3,8-15; host: the eight of the second host, host:H: of "
    "host "
    "H)\n"
    "                      end without a word, and a collective fails\n"
    "  --connections       descriptors and keys of whole Worlds (96 at most), a group's key at N\n"
    "faults:\n"
    "  --lose-store        the process that serves the store is killed: the launcher's\n"
    "  --first-serves      the store is rank 0's and ends with it, so with --lose 0\n"
    "  --late EACH:MS      each so many-th rank begins so much later (20:60000: 5 % by a minute)\n"
    "  --slow HOST:MS      the eight ranks of a host wait so long before each request\n"
    "  --beat SECONDS      from one heartbeat to the next (1): shorter ones end a loss sooner\n"
    "limits:\n"
    "  --memory GIB, --seconds S    of a phase; what exceeds them is computed, and marked so\n"
    "  --dir FOLDER        for the checkpoints\n";

namespace {

int64_t number_from(const std::string& text, const std::string& word) {
  int64_t out = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error == std::errc() && end == text.data() + text.size() && out >= 0) return out;
  fail(Code::kBadValue, word, "needs a number, not '" + text + "'");
}

// "3,8-15"
std::vector<int64_t> numbers_from(const std::string& text, const std::string& word) {
  std::vector<int64_t> out;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string part = text.substr(at, end - at);
    const size_t dash = part.find('-');
    const int64_t first = number_from(part.substr(0, dash), word);
    const int64_t last =
        dash == std::string::npos ? first : number_from(part.substr(dash + 1), word);
    for (int64_t i = first; i <= last; ++i) out.push_back(i);
    at = end + 1;
  }
  std::ranges::sort(out);
  out.erase(std::ranges::unique(out).begin(), out.end());
  return out;
}

// "3,host:2": host 2 is ranks 16 to 23.
std::vector<int64_t> lost_from(const std::string& text, const std::string& word) {
  constexpr std::string_view kHost = "host";
  std::vector<int64_t> out;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string part = text.substr(at, end - at);
    const bool is_host = part.starts_with(kHost);
    std::vector<int64_t> some;
    if (part == kHost) {
      some = ranks_of_host(1);
    } else if (is_host && part[kHost.size()] == ':') {
      some = ranks_of_host(number_from(part.substr(kHost.size() + 1), word));
    } else {
      some = numbers_from(part, word);
    }
    out.insert(out.end(), some.begin(), some.end());
    at = end + 1;
  }
  std::ranges::sort(out);
  out.erase(std::ranges::unique(out).begin(), out.end());
  return out;
}

// "0.3"
std::chrono::milliseconds seconds_from(const std::string& text, const std::string& word) {
  double seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  constexpr double kLeast = 0.01, kMost = 3600;
  const bool is_number = error == std::errc() && end == text.data() + text.size();
  if (!is_number || !(seconds >= kLeast && seconds <= kMost)) {
    fail(Code::kBadValue, word, "needs 0.01 to 3600 seconds, not '" + text + "'");
  }
  return std::chrono::milliseconds(std::llround(1000 * seconds));
}

// "20:3000"
std::pair<int64_t, std::chrono::milliseconds> pair_from(const std::string& text,
                                                        const std::string& word) {
  const size_t colon = text.find(':');
  if (colon == std::string::npos) fail(Code::kBadValue, word, "needs two numbers, as 20:3000");
  return {number_from(text.substr(0, colon), word),
          std::chrono::milliseconds(number_from(text.substr(colon + 1), word))};
}

// Small worlds tell what a large one takes.
std::vector<int64_t> with_small_ones(int64_t ranks) {
  constexpr int64_t kAlone = 256;
  if (ranks <= kAlone) return {ranks};
  return {32, 128, ranks};
}

void check(const Options& options) {
  if (options.ranks.empty()) fail(Code::kBadValue, "--ranks", "is missing\n" + std::string(kUsage));
  const int64_t least = options.ranks.front();
  if (least < 2) fail(Code::kBadValue, "--ranks", "must be 2 or more");
  if (options.load && !options.save && options.dir.empty()) {
    fail(Code::kBadValue, "--load", "needs --save, or a --dir that holds a step");
  }
  if (!options.lose.empty() && options.lose.back() >= least) {
    fail(Code::kBadValue, "--lose", "rank", options.lose.back(), "is none of", least);
  }
}

}  // namespace

Options options_from(const std::vector<std::string>& words) {
  Options out;
  constexpr int64_t kGiB = int64_t{1} << 30;
  const std::map<std::string, std::function<void()>> alone = {
      {"--save", [&] { out.save = true; }},
      {"--load", [&] { out.load = true; }},
      {"--hour", [&] { out.hour = true; }},
      {"--connections", [&] { out.connections = true; }},
      {"--lose-store", [&] { out.lose_store = true; }},
      {"--first-serves", [&] { out.first_serves = true; }}};
  using Take = std::function<void(const std::string& word, const std::string& text)>;
  const auto number = [](int64_t& to) -> Take {
    return
        [&to](const std::string& word, const std::string& text) { to = number_from(text, word); };
  };
  const std::map<std::string, Take> with_value = {
      {"--model", [&](auto&, const std::string& text) { out.model = text; }},
      {"--dir", [&](auto&, const std::string& text) { out.dir = text; }},
      {"--ranks",
       [&](auto& word, auto& text) { out.ranks = with_small_ones(number_from(text, word)); }},
      {"--curve", [&](auto& word, auto& text) { out.ranks = numbers_from(text, word); }},
      {"--lose", [&](auto& word, auto& text) { out.lose = lost_from(text, word); }},
      {"--beat", [&](auto& word, auto& text) { out.beat = seconds_from(text, word); }},
      {"--load-ranks", number(out.load_ranks)},
      {"--expert", number(out.mesh.expert)},
      {"--pipeline", number(out.mesh.pipeline)},
      {"--tensor", number(out.mesh.tensor)},
      {"--context", number(out.mesh.context)},
      {"--shard-ranks", number(out.mesh.shard)},
      {"--memory", [&](auto& word, auto& text) { out.memory = kGiB * number_from(text, word); }},
      {"--seconds",
       [&](auto& word, auto& text) { out.seconds = static_cast<double>(number_from(text, word)); }},
      {"--late",
       [&](auto& word, auto& text) {
         std::tie(out.faults.late_each, out.faults.late) = pair_from(text, word);
       }},
      {"--slow", [&](auto& word, auto& text) {
         std::tie(out.faults.slow_host, out.faults.slow) = pair_from(text, word);
       }}};
  for (size_t i = 0; i < words.size(); ++i) {
    if (const auto found = alone.find(words[i]); found != alone.end()) {
      found->second();
      continue;
    }
    const auto found = with_value.find(words[i]);
    if (found == with_value.end()) {
      fail(Code::kBadValue, words[i], "is no option\n" + std::string(kUsage));
    }
    if (++i == words.size()) fail(Code::kBadValue, words[i - 1], "needs a value");
    found->second(words[i - 1], words[i]);
  }
  check(out);
  out.lose_store |= out.first_serves && out.loses_first();
  return out;
}

}  // namespace troupe::control_plane
