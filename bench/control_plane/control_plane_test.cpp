// What a run's control plane may ask for, as functions of the number of ranks N: counted, not timed,
// at 8 and 64 ranks of the simulation that bench/control_plane prints for thousands.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "bench/control_plane/options.h"
#include "bench/control_plane/purposes.h"
#include "bench/control_plane/resources.h"
#include "bench/control_plane/row.h"
#include "bench/control_plane/simulated_world.h"
#include "bench/control_plane/start_probe.h"
#include "bench/control_plane/state_boxes.h"
#include "bench/control_plane/store_process.h"
#include "troupe/core/check.h"
#include "troupe/distributed/group/rank_list.h"
#include "troupe/testing/files.h"

namespace troupe::control_plane {
namespace {

using std::chrono::milliseconds;

constexpr int64_t kFew = 8, kMany = 64;
constexpr milliseconds kBeat{300};
constexpr int64_t kLongestKey = 250, kLargestValue = int64_t{1} << 20;
// N grows by 8, and what is linear with it; a tree gets a second level, and 16 children for 7.
constexpr int64_t kMostGrowth = 4;

const Catalog& catalog() {
  static const Catalog all = [] {
    ModelConfig model = model_named("olmoe");
    model.layers = 4;
    return catalog_of(model);
  }();
  return all;
}

class Folder {
 public:
  Folder() {
    path_ = (std::filesystem::temp_directory_path() / "control_plane_test.XXXXXX").string();
    if (::mkdtemp(path_.data()) == nullptr) path_.clear();
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string of(const std::string& name) const { return path_ + '/' + name; }

 private:
  std::string path_;
};

SimulatedRun run_of(int64_t ranks, const std::string& folder = "") {
  SimulatedRun out;
  out.ranks = ranks;
  out.mesh = shape_for(catalog(), ranks);
  out.folder = folder;
  out.beat = kBeat;
  return out;
}

// Of files whose names end so.
int64_t bytes_in(const std::string& folder, const std::string& ending = "") {
  int64_t out = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file() && entry.path().string().ends_with(ending)) {
      out += static_cast<int64_t>(entry.file_size());
    }
  }
  return out;
}

// A run of N ranks: a start, three saves, and the loads of runs that come after it.
struct Phases {
  Row start, save, again, third, load, other;
  int64_t folder_bytes = 0, index_bytes = 0;

  explicit Phases(int64_t ranks) {
    const Folder folder;
    const std::string dir = folder.of("run");
    {
      SimulatedWorld world(catalog(), run_of(ranks, dir));
      start = world.start();
      save = world.save(1);
      again = world.save(2);
      third = world.save(3);
    }
    folder_bytes = bytes_in(dir);
    index_bytes = bytes_in(dir, ".jsonl");
    load = loaded(run_of(ranks, dir));
    other = loaded(run_of(ranks / 2, dir));
  }
  static Row loaded(const SimulatedRun& run) {
    SimulatedWorld world(catalog(), run);
    const Row start = world.start();
    return start.fault.empty() ? world.load() : start;
  }
  std::vector<const Row*> all() const { return {&start, &save, &again, &third, &load, &other}; }
};

class ControlPlane : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    raise_descriptors();
    few_ = std::make_unique<Phases>(kFew);
    many_ = std::make_unique<Phases>(kMany);
  }
  static void TearDownTestSuite() {
    few_.reset();
    many_.reset();
  }
  static inline std::unique_ptr<Phases> few_, many_;
};

TEST_F(ControlPlane, EachPhaseEndsAndLoadsWhatWasSavedInBothLayouts) {
  for (const Phases* phases : {few_.get(), many_.get()}) {
    for (const Row* row : phases->all()) EXPECT_EQ(row->fault, "") << row->phase << row->ranks;
  }
  EXPECT_GT(many_->save.all.requests, 0);
  EXPECT_GT(many_->load.files_read, 0);
}

TEST_F(ControlPlane, ARankAsksForAsMuchAsATreeHasLevels) {
  for (size_t i = 0; i < few_->all().size(); ++i) {
    const Row &few = *few_->all()[i], &many = *many_->all()[i];
    EXPECT_LE(many.most_found, kMostGrowth * few.most_found) << many.phase;
  }
}

TEST_F(ControlPlane, NoKeyAndNoValueIsLong) {
  for (const Phases* phases : {few_.get(), many_.get()}) {
    for (const Row* row : phases->all()) {
      EXPECT_LE(row->all.longest_key, kLongestKey) << row->phase << row->ranks;
      EXPECT_LE(row->all.largest_value, kLargestValue) << row->phase << row->ranks;
    }
  }
}

TEST_F(ControlPlane, TheStoreHoldsAsManyKeysAfterEachSave) {
  for (const Phases* phases : {few_.get(), many_.get()}) {
    EXPECT_GT(phases->save.keys, 0);
    EXPECT_EQ(phases->again.keys, phases->save.keys);
    EXPECT_EQ(phases->third.keys, phases->save.keys);
  }
}

// Each byte of the folder a few times, by whoever needs it, and not its index by every rank.
TEST_F(ControlPlane, RanksTogetherReadAFolderAFewTimes) {
  EXPECT_LE(many_->load.files_read, 4 * many_->folder_bytes);
  EXPECT_LE(many_->other.files_read, 4 * many_->folder_bytes);
  // As they did: each rank each index file.
  EXPECT_GT(kMany * many_->index_bytes, 4 * many_->folder_bytes);
}

TEST_F(ControlPlane, EachRequestHasAPurpose) {
  for (const Phases* phases : {few_.get(), many_.get()}) {
    for (const Row* row : phases->all()) {
      Asked all;
      for (const Asked& asked : row->all.uses) {
        all.requests += asked.requests;
        all.bytes += asked.bytes;
      }
      EXPECT_EQ(all.requests, row->all.requests) << row->phase << row->ranks;
      EXPECT_EQ(all.bytes, row->all.bytes) << row->phase << row->ranks;
      EXPECT_EQ(row->all.of(Use::kOther).requests, 0) << row->phase << row->ranks;
      EXPECT_GT(row->all.of(Use::kTexts).requests, 0) << row->phase << row->ranks;
    }
  }
  EXPECT_EQ(many_->start.all.of(Use::kConnect).requests, 4 * kMany);
  EXPECT_GE(many_->start.all.of(Use::kRendezvous).requests, 3 * (kMany - 1));
}

SimulatedWorld::Ending ending(SimulatedRun run, const std::vector<int64_t>& lost, bool store) {
  const int64_t descriptors = open_descriptors();
  SimulatedWorld::Ending out;
  {
    SimulatedWorld world(catalog(), std::move(run));
    const Row start = world.start();
    EXPECT_EQ(start.fault, "");
    out = world.lose(lost, store);
  }
  EXPECT_EQ(out.row.fault, "");
  EXPECT_LE(out.row.seconds, 60);  // on a busy machine; else some 5
  // Where the server dies a client of c10d's may keep its connections: of one rank in 64, at times.
  EXPECT_EQ(store ? std::string() : left_behind(descriptors), "");
  return out;
}

// N + 16 log2 N of all ranks together.
int64_t most_of_a_loss(int64_t ranks) {
  return ranks + 16 * (std::bit_width(static_cast<uint64_t>(ranks)) - 1);
}

// With a true heartbeat: where machines are busy a shorter one lets a second rank look.
SimulatedRun to_be_counted(int64_t ranks) {
  SimulatedRun out = run_of(ranks);
  out.beat = milliseconds(1000);
  return out;
}

TEST_F(ControlPlane, ALostRankIsNamedByARequestOfEachRankAndAFewMore) {
  for (const int64_t ranks : {kFew, kMany}) {
    const auto end = ending(to_be_counted(ranks), {5}, false);
    EXPECT_EQ(end.named, ranks - 1) << end.row.note;
    const Counts& asked = end.row.all;
    EXPECT_LE(asked.found(), most_of_a_loss(ranks));
    EXPECT_EQ(asked.of(Use::kEndClaim).requests, ranks - 1);
    EXPECT_EQ(asked.of(Use::kVerdict).requests, 1);
    EXPECT_GT(asked.of(Use::kBeatsLook).requests, 0);
    EXPECT_EQ(asked.of(Use::kOther).requests, 0);
  }
}

// As before distributed/world/tcp_key_value_store.h: a key that is there took check, wait and get.
TEST_F(ControlPlane, ThreeRequestsALookAreTooManyForALostRank) {
  SimulatedRun run = to_be_counted(kMany);
  run.looks_by_three = true;
  const auto end = ending(run, {5}, false);
  EXPECT_EQ(end.named, kMany - 1) << end.row.note;
  EXPECT_GT(end.row.all.found(), most_of_a_loss(kMany));
}

// All eight and none beside them.
void check_names(const SimulatedWorld::Ending& end, int64_t host) {
  EXPECT_EQ(end.named, kMany - kRanksOfHost) << end.row.note;
  const auto text_of = [](int64_t rank) {
    return "rank " + std::to_string(rank) + " of " + std::to_string(kMany) + " has no heartbeat";
  };
  const std::vector<int64_t> lost = ranks_of_host(host);
  for (int64_t r = 0; r < kMany; ++r) {
    const bool is_lost = std::ranges::count(lost, r) > 0;
    EXPECT_EQ(testing::has(end.message, text_of(r)), is_lost) << end.message;
  }
}

TEST_F(ControlPlane, RankZeroAndHostsOfEightAreNamedWhenTheyAreLost) {
  EXPECT_EQ(ending(run_of(kMany), {0}, false).named, kMany - 1);
  for (const int64_t host : {0, 2}) {
    check_names(ending(to_be_counted(kMany), ranks_of_host(host), false), host);
  }
}

TEST_F(ControlPlane, TheStoresHostIsNamedWhereRankZeroServesIt) {
  SimulatedRun run = run_of(kMany);
  run.first_serves = true;
  for (const std::vector<int64_t>& lost : {std::vector<int64_t>{0}, ranks_of_host(0)}) {
    const auto end = ending(run, lost, true);
    EXPECT_EQ(end.named, kMany - std::ssize(lost)) << end.row.note;
    EXPECT_TRUE(testing::has(end.message, "rank 0 of 64 exited without a message")) << end.message;
  }
}

// Nobody can know who it was: each says so, and none hangs.
TEST_F(ControlPlane, RanksEndWhenTheLauncherDies) {
  const auto end = ending(run_of(kMany), {}, true);
  EXPECT_EQ(end.unknown, kMany) << end.row.note;
}

// One rank in twenty comes late, and a host answers slowly.
SimulatedFaults late_and_slow() {
  return {.late_each = 20, .late = milliseconds(1500), .slow_host = 3, .slow = milliseconds(20)};
}

TEST_F(ControlPlane, ALostRankIsNamedAndNotThoseThatCameLateOrAreSlow) {
  SimulatedRun run = to_be_counted(kMany);
  run.faults = late_and_slow();
  const auto end = ending(run, {5}, false);
  EXPECT_EQ(end.named, kMany - 1) << end.row.note;
}

TEST_F(ControlPlane, ALateAndASlowHostAreWaitedForAndNobodyIsLost) {
  const Folder folder;
  SimulatedRun run = run_of(kMany, folder.of("run"));
  run.beat = milliseconds(25);  // 60 of them, a minute of true ones, are 1.5 s
  run.faults = late_and_slow();
  SimulatedWorld world(catalog(), run);
  const Row start = world.start();
  EXPECT_EQ(start.fault, "");
  EXPECT_GE(start.seconds, 1.5);
  EXPECT_EQ(world.save(1).fault, "");
}

TEST_F(ControlPlane, AnHourIsCountedFromItsSavesAndHeartbeats) {
  const Folder folder;
  SimulatedWorld world(catalog(), run_of(kFew, folder.of("run")));
  ASSERT_EQ(world.start().fault, "");
  const Row save = world.save(1);
  const Row hour = world.hour(2, 2, milliseconds(1500));
  EXPECT_EQ(hour.fault, "");
  EXPECT_EQ(hour.keys, save.keys);
  // A heartbeat is a value that is written.
  const int64_t beats = 3600 * 1000 / kBeat.count();
  EXPECT_GE(hour.all.requests, kFew * beats / 2);
}

// Eight ranks may be a mesh; more than 64 may not.
TEST_F(ControlPlane, DescriptorsOfARankGrowAsATree) {
  constexpr int64_t kMore = 96;
  // Both ends of each connection between ranks are this process's.
  if (raise_descriptors() < 16 * kMore + kMore * kMore) GTEST_SKIP() << "ulimit -n is too low";
  const Connections few = connections_of(kFew, {}), many = connections_of(kMore, {});
  EXPECT_LE(many.descriptors / kMore, kMostGrowth * few.descriptors / kFew);
  EXPECT_LE(many.longest_key, kLongestKey);
  // As it was: each connected with each.
  const Connections mesh = connections_of(kMore, {}, /*most_in_mesh=*/kMore);
  EXPECT_GT(mesh.descriptors / kMore, kMostGrowth * few.descriptors / kFew);
}

// What gathered texts of all ranks before: keys that begin with the list of ranks and are those of a
// round, all read by one rank, and written as one value.
struct OldGather {
  Counts counts;
  std::vector<int64_t> keys;  // after each round

  explicit OldGather(int64_t ranks) {
    constexpr size_t kText = size_t{30} << 10;  // of DeepSeek-V3's wants, a rank
    const StoreProcess server;
    const auto tally = std::make_shared<Tally>();
    CountedStore store(server.address(), tally);
    std::vector<int64_t> every_second;
    for (int64_t r = 0; r < ranks; ++r) every_second.push_back(1000 + 2 * r);
    for (int64_t round = 0; round < 2; ++round) {
      const std::string prefix = rank_list(every_second) + "/texts/" + std::to_string(round) + '/';
      std::string all;
      for (int64_t r = 0; r < ranks; ++r) {
        const std::string key = prefix + std::to_string(r);
        store.post(key, std::string(kText, 'x'));
        all += store.peek(key).value_or("");
      }
      store.post(prefix + "all", all);
      keys.push_back(keys_alive(server.address()).keys);
    }
    counts = tally->take();
  }
};

TEST(ControlPlaneParts, TheOldGatherBreaksEachBarOnTexts) {
  const OldGather few(kFew), many(kMany);
  EXPECT_GT(many.counts.found(), kMostGrowth * few.counts.found());
  EXPECT_GT(many.counts.longest_key, kLongestKey);
  EXPECT_GT(many.counts.largest_value, kLargestValue);
  EXPECT_GT(many.keys[1], many.keys[0]);
}

TEST(ControlPlaneParts, WhatIsLeftBehindIsSaid) {
  EXPECT_EQ(left_behind(open_descriptors()), "");
  const StoreProcess left;
  EXPECT_EQ(left_behind(open_descriptors() - 1), "1 open descriptors and a process");
}

// The page's table is the printed one, with figures of some N behind these cells or without.
TEST(ControlPlaneParts, RunsPageHasTheTableOfPurposes) {
  const std::string page = testing::bytes_of_file(TROUPE_RUN_PAGE);
  for (const Purpose& purpose : purposes()) {
    EXPECT_TRUE(testing::has(page, '\n' + cells_of(purpose))) << cells_of(purpose);
  }
}

TEST(ControlPlaneParts, ThePrintedTableHasWhatWasCountedInEachPhase) {
  Row start{.phase = "start", .ranks = 3072, .all = {}}, other = start;
  start.all.uses[static_cast<size_t>(Use::kConnect)] = {.requests = 12288, .bytes = 2048};
  other.ranks = 32;
  const std::string table = purpose_table({other, start}, 3072);
  EXPECT_TRUE(testing::has(table, "requests, N = 3,072")) << table;
  EXPECT_TRUE(testing::has(table, cells_of(purposes()[0]) + " one start | 12,288 | 2.0 KiB |\n"))
      << table;
  for (const Purpose& purpose : purposes()) {
    const bool counted = purpose.phase == "start";
    EXPECT_EQ(testing::has(table, cells_of(purpose) + "  |  |  |\n"), !counted) << table;
  }
}

TEST_F(ControlPlane, AGroupOfEverySecondRankHasAShortKey) {
  for (const int64_t ranks : {kMany, int64_t{512}, int64_t{3072}}) {
    MeshShape shape;
    shape.tensor = 2;
    const GroupKey key = group_key_of(ranks, shape);
    EXPECT_TRUE(key.is_stored) << ranks << ": " << key.said;
    EXPECT_LE(key.longest_key, kLongestKey) << ranks << ": " << key.said;
    EXPECT_EQ(key.ranks, ranks / 2);
  }
}

TEST(ControlPlaneParts, TensorsAreThoseOfTheModel) {
  const Catalog deepseek = catalog_of(model_named("deepseek-v3"));
  EXPECT_EQ(deepseek.experts, 256);
  // 58 layers and a prediction module with two matrices an expert, three times.
  EXPECT_GT(deepseek.tensors(), 3 * 59 * 256 * 2);
  EXPECT_THROW(model_named("no such model"), Error);
}

TEST(ControlPlaneParts, RanksShareOutAllElementsOnce) {
  const Catalog& all = catalog();
  int64_t elements = 0;
  for (const auto& unit : all.units) {
    for (const CatalogParam& p : unit) elements += Box::whole(p.param.global).numel();
  }
  for (const int64_t ranks : {1, 6, 16, 64}) {
    const ProcessMesh mesh(ranks, shape_for(all, ranks));
    int64_t owned = 0;
    for (int64_t r = 0; r < ranks; ++r) {
      RankState state(all, mesh, r);
      const CheckpointState named = state.named(/*to_load=*/false);
      owned += named.owned_bytes() / static_cast<int64_t>(3 * sizeof(float));
      EXPECT_TRUE(named.parts().empty() || !state.wrong_value().empty());
      state.write_values();
      EXPECT_EQ(state.wrong_value(), "");
    }
    EXPECT_EQ(owned, elements) << ranks;
  }
}

TEST(ControlPlaneParts, ARowIsComputedByThePowerThatJoinsTwo) {
  Row a{.phase = "save", .ranks = 8, .all = {}}, b{.phase = "save", .ranks = 64, .all = {}};
  a.all.requests = 80;
  b.all.requests = 640;
  a.keys = b.keys = 7;
  a.memory = 1 << 10;
  b.memory = 1 << 16;
  const Row row = computed_row({a, b}, 512);
  EXPECT_EQ(row.all.requests, 5120);  // linear
  EXPECT_EQ(row.keys, 7);             // constant
  EXPECT_EQ(row.memory, 1 << 22);     // the square
  EXPECT_NE(row.computed, "");
  EXPECT_NE(table_of({a, b, row}).find("not run: computed from 8 and 64 ranks"), std::string::npos);
}

TEST(ControlPlaneParts, OptionsThatAreNotKnownAreRefused) {
  EXPECT_EQ(options_from({"--ranks", "3072"}).ranks, (std::vector<int64_t>{32, 128, 3072}));
  const Options options = options_from({"--curve", "64,8", "--lose", "3,5-7", "--late", "20:500"});
  EXPECT_EQ(options.ranks, (std::vector<int64_t>{8, 64}));
  EXPECT_EQ(options.lose, (std::vector<int64_t>{3, 5, 6, 7}));
  EXPECT_EQ(options.faults.late, milliseconds(500));
  EXPECT_EQ(options.beat, milliseconds(1000));
  const Options host = options_from({"--curve", "64", "--lose", "3,host:2", "--beat", "0.3"});
  EXPECT_EQ(host.lose, (std::vector<int64_t>{3, 16, 17, 18, 19, 20, 21, 22, 23}));
  EXPECT_EQ(host.beat, milliseconds(300));
  EXPECT_EQ(options_from({"--ranks", "16", "--lose", "host"}).lose, ranks_of_host(1));
  // The store ends with who serves it.
  for (const auto* lost : {"0", "1"}) {
    const Options first = options_from({"--ranks", "8", "--first-serves", "--lose", lost});
    EXPECT_EQ(first.lose_store, lost[0] == '0');
  }
  const std::vector<std::vector<std::string>> wrong = {{},
                                                       {"--ranks"},
                                                       {"--ranks", "x"},
                                                       {"--ranks", "8", "--fast"},
                                                       {"--ranks", "8", "--load"},
                                                       {"--ranks", "8", "--lose", "8"},
                                                       {"--ranks", "8", "--lose", "host"},
                                                       {"--ranks", "16", "--lose", "hosts"},
                                                       {"--ranks", "8", "--beat", "0"},
                                                       {"--ranks", "8", "--beat", "1s"},
                                                       {"--ranks", "8", "--late", "20"}};
  for (const auto& words : wrong) EXPECT_THROW(options_from(words), Error);
}

}  // namespace
}  // namespace troupe::control_plane
