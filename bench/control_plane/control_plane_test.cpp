// What a run's control plane may ask for, as functions of the number of ranks N: counted, not timed,
// at 8 and 64 ranks of the simulation that bench/control_plane prints for thousands.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "bench/control_plane/options.h"
#include "bench/control_plane/resources.h"
#include "bench/control_plane/row.h"
#include "bench/control_plane/simulated_world.h"
#include "bench/control_plane/start_probe.h"
#include "bench/control_plane/state_boxes.h"
#include "troupe/core/check.h"

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

int64_t bytes_in(const std::string& folder) {
  int64_t out = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) out += static_cast<int64_t>(entry.file_size());
  }
  return out;
}

// A run of N ranks: a start, three saves, and the loads of runs that come after it.
struct Phases {
  Row start, save, again, third, load, other;
  int64_t folder_bytes = 0;

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
}

SimulatedWorld::Ending ending(SimulatedRun run, const std::vector<int64_t>& lost, bool store) {
  SimulatedWorld world(catalog(), std::move(run));
  const Row start = world.start();
  EXPECT_EQ(start.fault, "");
  SimulatedWorld::Ending out = world.lose(lost, store);
  EXPECT_EQ(out.row.fault, "");
  EXPECT_LE(out.row.seconds, 10);
  return out;
}

// Some requests a rank, heartbeats among them, however many ranks there are.
TEST_F(ControlPlane, ALostRankIsNamedByRequestsInProportionToTheRanks) {
  for (const int64_t ranks : {kFew, kMany}) {
    const auto end = ending(run_of(ranks), {5}, false);
    EXPECT_EQ(end.named, ranks - 1) << end.row.note;
    EXPECT_LE(end.row.all.found(), 64 * ranks);
  }
}

TEST_F(ControlPlane, RankZeroAndAHostOfEightAreNamedWhenTheyAreLost) {
  EXPECT_EQ(ending(run_of(kMany), {0}, false).named, kMany - 1);
  std::vector<int64_t> host;
  for (int64_t r = 2 * kRanksOfHost; r < 3 * kRanksOfHost; ++r) host.push_back(r);
  EXPECT_EQ(ending(run_of(kMany), host, false).named, kMany - kRanksOfHost);
}

TEST_F(ControlPlane, TheStoresHostIsNamedWhereRankZeroServesIt) {
  SimulatedRun run = run_of(kMany);
  run.first_serves = true;
  const auto end = ending(run, {0}, true);
  EXPECT_EQ(end.named, kMany - 1) << end.row.note;
}

// Nobody can know who it was: each says so, and none hangs.
TEST_F(ControlPlane, RanksEndWhenTheLauncherDies) {
  const auto end = ending(run_of(kMany), {}, true);
  EXPECT_EQ(end.unknown, kMany) << end.row.note;
}

TEST_F(ControlPlane, ALateAndASlowHostAreWaitedForAndNobodyIsLost) {
  const Folder folder;
  SimulatedRun run = run_of(kMany, folder.of("run"));
  run.faults = {.late_each = 20, .late = milliseconds(1500), .slow_host = 3};
  run.faults.slow = milliseconds(20);
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
  const std::vector<std::vector<std::string>> wrong = {{},
                                                       {"--ranks"},
                                                       {"--ranks", "x"},
                                                       {"--ranks", "8", "--fast"},
                                                       {"--ranks", "8", "--load"},
                                                       {"--ranks", "8", "--lose", "8"},
                                                       {"--ranks", "8", "--late", "20"}};
  for (const auto& words : wrong) EXPECT_THROW(options_from(words), Error);
}

}  // namespace
}  // namespace troupe::control_plane
