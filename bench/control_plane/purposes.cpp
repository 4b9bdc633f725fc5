#include "bench/control_plane/purposes.h"

#include <algorithm>
#include <array>
#include <initializer_list>

#include "troupe/core/text/readable.h"

namespace troupe::control_plane {
namespace {

constexpr std::string_view kRank = "each rank", kOne = "the first that lost another",
                           kStore = "the store", kTree = "its 16 children, rank 0",
                           kTexts = "texts of all, up and down a tree of width 16",
                           kOfTexts = "3 N, and looks until they are there",
                           kText = "as long as the texts that differ; 0.5 MiB at most",
                           kVerdict = "up to 4 KiB", kBeat = "60 to 150; 4 KiB with why it ends";

constexpr auto kPurposes = std::to_array<Purpose>({
    {.what = "a connection for requests, one for the watch",
     .who = kRank,
     .whom = kStore,
     .when = "at the start",
     .requests = "4 N",
     .value = "none",
     .phase = "start",
     .use = Use::kConnect},
    {.what = "rendezvous: says that it is there, reads the list of all",
     .who = kRank,
     .whom = "rank 0, which writes the list",
     .when = "at the start",
     .requests = "3 N, and looks until all are there",
     .value = "60; the list 65 N",
     .phase = "start",
     .use = Use::kRendezvous},
    {.what = kTexts,
     .who = kRank,
     .whom = kTree,
     .when = "each agreement before training",
     .requests = kOfTexts,
     .value = kText,
     .phase = "start",
     .use = Use::kTexts},
    {.what = kTexts,
     .who = kRank,
     .whom = kTree,
     .when = "several times a save",
     .requests = kOfTexts,
     .value = kText,
     .phase = "save",
     .use = Use::kTexts},
    {.what = kTexts,
     .who = kRank,
     .whom = kTree,
     .when = "seven times a load, and more where a rank sends over 64 MiB",
     .requests = kOfTexts,
     .value = kText,
     .phase = "load",
     .use = Use::kTexts},
    {.what = "writes its heartbeat, `beat/r`",
     .who = kRank,
     .whom = kStore,
     .when = "each second",
     .requests = "N",
     .value = kBeat,
     .phase = "hour",
     .use = Use::kBeat},
    {.what = "looks whether a rank ended, `first end`",
     .who = kRank,
     .whom = kStore,
     .when = "each second, and with each look for texts",
     .requests = "N",
     .value = "none, or a verdict: up to 4 KiB",
     .phase = "hour",
     .use = Use::kEndLook},
    {.what = "claims `first end`, and gets who was first or the verdict",
     .who = kRank,
     .whom = kStore,
     .when = "once, after a failed collective",
     .requests = "N",
     .value = "4, or a verdict",
     .phase = "loss",
     .use = Use::kEndClaim},
    {.what = "reads the heartbeats of all",
     .who = kOne,
     .whom = kStore,
     .when = "about ten times in 3.2 s, until one rank's state is certain",
     .requests = "3 for each 1,024 ranks",
     .value = kBeat,
     .phase = "loss",
     .use = Use::kBeatsLook},
    {.what = "writes the verdict at `first end`",
     .who = kOne,
     .whom = kStore,
     .when = "once, after a look whether there is one",
     .requests = "1",
     .value = kVerdict,
     .phase = "loss",
     .use = Use::kVerdict},
    {.what = "claims `reporter/n`, to look itself",
     .who = "about log2 N ranks, and those of the same machine",
     .whom = kStore,
     .when = "where who looked is gone",
     .requests = "about log2 N",
     .value = "4",
     .phase = "loss",
     .use = Use::kFollow},
    {.what = "writes why it ends into its heartbeat, claims `first end` with its own verdict",
     .who = "a rank that ends by itself",
     .whom = kStore,
     .when = "once",
     .requests = "2",
     .value = kVerdict},
    {.what = "waits for `bye/r` of the others",
     .who = "rank 0, where it serves the store",
     .whom = "each rank, which writes it",
     .when = "at the end, for 2 s at most",
     .requests = "N, and 1 for each 1,024 ranks each 10 to 360 ms",
     .value = "0"},
});

std::string line_of(std::initializer_list<std::string_view> cells) {
  std::string out = "|";
  for (const std::string_view cell : cells) out.append(" ").append(cell).append(" |");
  return out;
}

}  // namespace

std::span<const Purpose> purposes() {
  return kPurposes;
}

std::string cells_of(const Purpose& p) {
  return line_of({p.what, p.who, p.whom, p.when, p.requests, p.value});
}

std::string purpose_table(const std::vector<Row>& rows, int64_t ranks) {
  const std::string of = ", N = " + grouped(ranks);
  std::string out = line_of({"what", "who", "of whom", "how often", "requests of N ranks",
                             "bytes of a value", "counted in", "requests" + of, "bytes" + of}) +
                    "\n|---|---|---|---|---|---|---|--:|--:|\n";
  for (const Purpose& p : purposes()) {
    const auto row = std::ranges::find_if(
        rows, [&](const Row& r) { return r.ranks == ranks && r.phase == p.phase; });
    out += cells_of(p);
    if (row == rows.end()) {
      out += "  |  |  |\n";
      continue;
    }
    const Asked& asked = row->all.of(p.use);
    const std::string phase = "one " + row->phase + (row->computed.empty() ? "" : ", computed");
    out += line_of({phase, grouped(asked.requests), readable_bytes(asked.bytes)}).substr(1) + '\n';
  }
  return out;
}

}  // namespace troupe::control_plane
