#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/core/file/hash.h"
#include "troupe/distributed/group/rank_list.h"
#include "troupe/distributed/parallel_state/parallel_state.h"
#include "troupe/distributed/world/store_key.h"

namespace troupe {
namespace {

constexpr std::chrono::milliseconds kReadTime{60'000};

void check_equal(const std::string& what, const std::vector<std::string>& all) {
  std::map<std::string, std::vector<int64_t>> who;
  for (size_t r = 0; r < all.size(); ++r) who[all[r]].push_back(static_cast<int64_t>(r));
  if (who.size() == 1) return;
  std::string list;
  for (const auto& [value, ranks] : who) {
    if (!list.empty()) list += "; ";
    list.append("rank(s) ").append(rank_list(ranks)).append(": ").append(value);
  }
  fail(Code::kRanksDiffer, what, "differs between ranks - " + list);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) out.push_back(line);
  return out;
}

}  // namespace

void require_equal(World& world, const std::string& what, const std::string& text) {
  check_equal(what, world.all_gather_texts(what, text));
}

void require_equal_lines(World& world, const std::string& what, const std::string& lines) {
  const std::vector<std::string> hashes =
      world.all_gather_texts(what, hex(hash128(std::as_bytes(std::span(lines)))));
  if (std::ranges::count(hashes, hashes[0]) == std::ssize(hashes)) return;
  const std::string key = short_name("lines of the " + what, kLongestName);
  if (world.rank() == 0) world.store().post(key, lines);
  const std::vector<std::string> own = lines_of(lines),
                                 first = lines_of(world.store().read(key, kReadTime));
  const auto line = [&](size_t i) { return i < own.size() ? own[i] : "nothing more"; };
  size_t at = 0;
  while (at < first.size() && line(at) == first[at]) ++at;
  if (world.rank() == 0) at = std::numeric_limits<int32_t>::max();
  for (const std::string& of_rank : world.all_gather_texts(key, std::to_string(at))) {
    at = std::min(at, static_cast<size_t>(number_of_peer(of_rank, "the number of a line")));
  }
  const std::string text = line(at);
  const size_t begin = std::min(text.size(), text.find_first_not_of(' '));
  check_equal(what, world.all_gather_texts(key, text.substr(begin)));
  check_equal(what, hashes);
}

void require_equal_values(World& world, const std::string& what, const NamedValues& values) {
  std::string mine;
  for (const auto& [name, value] : values) mine += hex(hash64(name + '=' + value));
  const std::vector<std::string> all = world.all_gather_texts(what, mine);
  constexpr size_t kDigits = 16;
  const size_t shortest = std::ranges::min(all, {}, &std::string::size).size();
  size_t at = shortest;  // of the first character that differs, on any rank
  for (const std::string& hashes : all) {
    const auto end = std::ranges::mismatch(all[0], hashes).in1;
    at = std::min(at, static_cast<size_t>(end - all[0].begin()));
  }
  if (at < shortest) {
    const auto& [name, value] = values[at / kDigits];
    check_equal(name, world.all_gather_texts(what + ", the first that differs", value));
  }
  check_equal(what, all);
}

}  // namespace troupe
