// Plans of many ranks that load one checkpoint together: who reads which slice, what ranks send each
// other, and how many bytes each exchanges. All ranks are computed in one thread, without files.
#include "troupe/checkpoint/state/load_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <random>
#include <set>

#include "troupe/checkpoint/files/shard_writer.h"
#include "troupe/checkpoint/state/deepseek_names_test.h"
#include "troupe/core/check.h"
#include "troupe/core/file/hash.h"
#include "troupe/testing/sanitized.h"

namespace troupe {
namespace {

Box rows(int64_t global, int64_t from, int64_t to) {
  return {{global, 3}, {from, 0}, {to - from, 3}};
}

// A checkpoint without files, and the plans of the ranks that load it.
struct PlayedLoad {
  std::vector<ShardInfo> shards;
  std::vector<std::vector<StoredTensor>> indexes;  // by shard
  int64_t index_bytes = 0;
  std::vector<LoadPlan> plans;  // by rank
  size_t most_sent = 0;         // by a rank, in one exchange
  size_t most_kept = 0;         // of what came to a rank in one exchange

  // Adds the shard that the next rank saved.
  void add_shard(std::vector<StoredTensor> index) {
    ShardInfo info;
    char name[40];
    std::snprintf(name, sizeof(name), "shard-%05d-000", static_cast<int>(shards.size()));
    info.file = std::string(name) + ".safetensors", info.index = std::string(name) + ".jsonl";
    for (const StoredTensor& stored : index) {
      info.index_bytes += static_cast<int64_t>(to_json(stored).size());
    }
    index_bytes += info.index_bytes;
    shards.push_back(std::move(info));
    indexes.push_back(std::move(index));
  }

  std::vector<PlacedSlice> share(int rank, int size) const {
    std::vector<PlacedSlice> out;
    for (const size_t shard : share_of(shards, rank, size)) {
      int64_t at = 0;
      for (const StoredTensor& stored : indexes[shard]) {
        out.push_back({shard, at, stored});
        at += stored.tensor.bytes();
      }
    }
    return out;
  }

  void run(const std::vector<std::vector<Want>>& wants, int64_t round_bytes = 1 << 20) {
    const int size = static_cast<int>(wants.size());
    using All = std::vector<TextsOfRanks>;
    const auto exchanged = [&](All from) {
      All out(from.size());
      for (const TextsOfRanks& of : from) {
        size_t sent = 0;
        for (const std::string& text : of) sent += text.size();
        most_sent = std::max(most_sent, sent);
      }
      for (size_t to = 0; to < from.size(); ++to) {
        size_t kept = 0;
        for (TextsOfRanks& of : from) {
          kept += of[to].size();
          out[to].push_back(std::move(of[to]));
        }
        most_kept = std::max(most_kept, kept);
      }
      return out;
    };
    All texts;
    for (int rank = 0; rank < size; ++rank) {
      texts.push_back(ask(share(rank, size), wants[static_cast<size_t>(rank)], size));
    }
    texts = exchanged(std::move(texts));
    for (TextsOfRanks& of : texts) {
      TensorHome home("folder", shards, size);
      home.take(of);
      of = home.answer();
    }
    texts = exchanged(std::move(texts));
    plans.clear();
    for (size_t rank = 0; rank < wants.size(); ++rank) {
      plans.push_back(plan_of(wants[rank], texts[rank], round_bytes));
      texts[rank] = offer(plans.back(), size);
    }
    texts = exchanged(std::move(texts));
    for (size_t rank = 0; rank < wants.size(); ++rank) {
      take_offers(plans[rank], wants[rank], texts[rank]);
    }
  }

  // Asserts that each rank gets each element that it wants exactly once, by its own reads or from
  // the ranks that read for it.
  void expect_whole(const std::vector<std::vector<Want>>& wants) const {
    for (size_t rank = 0; rank < wants.size(); ++rank) {
      std::vector<int64_t> elements(wants[rank].size());
      for (size_t i = 0; i < wants[rank].size(); ++i) {
        ASSERT_TRUE(plans[rank].parts[i].stored) << wants[rank][i].name;
        for (const LoadPlan::Slice& slice : plans[rank].parts[i].alone) {
          Box part;
          ASSERT_TRUE(overlap(slice.box, wants[rank][i].box, part));
          elements[i] += part.numel();
        }
      }
      for (const auto& round : plans[rank].sent) {
        for (const LoadPlan::Sent& sent : round) elements[sent.want] += sent.box.numel();
      }
      for (size_t i = 0; i < elements.size(); ++i) {
        ASSERT_EQ(elements[i], wants[rank][i].box.numel()) << rank << ' ' << wants[rank][i].name;
      }
    }
  }

  // The number of ranks that read each stored slice, by name.
  std::map<std::string, int> readers() const {
    std::map<std::string, int> out;
    for (const LoadPlan& plan : plans) {
      for (const LoadPlan::Part& part : plan.parts) {
        for (const LoadPlan::Slice& slice : part.alone) ++out[slice.stored_name];
      }
      for (const auto& round : plan.reads) {
        for (const LoadPlan::Read& read : round) ++out[read.slice.stored_name];
      }
    }
    return out;
  }
};

StoredTensor stored_rows(const std::string& name, const Box& box) {
  return {{name, Element::kF32, box}, "0123456789abcdef"};
}

TEST(LoadPlan, OneRankReadsASliceOfWhichTwoNeedAPart) {
  // Slices of rows 0..3 and 4..7; rank 0 has rows 0..5, rank 1 rows 6..7.
  PlayedLoad load;
  load.add_shard({stored_rows("w", rows(8, 0, 4)), stored_rows("w", rows(8, 4, 8))});
  load.run({{{"w", rows(8, 0, 6)}}, {{"w", rows(8, 6, 8)}}});
  const LoadPlan::Part& first = load.plans[0].parts[0];
  ASSERT_EQ(first.alone.size(), 1u);
  EXPECT_EQ(first.alone[0].box, rows(8, 0, 4));
  EXPECT_EQ(first.alone[0].stored_name, "w@0,0");
  EXPECT_EQ(first.alone[0].hash, "0123456789abcdef");
  EXPECT_TRUE(load.plans[1].parts[0].alone.empty());
  std::vector<LoadPlan::Read> reads;
  for (const LoadPlan& plan : load.plans) {
    ASSERT_EQ(plan.sent.size(), 1u);
    ASSERT_EQ(plan.sent[0].size(), 1u);
    for (const LoadPlan::Read& read : plan.reads[0]) reads.push_back(read);
  }
  ASSERT_EQ(reads.size(), 1u);
  EXPECT_EQ(reads[0].slice.box, rows(8, 4, 8));
  ASSERT_EQ(reads[0].cuts.size(), 2u);
  EXPECT_EQ(reads[0].cuts[0].box, rows(8, 4, 6));
  EXPECT_EQ(reads[0].cuts[1].rank, 1);
  EXPECT_EQ(reads[0].cuts[1].box, rows(8, 6, 8));
  EXPECT_EQ(load.plans[1].sent[0][0].box, rows(8, 6, 8));
}

TEST(LoadPlan, TwoPartsOfOneRankShareASliceToo) {
  PlayedLoad load;
  load.add_shard({stored_rows("w", rows(8, 0, 8))});
  load.run({{{"w", rows(8, 0, 1)}, {"w", rows(8, 1, 8)}}});
  ASSERT_EQ(load.plans[0].reads.size(), 1u);
  EXPECT_EQ(load.plans[0].reads[0][0].cuts[1].want, 1u);
  EXPECT_EQ(load.plans[0].sent[0].size(), 2u);
}

TEST(LoadPlan, ReadersTakeTurnsAndRoundsAreBounded) {
  // One shard has 240 slices of 16 MiB, which three ranks need whole: a round of 64 MiB has four.
  constexpr int64_t kSlices = 240, kMiB = int64_t{1} << 20;
  const auto row = [](int64_t r) { return Box{{kSlices, 4 * kMiB}, {r, 0}, {1, 4 * kMiB}}; };
  PlayedLoad load;
  std::vector<StoredTensor> index;
  for (int64_t r = 0; r < kSlices; ++r) index.push_back(stored_rows("w", row(r)));
  load.add_shard(std::move(index));
  const std::vector<Want> whole = {{"w", Box::whole({kSlices, 4 * kMiB})}};
  for (const int64_t at_a_time : {64 * kMiB, int64_t{1}}) {
    load.run({whole, whole, whole}, at_a_time);
    size_t all = 0, rounds = 0;
    for (const LoadPlan& plan : load.plans) {
      size_t own = 0, of_own = 0;
      for (const auto& round : plan.reads) {
        EXPECT_LE(round.size(), at_a_time == 1 ? 1u : 4u);
        own += round.size(), of_own += round.empty() ? 0 : 1;
      }
      EXPECT_EQ(of_own, at_a_time == 1 ? own : own / 4);
      EXPECT_GT(own, 30u);  // 80, if turns were dealt evenly
      EXPECT_EQ(own % 4, 0u);
      all += own, rounds = std::max(rounds, of_own);
    }
    EXPECT_EQ(all, 240u);
    for (const LoadPlan& plan : load.plans) {
      EXPECT_EQ(plan.reads.size(), rounds);
      EXPECT_EQ(plan.sent.size(), rounds);
    }
  }
}

// The second rank's shard is a base's: what the checkpoint has hides it, and what nobody wants of
// it is not told.
TEST(LoadPlan, ABaseHasWhatTheCheckpointLacks) {
  PlayedLoad load;
  load.add_shard({stored_rows("model.a", rows(4, 0, 4))});
  load.add_shard({stored_rows("model.a", rows(9, 0, 9)), stored_rows("model.w", rows(8, 0, 8)),
                  stored_rows("model.more", rows(2, 0, 2)),
                  stored_rows("optimizer.w", rows(8, 0, 8))});
  load.shards[1].home = {.depth = 1, .folder = "base", .run = "other"};
  const std::vector<std::vector<Want>> wants = {
      {{"model.a", rows(4, 0, 4)}, {"model.w", rows(8, 0, 3)}}, {{"model.w", rows(8, 3, 8)}}};
  load.run(wants);
  load.expect_whole(wants);
  EXPECT_FALSE(load.plans[0].parts[0].based);
  EXPECT_TRUE(load.plans[0].parts[1].based);
  EXPECT_TRUE(load.plans[1].parts[0].based);
  EXPECT_TRUE(load.plans[0].unused.empty());
}

TEST(LoadPlan, WhoWroteASliceReadsIt) {
  PlayedLoad load;
  for (int64_t r = 0; r < 4; ++r) load.add_shard({stored_rows("w", rows(4, r, r + 1))});
  const std::vector<Want> whole = {{"w", rows(4, 0, 4)}};
  load.run({whole, whole, whole, whole});
  for (size_t rank = 0; rank < 4; ++rank) {
    ASSERT_EQ(load.plans[rank].reads[0].size(), 1u);
    EXPECT_EQ(load.plans[rank].reads[0][0].slice.shard, rank);
    EXPECT_EQ(share_of(load.shards, static_cast<int>(rank), 4), std::vector<size_t>{rank});
  }
}

TEST(LoadPlan, WhatIsMissingOfAnotherSizeOrUnusedIsKnown) {
  PlayedLoad load;
  load.add_shard({stored_rows("b", rows(2, 0, 2)), stored_rows("a", rows(2, 0, 2))});
  load.add_shard({stored_rows("wide", rows(8, 0, 8)), stored_rows("w", rows(4, 0, 4))});
  load.run({{{"w", rows(4, 0, 4)}}, {{"wide", rows(9, 0, 9)}, {"none", rows(1, 0, 1)}}});
  EXPECT_TRUE(load.plans[1].parts[0].stored);
  EXPECT_EQ(load.plans[1].parts[0].global, (Sizes{8, 3}));
  EXPECT_TRUE(load.plans[1].parts[0].alone.empty());
  EXPECT_FALSE(load.plans[1].parts[1].stored);
  ASSERT_EQ(load.plans[0].unused.size(), 2u);
  EXPECT_EQ(load.plans[0].unused[0].name, "a");
  EXPECT_EQ(load.plans[0].unused[1].name, "b");
  EXPECT_EQ(load.plans[0].unused[0].global, (Sizes{2, 3}));
  EXPECT_TRUE(load.plans[1].unused.empty());
}

TEST(LoadPlan, AHomeRefusesSlicesThatDoNotMakeATensor) {
  const auto refused = [](std::vector<StoredTensor> index) {
    PlayedLoad load;
    load.add_shard({std::move(index[0])});
    load.add_shard({std::move(index[1])});
    try {
      load.run({{}, {}, {}});
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Code::kDamagedCheckpoint);
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_NE(refused({stored_rows("w", rows(8, 0, 4)), stored_rows("w", rows(8, 5, 8))})
                .find("the 2 slices of tensor w do not cover [8, 3] once each"),
            std::string::npos);
  EXPECT_NE(refused({stored_rows("w", rows(8, 0, 4)), stored_rows("w", rows(9, 4, 9))})
                .find("shard-00001-000.jsonl: E4004 tensor w is F32 [9, 3] here and F32 [8, 3]"),
            std::string::npos);
}

TEST(LoadPlan, WhatNoRankWritesIsRefused) {
  const std::vector<ShardInfo> none;
  for (const std::string& text : {std::string("\x07", 1), std::string("\x01\x7fxx", 4),
                                  std::string("\x00\x01w", 3), std::string(11, '\xff')}) {
    TensorHome home("folder", none, 1);
    EXPECT_THROW(home.take({text}), Error);
    EXPECT_THROW(plan_of({{"w", rows(1, 0, 1)}}, {text}, 1), Error);
  }
}

TEST(LoadPlan, AnyCutsHaveEachElementFromOneReader) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 200; ++trial) {
    const int64_t n = 1 + static_cast<int64_t>(random() % 40);
    const auto cuts_at = [&] {
      std::vector<int64_t> at = {0, n};
      for (int64_t i = 1; i < n; ++i) {
        if (random() % 4 == 0) at.insert(at.end() - 1, i);
      }
      return at;
    };
    const std::vector<int64_t> stored_at = cuts_at(), wanted_at = cuts_at();
    std::vector<std::vector<StoredTensor>> shards(1 + random() % 4);
    for (size_t i = 1; i < stored_at.size(); ++i) {
      shards[random() % shards.size()].push_back(
          stored_rows("w", rows(n, stored_at[i - 1], stored_at[i])));
    }
    PlayedLoad load;
    for (auto& shard : shards) load.add_shard(std::move(shard));
    std::vector<std::vector<Want>> wants(1 + random() % 4);
    for (size_t i = 1; i < wanted_at.size(); ++i) {
      const Box box = rows(n, wanted_at[i - 1], wanted_at[i]);
      wants[random() % wants.size()].push_back({"w", box});
      if (random() % 3 == 0) wants[random() % wants.size()].push_back({"w", box});
    }
    load.run(wants, 50);
    load.expect_whole(wants);
    for (const auto& [name, readers] : load.readers()) EXPECT_EQ(readers, 1) << name;
    EXPECT_EQ(load.readers().size(), stored_at.size() - 1);
  }
}

// How DeepSeek-V3's training state lies on ranks under ZeRO-1: layers over pipeline stages, experts
// over the ranks of a stage. Ranks that hold the same weights share out moments and writing by ranges.
struct DeepSeekLayout {
  explicit DeepSeekLayout(int64_t ranks)
      : stages(std::min<int64_t>(8, ranks)),
        of_stage(ranks / stages),
        expert_ranks(std::min<int64_t>(64, of_stage)) {}

  int64_t stages, of_stage, expert_ranks;
  static constexpr int64_t kRows = 512, kColumns = 64;  // a stand-in for every tensor's

  // Calls f(name, box) for each part that a rank holds, or with `owned` that it writes.
  void parts(int64_t rank, bool owned,
             const std::function<void(const std::string&, const Box&)>& f) const {
    using testing::DeepSeekNames;
    const int64_t stage = rank / of_stage, place = rank % of_stage;
    const int64_t expert_rank = place % expert_ranks, copy = place / expert_ranks;
    for (int64_t layer = 0; layer < DeepSeekNames::kLayers; ++layer) {
      if (layer * stages / DeepSeekNames::kLayers != stage) continue;
      bucket(DeepSeekNames::dense_of(layer), place, of_stage, owned, f);
      std::vector<std::string> experts;
      for (int64_t e = 0; DeepSeekNames::has_experts(layer) && e < DeepSeekNames::kExperts; ++e) {
        if (e * expert_ranks / DeepSeekNames::kExperts != expert_rank) continue;
        for (const char* w : {"w1", "w2"}) {
          experts.push_back(DeepSeekNames::expert_of(layer, e, w));
        }
      }
      bucket(experts, copy, of_stage / expert_ranks, owned, f);
    }
  }

 private:
  // Range `index` of `count` equal ranges of the tensors' elements, in the order of names.
  static void bucket(const std::vector<std::string>& names, int64_t index, int64_t count,
                     bool owned, const std::function<void(const std::string&, const Box&)>& f) {
    const Box whole = Box::whole({kRows, kColumns});
    const int64_t each = whole.numel(), all = each * std::ssize(names);
    const int64_t from = all * index / count, to = all * (index + 1) / count;
    for (size_t i = 0; i < names.size(); ++i) {
      const int64_t begin = static_cast<int64_t>(i) * each;
      const bool writes =
          static_cast<int64_t>(hash64(names[i]) % static_cast<uint64_t>(count)) == index;
      if (!owned || writes) f("model." + names[i], whole);
      const int64_t a = std::max(from, begin) - begin, b = std::min(to, begin + each) - begin;
      if (a >= b) continue;
      for (const char* moment : {"optimizer.exp_avg.", "optimizer.exp_avg_sq."}) {
        for (const Box& box : boxes_of_range(whole, a, b)) f(moment + names[i], box);
      }
    }
  }
};

PlayedLoad deepseek_saved_by(int64_t ranks) {
  const DeepSeekLayout layout(ranks);
  PlayedLoad out;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    std::vector<StoredTensor> index;
    layout.parts(rank, /*owned=*/true, [&](const std::string& name, const Box& box) {
      index.push_back(stored_rows(name, box));
    });
    out.add_shard(std::move(index));
  }
  return out;
}

std::vector<std::vector<Want>> wanted_by(int64_t ranks) {
  const DeepSeekLayout layout(ranks);
  std::vector<std::vector<Want>> out(static_cast<size_t>(ranks));
  for (int64_t rank = 0; rank < ranks; ++rank) {
    layout.parts(rank, /*owned=*/false, [&](const std::string& name, const Box& box) {
      out[static_cast<size_t>(rank)].push_back({name, box});
    });
  }
  return out;
}

// Bounds of a load: what a rank sends, keeps and reads is in proportion to its own share, not to the
// tensors of all ranks. One character per tensor of each rank would already be 94,000 bytes times
// the number of ranks.
TEST(LoadPlan, WhatARankSendsAndReadsIsItsShareHoweverManyRanksThereAre) {
  ASSERT_GT(testing::DeepSeekNames::all().size(), 90'000u);
  for (const auto& [saved, loaded] :
       {std::pair<int64_t, int64_t>{8, 8}, {64, 64}, {512, 512}, {3072, 3072}, {3072, 1536}}) {
    if (saved > unless_sanitized(3072, 64)) break;
    PlayedLoad load = deepseek_saved_by(saved);
    std::vector<std::vector<Want>> wants = wanted_by(loaded);
    load.run(wants);
    load.expect_whole(wants);
    for (const auto& [name, readers] : load.readers()) ASSERT_EQ(readers, 1) << name;
    EXPECT_TRUE(load.plans[0].unused.empty());

    size_t all_wants = 0, longest_index = 0;
    for (const auto& of_rank : wants) all_wants += of_rank.size();
    const auto size = static_cast<size_t>(loaded);
    const size_t mean = (static_cast<size_t>(load.index_bytes) + all_wants * 150) / size;
    EXPECT_LT(load.most_sent, 3 * mean + (size_t{1} << 20)) << loaded << " ranks";
    EXPECT_LT(load.most_kept, 3 * mean + (size_t{1} << 20)) << loaded << " ranks";
    if (loaded >= 512) {
      EXPECT_LT(load.most_sent, size_t{2} << 20);
      EXPECT_LT(load.most_kept, size_t{2} << 20);
    }
    for (const ShardInfo& shard : load.shards) {
      longest_index = std::max(longest_index, static_cast<size_t>(shard.index_bytes));
    }
    std::set<size_t> read;
    for (int rank = 0; rank < static_cast<int>(loaded); ++rank) {
      size_t bytes = 0;
      for (const size_t shard : share_of(load.shards, rank, static_cast<int>(loaded))) {
        bytes += static_cast<size_t>(load.shards[shard].index_bytes);
        EXPECT_TRUE(read.insert(shard).second);
      }
      EXPECT_LE(bytes, static_cast<size_t>(load.index_bytes) / size + longest_index + 1);
    }
    EXPECT_EQ(read.size(), load.shards.size());
    if (saved != loaded) continue;
    // In the layout that saved, each rank reads its own shard alone.
    for (size_t rank = 0; rank < size; ++rank) {
      for (const LoadPlan::Part& part : load.plans[rank].parts) {
        for (const LoadPlan::Slice& slice : part.alone) ASSERT_EQ(slice.shard, rank);
      }
      for (const auto& round : load.plans[rank].reads) {
        for (const LoadPlan::Read& one : round) ASSERT_EQ(one.slice.shard, rank);
      }
    }
  }
}

}  // namespace
}  // namespace troupe
