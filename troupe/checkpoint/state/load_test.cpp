// Counts what ranks write to the key-value store, send to each other and read from files when they
// load one checkpoint together.
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "troupe/checkpoint/state/checkpoint.h"
#include "troupe/checkpoint/state/deepseek_names_test.h"
#include "troupe/checkpoint/state/thread_ranks_test.h"
#include "troupe/core/check.h"
#include "troupe/distributed/world/all_gather_texts.h"
#include "troupe/testing/temporary_folder.h"
#include "troupe/testing/torch/table_store.h"

namespace troupe {
namespace {

using testing::DeepSeekNames;
using testing::Table;
using testing::TableStore;
using testing::TemporaryFolder;
using testing::ThreadRanks;

// Ranks that are threads. It counts the bytes that they write to the store and send each other.
struct CountedRanks {
  explicit CountedRanks(int world) : size(world), ranks(world) {}

  void run(const std::function<void(const CheckpointGroup&)>& f) {
    ranks.run([&](const CheckpointGroup& plain) {
      int64_t own = 0;
      CheckpointGroup group = plain;
      group.gather_texts = [this, rank = plain.rank, round = 0](const std::string& mine) mutable {
        TableStore store(table);
        return all_gather_texts(store,
                                {.rank = rank,
                                 .size = size,
                                 .topic = "checkpoint",
                                 .round = "checkpoint/" + std::to_string(round++),
                                 .timeout = std::chrono::milliseconds(600'000),
                                 .has_ended = [](int64_t) { return false; }},
                                mine);
      };
      group.exchange_bytes = [&](const AllToAllBytes& bytes) {
        own += std::ssize(bytes.out);
        plain.exchange_bytes(bytes);
      };
      f(group);
      const std::lock_guard lock(mutex);
      most_sent = std::max(most_sent, own);
    });
  }

  const int64_t size;
  ThreadRanks ranks;
  std::shared_ptr<Table> table = std::make_shared<Table>();
  std::mutex mutex;
  int64_t most_sent = 0;  // bytes, of the rank that sent most
};

// A training state with DeepSeek-V3's tensor names and two numbers per tensor. All ranks hold the
// weights outside experts; each moment and each expert's tensor is on one rank.
struct SmallDeepSeek {
  SmallDeepSeek(const CheckpointGroup& group, const std::vector<std::string>& all_names)
      : names(all_names) {
    for (size_t i = 0; i < names.size(); ++i) {
      const bool dealt =
          !names[i].starts_with("model.") || names[i].find(".experts.") != std::string::npos;
      const auto size = static_cast<size_t>(group.size);
      if (dealt && i % size != static_cast<size_t>(group.rank)) continue;
      held.push_back(i);
      if (!dealt) shared.insert(i);
    }
    values = at::zeros({2 * std::ssize(held)});
    for (size_t k = 0; k < held.size(); ++k) {
      const Replica replica =
          shared.contains(held[k]) ? Replica{.index = group.rank, .count = group.size} : Replica{};
      state.add_box(names[held[k]], Box::whole({2}),
                    values.narrow(0, 2 * static_cast<int64_t>(k), 2), replica);
    }
  }
  float* number(size_t k) const { return values.mutable_data_ptr<float>() + 2 * k; }
  void fill() const {
    for (size_t k = 0; k < held.size(); ++k) {
      number(k)[0] = static_cast<float>(held[k]), number(k)[1] = 0.5F;
    }
  }
  bool is_filled() const {
    for (size_t k = 0; k < held.size(); ++k) {
      if (number(k)[0] != static_cast<float>(held[k]) || number(k)[1] != 0.5F) return false;
    }
    return true;
  }

  const std::vector<std::string>& names;
  std::vector<size_t> held;  // numbers of names
  std::set<size_t> shared;
  at::Tensor values;
  CheckpointState state;
};

struct LoadRanks : ::testing::Test {
  void save(int world) {
    CountedRanks ranks(world);
    ranks.run([&](const CheckpointGroup& group) {
      CheckpointConfig config;
      config.dir = folder.path(), config.background = false;
      const SmallDeepSeek model(group, names);
      model.fill();
      Fs fs;
      Saver saver(config, "run", group, Log(), fs, none);
      saver.save(model.state, {.step = world});
    });
    for (const ShardInfo& shard : read_manifest(step(world)).shards) {
      longest_index = std::max(longest_index, shard.index_bytes);
      all_indexes += shard.index_bytes;
    }
  }
  std::string step(int world) const {
    std::string digits = std::to_string(world);
    return folder / ("step-" + std::string(6 - digits.size(), '0') + digits);
  }

  std::vector<std::string> names = DeepSeekNames::all();
  const Faults none;
  TemporaryFolder folder;
  int64_t longest_index = 0, all_indexes = 0;
};

// A text of one character per tensor, gathered from all ranks, would be 94,000 bytes per rank up the
// tree, and as many times the number of ranks down to each.
TEST_F(LoadRanks, AsksReadsAndSendsItsShareHoweverManyRanksThereAre) {
  ASSERT_GT(names.size(), 90'000u);
  for (const int world : {8, 64, 512}) {
    longest_index = all_indexes = 0;
    save(world);
    CountedRanks ranks(world);
    std::atomic<int64_t> read = 0, index = 0, index_of_all = 0;
    ranks.run([&](const CheckpointGroup& group) {
      const SmallDeepSeek model(group, names);
      const Loaded loaded = load(step(world), model.state, {}, group, none);
      EXPECT_TRUE(model.is_filled()) << "rank " << group.rank << " of " << world;
      EXPECT_TRUE(loaded.notes.empty());
      read += loaded.bytes_read;
      index_of_all += loaded.index_bytes;
      for (int64_t most = index;
           loaded.index_bytes > most && !index.compare_exchange_weak(most, loaded.index_bytes);) {
        continue;
      }
    });
    EXPECT_EQ(read, 8 * std::ssize(names)) << world;  // each byte once
    // Each index file is read once, and each shard's header, which is shorter, by one rank.
    EXPECT_LT(index_of_all, 2 * all_indexes) << world;
    EXPECT_LT(index, 2 * (all_indexes / world + longest_index)) << world;
    // Seven rounds of a tree: a rank writes one value in each, whose length no model changes.
    EXPECT_LE(ranks.table->written, 8 * world);
    EXPECT_LT(ranks.table->longest, 256u);
    // Index lines, requests and replies are at most 400 bytes per tensor; a rank also sends sizes of
    // messages, and answers all ranks for the shared tensors that it looks up.
    const int64_t share = 400 * std::ssize(names) / world;
    EXPECT_LT(ranks.most_sent, 2 * share + 1024 * world + (1 << 16)) << world;
  }
}

TEST_F(LoadRanks, AnotherNumberOfRanksLoadsTheSame) {
  save(8);
  for (const int world : {3, 40}) {
    CountedRanks ranks(world);
    std::atomic<int64_t> read = 0;
    ranks.run([&](const CheckpointGroup& group) {
      const SmallDeepSeek model(group, names);
      const Loaded loaded = load(step(8), model.state, {}, group, none);
      EXPECT_TRUE(model.is_filled()) << "rank " << group.rank << " of " << world;
      read += loaded.bytes_read;
    });
    EXPECT_EQ(read, 8 * std::ssize(names)) << world;
  }
}

// Where the model is wrong on all ranks, each rank reports its faults, cut so that all messages fit
// into the store; rank 0 alone reports tensors of the checkpoint that no rank uses.
TEST_F(LoadRanks, FaultsOfAllRanksAreToldWithTheirRankInABoundedText) {
  constexpr int kWorld = 8;
  names.resize(24'000);  // some 200 kB of lines a rank
  save(kWorld);
  std::vector<std::string> others = names;
  for (std::string& name : others) name += "_other";
  CountedRanks ranks(kWorld);
  ranks.run([&](const CheckpointGroup& group) {
    const SmallDeepSeek model(group, others);
    try {
      load(step(kWorld), model.state, {.waive_unused = {"optimizer.*"}}, group, none);
      ADD_FAILURE() << "rank " << group.rank;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Code::kStateMismatch);
      const std::string said = e.what();
      for (const char* part :
           {"rank 0: ", "rank 7: ", "  missing: model.", "_other F32 [2]", "\n  and ", " more\n"}) {
        EXPECT_NE(said.find(part), std::string::npos) << part;
      }
      EXPECT_LT(said.size(), (size_t{1} << 20) + size_t{kWorld} * 1024);
    }
  });
}

TEST_F(LoadRanks, WhatNobodyUsesIsToldOnce) {
  save(3);
  const std::vector<std::string> without(names.begin(), names.end() - 2);
  CountedRanks ranks(3);
  ranks.run([&](const CheckpointGroup& group) {
    const SmallDeepSeek model(group, without);
    try {
      load(step(3), model.state, {}, group, none);
      ADD_FAILURE() << "rank " << group.rank;
    } catch (const Error& e) {
      const std::string said = e.what();
      EXPECT_TRUE(said.starts_with("rank 0: ")) << said;
      EXPECT_EQ(said.find("rank 1: "), std::string::npos) << said;
      for (size_t i = names.size() - 2; i < names.size(); ++i) {
        EXPECT_NE(said.find("unused: " + names[i] + " F32 [2]"), std::string::npos) << said;
      }
      EXPECT_NE(said.find("differs from the model in 2 tensors"), std::string::npos) << said;
    }
    const Loaded waived = load(step(3), model.state, {.waive_unused = {"*"}}, group, none);
    EXPECT_EQ(waived.notes.size(), group.rank == 0 ? 2u : 0u);
    EXPECT_TRUE(model.is_filled());
  });
}

}  // namespace
}  // namespace troupe
