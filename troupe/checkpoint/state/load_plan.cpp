#include "troupe/checkpoint/state/load_plan.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "troupe/checkpoint/files/shard_writer.h"
#include "troupe/core/check.h"
#include "troupe/core/file/hash.h"

namespace troupe {
namespace {

using RankCut = LoadPlan::Cut;
using StoredSlice = LoadPlan::Slice;

constexpr int64_t kTurn = int64_t{64} << 20;

enum Tag : uint64_t { kLine, kWant, kStored, kRead, kUnused };

// Numbers, seven bits a byte, and texts.
void pack(std::string& out, uint64_t x) {
  for (; x >= 0x80; x >>= 7) out += static_cast<char>(x | 0x80);
  out += static_cast<char>(x);
}
void pack(std::string& out, std::string_view text) {
  pack(out, text.size());
  out += text;
}
void pack(std::string& out, const Sizes& sizes) {
  pack(out, sizes.size());
  for (const int64_t x : sizes) pack(out, static_cast<uint64_t>(x));
}
// Without the size of the tensor, which who reads it knows.
void pack(std::string& out, const Box& box) {
  pack(out, box.offset);
  pack(out, box.size);
}
void pack(std::string& out, const StoredSlice& slice) {
  pack(out, slice.shard);
  pack(out, slice.box);
  pack(out, std::string_view(slice.hash));
}

class Reading {
 public:
  explicit Reading(std::string_view text) : left_(text) {}

  bool done() const { return left_.empty(); }
  uint64_t number() {
    uint64_t out = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (left_.empty()) break;
      const auto byte = static_cast<uint8_t>(left_.front());
      left_.remove_prefix(1);
      out |= uint64_t{byte & 0x7FU} << shift;
      if (byte < 0x80) return out;
    }
    refuse();
  }
  uint64_t below(uint64_t limit) {
    const uint64_t out = number();
    if (out >= limit) refuse();
    return out;
  }
  std::string text() {
    const uint64_t size = below(left_.size() + 1);
    const std::string out(left_.substr(0, size));
    left_.remove_prefix(size);
    return out;
  }
  Sizes sizes() {
    Sizes out(below(left_.size() + 1));
    for (int64_t& x : out) x = static_cast<int64_t>(number());
    return out;
  }
  Element element() { return static_cast<Element>(below(std::size(kElements))); }
  Box box(const Sizes& global) {
    Box out;
    out.global = global;
    out.offset = sizes();
    out.size = sizes();
    if (!is_inside(out)) refuse();
    return out;
  }
  StoredSlice slice(const std::string& name, Element element, const Sizes& global) {
    StoredSlice out;
    out.shard = number();
    out.box = box(global);
    out.hash = text();
    out.stored_name = stored_name(TensorBox{name, element, out.box});
    return out;
  }
  [[noreturn]] static void refuse() {
    fail(Code::kRankLost, "the plan of a load", "a rank sent what no rank writes");
  }

 private:
  std::string_view left_;
};

size_t home_of(std::string_view name, size_t size) {
  return hash64(name) % size;
}

// The slices of a tensor by their first row: of thousands, those that a box may touch.
class ByFirstRow {
 public:
  explicit ByFirstRow(const std::vector<StoredSlice>& slices)
      : slices_(slices), order_(slices.size()) {
    std::iota(order_.begin(), order_.end(), size_t{0});
    std::ranges::sort(order_, {}, [&](size_t i) { return begin_of(slices_[i].box); });
    int64_t last = 0;
    for (const size_t i : order_) {
      ends_.push_back(last = std::max(last, begin_of(slices_[i].box) + rows_of(slices_[i].box)));
    }
  }

  template <class F>
  void for_each_near(const Box& box, F&& f) const {
    const int64_t from = begin_of(box), to = from + rows_of(box);
    auto i = static_cast<size_t>(std::ranges::upper_bound(ends_, from) - ends_.begin());
    for (; i < order_.size() && begin_of(slices_[order_[i]].box) < to; ++i) f(order_[i]);
  }

 private:
  static int64_t begin_of(const Box& box) { return box.offset.empty() ? 0 : box.offset[0]; }
  static int64_t rows_of(const Box& box) { return box.size.empty() ? 1 : box.size[0]; }

  const std::vector<StoredSlice>& slices_;
  std::vector<size_t> order_;
  std::vector<int64_t> ends_;  // the largest so far
};

// What each want has of each slice, by rank and want.
std::vector<std::vector<RankCut>> cuts_of(const WholeTensor& tensor,
                                          const std::vector<RankCut>& wants) {
  const ByFirstRow slices(tensor.slices);
  std::vector<std::vector<RankCut>> out(tensor.slices.size());
  for (const RankCut& want : wants) {
    if (want.box.global != tensor.global) continue;
    slices.for_each_near(want.box, [&](size_t i) {
      Box part;
      if (!overlap(tensor.slices[i].box, want.box, part)) return;
      out[i].push_back({want.rank, want.want, std::move(part)});
    });
  }
  return out;
}

// Takes one text of a home; `parts` are of the wants' number.
void take_answer(LoadPlan& plan, std::vector<LoadPlan::Read>& reads, const std::vector<Want>& wants,
                 std::string_view text) {
  for (Reading in(text); !in.done();) {
    const auto tag = in.number();
    if (tag == kUnused) {
      LoadPlan::Unused unused;
      unused.name = in.text();
      unused.element = in.element();
      unused.global = in.sizes();
      plan.unused.push_back(std::move(unused));
      continue;
    }
    if (tag != kStored && tag != kRead) Reading::refuse();
    const size_t want = in.below(wants.size());
    LoadPlan::Part& part = plan.parts[want];
    if (tag == kStored) {
      part.stored = true;
      part.based = in.below(2) == 1;
      part.element = in.element();
      part.global = in.sizes();
      part.cuts = in.number();
      for (uint64_t left = in.number(); left > 0; --left) {
        part.alone.push_back(in.slice(wants[want].name, part.element, part.global));
      }
      continue;
    }
    LoadPlan::Read read;
    read.want = want;
    read.slice = in.slice(wants[want].name, part.element, wants[want].box.global);
    for (uint64_t left = in.number(); left > 0; --left) {
      RankCut cut;
      cut.rank = static_cast<int>(in.number());
      cut.want = in.number();
      cut.box = in.box(wants[want].box.global);
      read.cuts.push_back(std::move(cut));
    }
    reads.push_back(std::move(read));
  }
}

}  // namespace

std::vector<size_t> share_of(const std::vector<ShardInfo>& shards, int rank, int size) {
  // A file of no bytes counts as one: it is read too.
  const auto bytes_of = [](const ShardInfo& shard) {
    return static_cast<double>(std::max<int64_t>(shard.index_bytes, 1));
  };
  double total = 0, before = 0;
  for (const ShardInfo& shard : shards) total += bytes_of(shard);
  std::vector<size_t> out;
  for (size_t i = 0; i < shards.size(); ++i) {
    const double middle = before + bytes_of(shards[i]) / 2;
    before += bytes_of(shards[i]);
    if (std::min(static_cast<int>(middle / total * size), size - 1) == rank) out.push_back(i);
  }
  return out;
}

std::vector<PlacedSlice> read_share(const std::string& folder, const std::vector<ShardInfo>& shards,
                                    int rank, int size) {
  std::vector<PlacedSlice> out;
  for (const size_t shard : share_of(shards, rank, size)) {
    int64_t at = 0;
    for (StoredTensor& stored : read_index(folder, shards[shard])) {
      const int64_t bytes = stored.tensor.bytes();
      out.push_back({shard, std::exchange(at, at + bytes), std::move(stored)});
    }
  }
  return out;
}

TextsOfRanks ask(const std::vector<PlacedSlice>& lines, const std::vector<Want>& wants, int size) {
  TextsOfRanks out(static_cast<size_t>(size));
  for (const PlacedSlice& line : lines) {
    const TensorBox& t = line.stored.tensor;
    std::string& to = out[home_of(t.name, out.size())];
    pack(to, kLine);
    pack(to, std::string_view(t.name));
    pack(to, static_cast<uint64_t>(t.element));
    pack(to, t.box.global);
    pack(to, t.box);
    pack(to, line.shard);
    pack(to, static_cast<uint64_t>(line.at));
    pack(to, std::string_view(line.stored.hash));
  }
  for (size_t i = 0; i < wants.size(); ++i) {
    std::string& to = out[home_of(wants[i].name, out.size())];
    pack(to, kWant);
    pack(to, std::string_view(wants[i].name));
    pack(to, i);
    pack(to, wants[i].box.global);
    pack(to, wants[i].box);
  }
  return out;
}

TensorHome::TensorHome(std::string folder, const std::vector<ShardInfo>& shards, int size)
    : folder_(std::move(folder)), shards_(shards), size_(size) {
  std::map<std::string, std::set<int>> writers;
  for (const ShardInfo& shard : shards) writers[shard.home.folder].insert(writer_of(shard));
  for (const auto& [home, ranks] : writers) {
    by_writer_[home] = 4 * std::ssize(ranks) > 3 * static_cast<int64_t>(size);
  }
}

void TensorHome::take(const TextsOfRanks& asked) {
  for (size_t rank = 0; rank < asked.size(); ++rank) {
    for (Reading in(asked[rank]); !in.done();) {
      const uint64_t tag = in.number();
      std::string name = in.text();
      if (tag == kWant) {
        RankCut want;
        want.rank = static_cast<int>(rank);
        want.want = in.number();
        want.box = in.box(in.sizes());
        wants_[std::move(name)].push_back(std::move(want));
        continue;
      }
      if (tag != kLine) Reading::refuse();
      StoredTensor stored;
      stored.tensor.element = in.element();
      stored.tensor.box = in.box(in.sizes());
      const size_t shard = in.below(shards_.size());
      const auto at = static_cast<int64_t>(in.number());
      stored.hash = in.text();
      stored.tensor.name = std::move(name);
      add_slice(table_, stored, {shard, at}, folder_, shards_[shard]);
    }
  }
  require_covered(table_, folder_);
}

int TensorHome::reader_of(const std::vector<RankCut>& cuts, size_t shard, int64_t at) const {
  std::vector<int> ranks;
  for (const RankCut& cut : cuts) {
    if (ranks.empty() || ranks.back() != cut.rank) ranks.push_back(cut.rank);
  }
  const int writer = writer_of(shards_[shard]);
  if (by_writer_.at(shards_[shard].home.folder) && std::ranges::binary_search(ranks, writer))
    return writer;
  const std::string turn = shards_[shard].file + '/' + std::to_string(at / kTurn);
  return ranks[hash64(turn) % ranks.size()];
}

void TensorHome::answer_tensor(const WholeTensor& tensor, const std::string& name,
                               TextsOfRanks& answers) const {
  const std::vector<RankCut>& wants = wants_.find(name)->second;
  using Key = std::pair<int, size_t>;  // rank, want
  std::map<Key, std::vector<size_t>> alone;
  std::map<Key, size_t> shared;
  std::string reads;
  const std::vector<std::vector<RankCut>> cuts = cuts_of(tensor, wants);
  std::vector<std::pair<int, size_t>> read_by;  // rank, slice
  for (size_t i = 0; i < cuts.size(); ++i) {
    if (cuts[i].empty()) continue;
    if (cuts[i].size() == 1) {
      alone[{cuts[i][0].rank, cuts[i][0].want}].push_back(i);
      continue;
    }
    for (const RankCut& cut : cuts[i]) ++shared[{cut.rank, cut.want}];
    read_by.emplace_back(reader_of(cuts[i], tensor.slices[i].shard, tensor.slices[i].at), i);
  }
  for (const RankCut& want : wants) {
    std::string& to = answers[static_cast<size_t>(want.rank)];
    pack(to, kStored);
    pack(to, want.want);
    pack(to, uint64_t{tensor.depth > 0});
    pack(to, static_cast<uint64_t>(tensor.element));
    pack(to, tensor.global);
    pack(to, shared[{want.rank, want.want}]);
    const std::vector<size_t>& own = alone[{want.rank, want.want}];
    pack(to, own.size());
    for (const size_t i : own) pack(to, tensor.slices[i]);
  }
  // Behind all that is said of the wants: a read is of a want whose type is known.
  for (const auto& [rank, i] : read_by) {
    std::string& to = answers[static_cast<size_t>(rank)];
    pack(to, kRead);
    pack(to, std::ranges::find(cuts[i], rank, &RankCut::rank)->want);
    pack(to, tensor.slices[i]);
    pack(to, cuts[i].size());
    for (const RankCut& cut : cuts[i]) {
      pack(to, static_cast<uint64_t>(cut.rank));
      pack(to, cut.want);
      pack(to, cut.box);
    }
  }
}

TextsOfRanks TensorHome::answer() const {
  TextsOfRanks out(static_cast<size_t>(size_));
  for (const auto& [name, tensor] : table_) {
    if (wants_.contains(name)) {
      answer_tensor(tensor, name, out);
      continue;
    }
    if (tensor.depth > 0) continue;  // a base may have more than a run of it needs
    pack(out[0], kUnused);
    pack(out[0], std::string_view(name));
    pack(out[0], static_cast<uint64_t>(tensor.element));
    pack(out[0], tensor.global);
  }
  return out;
}

LoadPlan plan_of(const std::vector<Want>& wants, const TextsOfRanks& answers, int64_t round_bytes) {
  LoadPlan out;
  out.parts.resize(wants.size());
  std::vector<LoadPlan::Read> reads;
  for (const std::string& text : answers) take_answer(out, reads, wants, text);
  std::ranges::sort(out.unused, {}, &LoadPlan::Unused::name);
  std::ranges::sort(reads, {}, [](const LoadPlan::Read& read) {
    return std::tie(read.slice.shard, read.slice.stored_name);
  });
  int64_t in_round = 0;
  for (LoadPlan::Read& read : reads) {
    const int64_t bytes = TensorBox{{}, out.parts[read.want].element, read.slice.box}.bytes();
    if (out.reads.empty() || (in_round > 0 && in_round + bytes > round_bytes)) {
      out.reads.emplace_back();
      in_round = 0;
    }
    in_round += bytes;
    out.reads.back().push_back(std::move(read));
  }
  return out;
}

TextsOfRanks offer(const LoadPlan& plan, int size) {
  TextsOfRanks out(static_cast<size_t>(size));
  for (std::string& text : out) pack(text, plan.reads.size());
  for (size_t round = 0; round < plan.reads.size(); ++round) {
    for (const LoadPlan::Read& read : plan.reads[round]) {
      for (const RankCut& cut : read.cuts) {
        std::string& to = out.at(static_cast<size_t>(cut.rank));
        pack(to, round);
        pack(to, cut.want);
        pack(to, cut.box);
      }
    }
  }
  return out;
}

void take_offers(LoadPlan& plan, const std::vector<Want>& wants, const TextsOfRanks& offers) {
  std::vector<size_t> came(wants.size());
  for (size_t rank = 0; rank < offers.size(); ++rank) {
    Reading in(offers[rank]);
    const size_t rounds = in.number();
    if (plan.sent.size() < rounds) plan.sent.resize(rounds);
    while (!in.done()) {
      const size_t round = in.below(rounds);
      const size_t want = in.below(wants.size());
      ++came[want];
      plan.sent[round].push_back({static_cast<int>(rank), want, in.box(wants[want].box.global)});
    }
  }
  plan.reads.resize(plan.sent.size());
  for (size_t i = 0; i < came.size(); ++i) {
    TROUPE_CHECK(came[i] == plan.parts[i].cuts, wants[i].name, "comes in", came[i], "cuts of",
                 plan.parts[i].cuts);
  }
}

}  // namespace troupe
