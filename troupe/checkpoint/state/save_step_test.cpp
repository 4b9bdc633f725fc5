// LONG: one fixture, whose save every test asks another promise of.
#include "troupe/checkpoint/state/save_step.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>
#include <utility>

#include "troupe/checkpoint/files/reader.h"
#include "troupe/checkpoint/folder/find_resume.h"
#include "troupe/checkpoint/folder/run_folder.h"
#include "troupe/checkpoint/state/thread_ranks_test.h"
#include "troupe/checkpoint/tensors/describe_tensors.h"
#include "troupe/checkpoint/tensors/tensor_set.h"
#include "troupe/core/check.h"
#include "troupe/core/config/json.h"
#include "troupe/core/file/hash.h"
#include "troupe/core/version.h"
#include "troupe/testing/fault_fs.h"
#include "troupe/testing/power_cut_fs.h"
#include "troupe/testing/temporary_folder.h"

namespace troupe {
namespace {

namespace stdfs = std::filesystem;
using testing::FaultFs;
using testing::TemporaryFolder;
using testing::ThreadRanks;

constexpr int64_t kRows = 6, kColumns = 8;
const Faults kNone;

std::vector<float> weights(int64_t step) {
  std::vector<float> out(kRows * kColumns);
  std::iota(out.begin(), out.end(), 100.f * static_cast<float>(step));
  return out;
}

// What rank `rank` of `world` holds at a step: rows of w, and the rest once.
struct RankState {
  RankState(int64_t step, int rank, int world) : all(weights(step)), count(step) {
    const int64_t from = kRows * rank / world, to = kRows * (rank + 1) / world;
    const auto bytes = std::as_bytes(std::span(all));
    const size_t each = kColumns * sizeof(float);
    pieces.push_back(
        {{"w", Element::kF32, {{kRows, kColumns}, {from, 0}, {to - from, kColumns}}},
         bytes.subspan(static_cast<size_t>(from) * each, static_cast<size_t>(to - from) * each)});
    if (rank == 0) {
      pieces.push_back(
          {{"count", Element::kI64, Box::whole({})}, std::as_bytes(std::span(&count, 1))});
    }
  }
  std::vector<float> all;
  int64_t count;
  std::vector<ShardPiece> pieces;
};

class Save : public ::testing::Test {
 protected:
  Save() { config_.dir = folder_.path(); }

  SaveResult save_as(Fs& fs, const CheckpointGroup& group, const SaveInfo& info,
                     const Faults& faults = kNone) const {
    const RankState state(info.step, group.rank, group.size);
    SaveResult result;
    const Log log;
    save_step({fs, faults, group, log, nullptr}, config_, "run", info, state.pieces, result);
    return result;
  }
  SaveResult save(int64_t step) { return save_as(fs_, {}, {.step = step}); }

  // The step that a start takes; every byte of it is what was saved.
  static int64_t resumed(const std::string& run) {
    const auto point = find_resume(run, {});
    if (!point) return -1;
    const CheckpointReader reader(point->folder);
    const int64_t step = point->manifest.step;
    EXPECT_EQ(read(reader, Box::whole({kRows, kColumns})), weights(step));
    int64_t count = 0;
    reader.read(*reader.find("count"), "count", Box::whole({}),
                std::as_writable_bytes(std::span(&count, 1)), kNone);
    EXPECT_EQ(count, step);
    return step;
  }

  static std::vector<float> read(const CheckpointReader& reader, const Box& box) {
    std::vector<float> out(static_cast<size_t>(box.numel()), -1.f);
    reader.read(*reader.find("w"), "w", box, std::as_writable_bytes(std::span(out)), kNone);
    return out;
  }

  std::set<std::string> names() const {
    std::set<std::string> out;
    for (const auto& entry : stdfs::directory_iterator(folder_.path())) {
      out.insert(entry.path().filename());
    }
    return out;
  }

  template <class F>
  static Error error_of(F&& f) {
    try {
      f();
    } catch (const Error& e) {
      return e;
    }
    throw std::logic_error("nothing was thrown");
  }
  static bool has(const Error& e, const std::string& part) {
    return std::string(e.what()).find(part) != std::string::npos;
  }

  TemporaryFolder folder_;
  CheckpointConfig config_;
  Fs fs_;
};

TEST_F(Save, WhatIsSavedIsFoundAndRead) {
  EXPECT_EQ(resumed(folder_.path()), -1);
  const SaveResult result = save(5);
  EXPECT_EQ(result.skipped, "");
  EXPECT_GT(result.bytes, kRows * kColumns * 4);
  EXPECT_EQ(resumed(folder_.path()), 5);
  EXPECT_EQ(names(), (std::set<std::string>{"step-000005", "latest"}));
  EXPECT_EQ(read_file(folder_ / "latest"), "step-000005\n");
}

// Under keep: 0 no good step goes, so that none of the older manifests is read at a save: a second
// bad step, which they would tell of, stays until a bad one is written.
TEST_F(Save, F167_WhereAllStepsStayNoOlderManifestIsRead) {
  config_.keep = 0;
  config_.keep_every = config_.keep_best = 0;
  save_as(fs_, {}, {.step = 1, .bad = true});
  stdfs::copy(folder_ / "step-000001", folder_ / "step-000002", stdfs::copy_options::recursive);
  save(3);
  EXPECT_EQ(steps_in(folder_.path()), (std::vector<int64_t>{1, 2, 3}));
  save_as(fs_, {}, {.step = 4, .bad = true});
  EXPECT_EQ(steps_in(folder_.path()), (std::vector<int64_t>{3, 4}));
}

TEST_F(Save, AnyNumberOfRanksWritesWhatAnyOtherReads) {
  for (const int world : {1, 2, 3, 4}) {
    ThreadRanks(world).run(
        [&](const CheckpointGroup& group) { save_as(fs_, group, {.step = world}); });
    const CheckpointReader reader(folder_of(folder_.path(), world));
    EXPECT_EQ(reader.manifest().shards.size(), static_cast<size_t>(world));
    const std::vector<float> all = weights(world);
    for (const int64_t readers : {1, 2, 4}) {
      for (int64_t r = 0; r < readers; ++r) {  // by columns: across every slice that was written
        const int64_t width = kColumns / readers;
        const Box box{{kRows, kColumns}, {1, r * width}, {kRows - 1, width}};
        const std::vector<float> got = read(reader, box);
        for (size_t i = 0; i < got.size(); ++i) {
          const size_t row = 1 + i / static_cast<size_t>(width);
          const size_t column = static_cast<size_t>(r * width) + i % static_cast<size_t>(width);
          ASSERT_EQ(got[i], all[row * kColumns + column]);
        }
      }
    }
  }
}

TEST_F(Save, ABoxThatTwoRanksWriteOrNobodyIsNotPublished) {
  ThreadRanks(2).run([&](const CheckpointGroup& group) {
    const RankState twice(1, 0, 1);
    SaveResult result;
    const Log log;
    const SaveInfo info{.step = 1};
    const auto pieces = std::vector<ShardPiece>{twice.pieces[0]};
    const Error e = error_of([&] {
      save_step({fs_, kNone, group, log, nullptr}, config_, "run", info, pieces, result);
    });
    EXPECT_TRUE(has(e, "do not cover [6, 8] once each")) << e.what();
  });
  const RankState half(1, 0, 2);
  SaveResult result;
  const Log log;
  const SaveInfo info{.step = 1};
  EXPECT_THROW(save_step({fs_, kNone, CheckpointGroup{}, log, nullptr}, config_, "run", info,
                         half.pieces, result),
               Error);
  EXPECT_TRUE(names().empty());
}

TEST_F(Save, F1_AKillAtAnyFileOperationLeavesAStepToGoOnFrom) {
  config_.keep = 1;  // so that the kill also meets the removal of step 1
  bool was_new = false, dead = true;
  int n = 1;
  for (; dead; ++n) {
    stdfs::remove_all(folder_.path());
    stdfs::create_directory(folder_.path());
    save(1);
    const pid_t child = fork();
    if (child == 0) {
      FaultFs fs;
      fs.at = n, fs.action = FaultFs::Action::kDie;
      save_as(fs, {}, {.step = 2});
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    dead = WEXITSTATUS(status) == 99;
    const int64_t step = resumed(folder_.path());
    EXPECT_TRUE(step == 2 || (step == 1 && !was_new)) << n << ": " << step;
    was_new = step == 2;
    remove_staging(fs_, folder_.path());
    save(3);  // the next save is not in the way of the last
    EXPECT_EQ(resumed(folder_.path()), 3);
    EXPECT_EQ(names(), (std::set<std::string>{"step-000003", "latest"})) << n;
  }
  EXPECT_GT(n, 30);
  EXPECT_TRUE(was_new);
}

TEST_F(Save, F2_APowerCutAtAnyMomentLeavesTheOldStepOrTheNew) {
  config_.keep = 1;
  save(1);
  testing::PowerCutFs fs(folder_.path());
  save_as(fs, {}, {.step = 2});
  std::set<int64_t> seen;
  const size_t states = fs.for_each_state([&](const testing::Tree& tree) {
    const TemporaryFolder disk;
    testing::write_tree(tree, disk.path());
    seen.insert(resumed(disk.path()));
  });
  EXPECT_GT(states, 40u);
  EXPECT_EQ(seen, (std::set<int64_t>{1, 2}));
}

TEST_F(Save, F18_F2_APowerCutWhileAStepIsReplacedLeavesAWholeOne) {
  save(1);
  testing::PowerCutFs fs(folder_.path());
  save_as(fs, {}, {.step = 1, .force = true});
  const size_t states = fs.for_each_state([&](const testing::Tree& tree) {
    const TemporaryFolder disk;
    testing::write_tree(tree, disk.path());
    EXPECT_EQ(resumed(disk.path()), 1);
  });
  EXPECT_GT(states, 40u);
}

TEST_F(Save, F5_AKillBetweenPublishAndPruneLeavesOneStepMore) {
  config_.keep = 1;
  save(1);
  const pid_t child = fork();
  if (child == 0) {
    save_as(fs_, {}, {.step = 2}, Faults("prune=kill"));
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(steps_in(folder_.path()), (std::vector<int64_t>{1, 2}));
  save(3);
  EXPECT_EQ(steps_in(folder_.path()), std::vector<int64_t>{3});
}

TEST_F(Save, F6_F7_F8_AFaultOfAnyOperationIsToldAndTheOldStepStays) {
  config_.keep = 1;
  for (const int error : {ENOSPC, EIO, EDQUOT, EFBIG, EROFS}) {
    const int stride = error == ENOSPC || error == EIO ? 1 : 7;  // the others differ in text alone
    for (int n = 1;; n += stride) {
      stdfs::remove_all(folder_.path());
      stdfs::create_directory(folder_.path());
      save(1);
      FaultFs fs;
      fs.at = n, fs.error = error;
      try {
        save_as(fs, {}, {.step = 2});
        if (static_cast<int>(fs.log.size()) < n) break;
        EXPECT_EQ(resumed(folder_.path()), 2);  // only a close of a synced folder, or the prune
      } catch (const Error& e) {
        EXPECT_EQ(e.exit_class(), ExitClass::kResource) << e.what();
        EXPECT_TRUE(has(e, folder_.path())) << e.what();
        EXPECT_TRUE(has(e, std::generic_category().message(error))) << e.what();
        for (const std::string& name : names()) EXPECT_FALSE(is_staging(name)) << name;
        EXPECT_GE(resumed(folder_.path()), 1);
      }
      save(3);  // the next interval: nothing is in the way
      EXPECT_EQ(resumed(folder_.path()), 3);
    }
  }
}

TEST_F(Save, F6_AFullDiskNamesBytesNeededAndFree) {
  FaultFs fs;
  fs.at = 3, fs.error = ENOSPC;  // the shard's header
  const Error e = error_of([&] { save_as(fs, {}, {.step = 1}); });
  EXPECT_EQ(e.code(), Code::kNoSpace);
  EXPECT_TRUE(has(e, "more are needed now") && has(e, "are free")) << e.what();
  EXPECT_TRUE(names().empty());
}

TEST_F(Save, F14_NumbersThatAreNotFiniteTagTheStepBad) {
  save(1);
  RankState state(2, 0, 1);
  state.all[7] = NAN;
  SaveResult result;
  const Log log;
  const SaveInfo info{.step = 2};
  save_step({fs_, kNone, CheckpointGroup{}, log, nullptr}, config_, "run", info, state.pieces,
            result);
  EXPECT_TRUE(result.bad);
  EXPECT_EQ(read_file(folder_ / "latest"), "step-000001\n");
  const auto point = find_resume(folder_.path(), {});
  EXPECT_EQ(point->manifest.step, 1);
  EXPECT_EQ(point->passed_over[0], "step 2: tagged bad: its weights hold NaN");
  EXPECT_EQ(find_resume(folder_.path(), {Resume::kStep, 2})->manifest.step, 2);
}

TEST_F(Save, F15_OneRankThatCannotWriteStopsThePublishOnAll) {
  save(1);
  ThreadRanks(4).run([&](const CheckpointGroup& group) {
    const Faults faults("save.shard@2=eio", group.rank);
    const Error e = error_of([&] { save_as(fs_, group, {.step = 2}, faults); });
    EXPECT_EQ(e.code(), Code::kFileFailed);
    EXPECT_TRUE(has(e, "rank 2: ") && !has(e, "rank 1: ")) << e.what();
  });
  EXPECT_EQ(steps_in(folder_.path()), std::vector<int64_t>{1});
  for (const std::string& name : names()) EXPECT_FALSE(is_staging(name)) << name;
}

TEST_F(Save, F18_ACompleteStepIsLeftAloneUnlessForced) {
  save(1);
  const auto before = stdfs::last_write_time(folder_ / "step-000001/manifest.json");
  const SaveResult again = save(1);
  EXPECT_NE(again.skipped.find("is there and complete"), std::string::npos);
  EXPECT_EQ(stdfs::last_write_time(folder_ / "step-000001/manifest.json"), before);
  EXPECT_EQ(save_as(fs_, {}, {.step = 1, .score = 0.5}).skipped, again.skipped);
  EXPECT_EQ(save_as(fs_, {}, {.step = 1, .force = true, .score = 0.5}).skipped, "");
  EXPECT_EQ(check_complete(folder_ / "step-000001").score, 0.5);
  EXPECT_EQ(names(), (std::set<std::string>{"step-000001", "latest"}));
}

TEST_F(Save, F18_WhatIsNotCompleteGivesWay) {
  stdfs::create_directory(folder_ / "step-000001");
  save(1);
  EXPECT_EQ(resumed(folder_.path()), 1);
  publish_file(fs_, folder_ / "step-000002", "a plain file");
  save(2);
  EXPECT_EQ(resumed(folder_.path()), 2);
  EXPECT_EQ(names(), (std::set<std::string>{"step-000001", "step-000002", "latest"}));
}

TEST_F(Save, F22_AFolderThatWasDeletedIsMadeAnew) {
  config_.dir = folder_ / "a/b";
  save(1);
  stdfs::remove_all(folder_ / "a");
  save(2);
  EXPECT_EQ(resumed(folder_ / "a/b"), 2);
}

TEST_F(Save, KeepsTheNewestTheEveryNthAndTheBest) {
  config_.keep = 2, config_.keep_every = 4, config_.keep_best = 1;
  for (int64_t step = 1; step <= 9; ++step) {
    save_as(fs_, {}, {.step = step, .score = std::abs(static_cast<double>(step) - 2.9)});
  }
  EXPECT_EQ(steps_in(folder_.path()), (std::vector<int64_t>{3, 4, 8, 9}));
  config_.keep = 0;
  for (int64_t step = 10; step <= 14; ++step) save(step);
  EXPECT_EQ(steps_in(folder_.path()).size(), 9u);
}

TEST_F(Save, F19_NewestByNumberAmongTheCompleteOnes) {
  config_.keep = 0;
  for (const int64_t step : {9, 10, 100000000}) save(step);
  EXPECT_EQ(resumed(folder_.path()), 100000000);
  // Times tell nothing.
  stdfs::last_write_time(folder_ / "step-000009", stdfs::file_time_type::clock::now());
  stdfs::remove(folder_ / "step-100000000/manifest.json");
  stdfs::create_directory(folder_ / "step-11x");
  stdfs::create_directory(folder_ / "step-");
  stdfs::create_directory(folder_ / "step--12");
  stdfs::create_directory(folder_ / "junk");
  publish_file(fs_, folder_ / "step-7", "x");
  publish_file(fs_, folder_ / "step-13", "x");
  const auto point = find_resume(folder_.path(), {});
  EXPECT_EQ(point->manifest.step, 10);
  ASSERT_EQ(point->passed_over.size(), 1u);
  EXPECT_EQ(point->passed_over[0], "step 100000000: " + (folder_ / "step-100000000") +
                                       ": is incomplete: manifest.json is missing");
}

TEST_F(Save, APathIsARunOrOneOfItsSteps) {
  for (const int64_t step : {3, 4}) save(step);
  const std::string run = folder_.path(), step = folder_ / "step-000003";
  EXPECT_EQ(find_step(run_path(run)).manifest.step, 4);
  EXPECT_EQ(find_step(run_path(run + "/")).folder, folder_ / "step-000004");
  EXPECT_EQ(run_path(step + "//").run, run);
  EXPECT_EQ(find_step(run_path(step + "//")).manifest.step, 3);
  EXPECT_EQ(run_path("step-000003").run, ".");
  // By its manifest under any name; by its name without a manifest, which is then missed.
  stdfs::rename(step, folder_ / "kept");
  EXPECT_EQ(find_step(run_path(folder_ / "kept")).manifest.step, 3);
  EXPECT_EQ(error_of([&] { find_step(run_path(step)); }).code(), Code::kNoCheckpoint);
}

TEST_F(Save, F20_AnyPathWorks) {
  const std::string name =
      "a folder with sp\xc3\xa4"
      "ce " +
      std::string(150, 'n');
  stdfs::create_directory(folder_ / name);
  stdfs::create_directory_symlink(folder_ / name, folder_ / "link");
  config_.dir = folder_ / "link";
  save(1);
  EXPECT_EQ(resumed(folder_ / name), 1);
}

TEST_F(Save, F36_ACopyThatIsUnderWayIsPassedOver) {
  save(1);
  save(2);
  const std::string step = folder_ / "step-000002", aside = folder_ / "aside";
  for (const char* missing :
       {"manifest.json", "shard-00000-000.safetensors", "shard-00000-000.jsonl"}) {
    stdfs::rename(step + '/' + missing, aside);
    EXPECT_EQ(resumed(folder_.path()), 1) << missing;
    stdfs::rename(aside, step + '/' + missing);
  }
  stdfs::resize_file(step + "/shard-00000-000.safetensors", 100);
  const auto point = find_resume(folder_.path(), {});
  EXPECT_EQ(point->manifest.step, 1);
  EXPECT_NE(point->passed_over[0].find("has 100 bytes, not "), std::string::npos);
}

TEST_F(Save, F37_TheFileLatestNeverDecides) {
  save(1);
  save(2);
  const auto note = [&](const std::string& text) {
    publish_file(fs_, folder_ / "latest", text);
    const auto point = find_resume(folder_.path(), {});
    EXPECT_EQ(point->manifest.step, 2);
    EXPECT_EQ(point->passed_over.size(), 0u);
    return point->latest_note;
  };
  EXPECT_EQ(note("step-000002\n"), "");
  EXPECT_NE(note("step-000001\n").find("the newest complete step is step-000002"),
            std::string::npos);
  EXPECT_NE(note("").find("latest says \"\""), std::string::npos);
  EXPECT_NE(note("step-000077").find("latest says"), std::string::npos);
  EXPECT_NE(note("../elsewhere").find("refused"), std::string::npos);
  stdfs::remove(folder_ / "latest");
  EXPECT_NE(find_resume(folder_.path(), {})->latest_note.find("is missing"), std::string::npos);
}

TEST_F(Save, ResumeSaysWhatItMayTake) {
  EXPECT_FALSE(find_resume(folder_.path(), {}));
  EXPECT_FALSE(find_resume(folder_ / "none", {}));
  EXPECT_EQ(error_of([&] {
              find_resume(folder_.path(), {Resume::kMust, 0});
            }).code(),
            Code::kNoCheckpoint);
  save(1);
  save(2);
  EXPECT_FALSE(find_resume(folder_.path(), {Resume::kNever, 0}));
  EXPECT_EQ(find_resume(folder_.path(), {Resume::kStep, 1})->manifest.step, 1);
  EXPECT_TRUE(has(error_of([&] { find_resume(folder_.path(), {Resume::kStep, 3}); }), "[1, 2]"));
  stdfs::remove(folder_ / "step-000002/manifest.json");
  // A named step never falls back.
  EXPECT_TRUE(has(error_of([&] {
                    find_resume(folder_.path(), {Resume::kStep, 2});
                  }),
                  "manifest.json is missing"));
  stdfs::remove(folder_ / "step-000001/manifest.json");
  // All are incomplete: not a fresh start by itself.
  const Error e = error_of([&] { find_resume(folder_.path(), {}); });
  EXPECT_TRUE(has(e, "passed over step 1") && has(e, "passed over step 2")) << e.what();
}

TEST_F(Save, ForeignCheckpointsAreRecognizedAndNotOpened) {
  const auto hint = [&](const std::vector<std::string>& files) {
    const TemporaryFolder other;
    for (const std::string& file : files) publish_file(fs_, other / file, "x");
    const Error e = error_of([&] { check_complete(other.path()); });
    EXPECT_EQ(e.code(), Code::kForeignCheckpoint) << e.what();
    return std::string(e.what());
  };
  EXPECT_NE(hint({".metadata", "__0_0.distcp"}).find("troupe_foreign"), std::string::npos);
  EXPECT_NE(hint({"__0_0.distcp"}).find(".metadata is missing"), std::string::npos);
  EXPECT_NE(hint({"latest_checkpointed_iteration.txt"}).find("Megatron-LM"), std::string::npos);
  EXPECT_NE(hint({"metadata.json", ".metadata", "__0_0.distcp", "common.pt"}).find("Megatron-LM"),
            std::string::npos);
  EXPECT_NE(hint({"mp_rank_00_000"}).find("mp_rank"), std::string::npos);
  EXPECT_NE(hint({"model_optim_rng.pt"}).find("never opened"), std::string::npos);
  EXPECT_NE(hint({"x.pt"}).find("weights_only=True"), std::string::npos);
  EXPECT_NE(hint({"pytorch_model.bin"}).find("never opened"), std::string::npos);
}

// --- reading what is damaged ---

class Damage : public Save {
 protected:
  Damage() {
    save(1);
    shard_ = folder_ / "step-000001/shard-00000-000.safetensors";
    index_ = folder_ / "step-000001/shard-00000-000.jsonl";
    manifest_ = folder_ / "step-000001/manifest.json";
  }
  static void overwrite(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  }
  void flip(const std::string& path, size_t bit) {
    std::string bytes = read_file(path);
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    overwrite(path, bytes);
  }
  Error damage() {
    return error_of([&] { resumed(folder_.path()); });
  }
  std::string shard_, index_, manifest_;
};

TEST_F(Damage, F23_ACutShardIsIncompleteWithItsBytes) {
  const auto size = static_cast<int64_t>(stdfs::file_size(shard_));
  for (const int64_t left : {int64_t{0}, int64_t{7}, size / 2, size - 1}) {
    stdfs::resize_file(shard_, static_cast<uintmax_t>(left));
    const Error e = damage();
    EXPECT_EQ(e.exit_class(), ExitClass::kCheckpoint);
    EXPECT_TRUE(has(e, "has " + std::to_string(left) + " bytes, not " + std::to_string(size)));
  }
}

TEST_F(Damage, F24_EveryFlippedBitIsFound) {
  for (const std::string& path : {shard_, index_, manifest_}) {
    const std::string before = read_file(path);
    // Each bit of the first and last bytes, and one bit of each byte in between.
    for (size_t byte = 0; byte < before.size(); ++byte) {
      const bool edge = byte < 16 || byte + 16 > before.size();
      for (size_t bit = edge ? 0 : byte % 8; bit < (edge ? 8 : byte % 8 + 1); ++bit) {
        flip(path, byte * 8 + bit);
        const Error e = damage();
        EXPECT_EQ(e.exit_class(), ExitClass::kCheckpoint) << e.what();
        overwrite(path, before);
      }
    }
  }
  EXPECT_EQ(resumed(folder_.path()), 1);
}

TEST_F(Damage, F24_ADamagedTensorIsNamed) {
  flip(shard_, static_cast<size_t>(stdfs::file_size(shard_)) * 8 - 5);
  const Error e = damage();
  EXPECT_EQ(e.code(), Code::kDamagedCheckpoint);
  EXPECT_TRUE(has(e, shard_ + ": E4004 tensor w [6, 8] is damaged")) << e.what();
  // Also where only a part of it is asked for.
  const CheckpointReader reader(folder_ / "step-000001");
  EXPECT_THROW(read(reader, {{kRows, kColumns}, {0, 0}, {1, 1}}), Error);
}

TEST_F(Damage, F35_AShardOfAnotherStepOrRunIsRefused) {
  save(2);
  stdfs::copy_file(folder_ / "step-000002/shard-00000-000.safetensors", shard_,
                   stdfs::copy_options::overwrite_existing);
  const CheckpointReader reader(folder_ / "step-000001");
  const Error e = error_of([&] { read(reader, Box::whole({kRows, kColumns})); });
  EXPECT_EQ(e.code(), Code::kDamagedCheckpoint);
  EXPECT_TRUE(has(e, "belongs to run run step 2 and the manifest to run run step 1")) << e.what();
}

TEST_F(Damage, F26_WhatIsNoManifestIsRefusedWithItsPlace) {
  const std::string good = read_file(manifest_);
  std::string deep = good.substr(0, good.find("\"run\"")) + "\"run\":";
  for (int i = 0; i < 100'000; ++i) deep += '[';
  for (const std::string& text :
       {std::string(), good.substr(0, good.size() / 2), std::string("[]"), std::string("nonsense"),
        std::string("{\"checksum\":\"0000000000000000\"}"), deep}) {
    publish_file(fs_, manifest_, text);
    const Error e = damage();
    EXPECT_EQ(e.exit_class(), ExitClass::kCheckpoint) << e.what();
    EXPECT_TRUE(has(e, manifest_)) << e.what();
  }
  publish_file(fs_, manifest_, "");
  stdfs::resize_file(manifest_, uintmax_t{1} << 30);  // sparse
  EXPECT_TRUE(has(damage(), "has 1073741824 bytes, more than"));
}

TEST_F(Damage, F31_ANewerFormatNamesBothVersions) {
  Manifest manifest = read_manifest(folder_ / "step-000001");
  manifest.format = kCheckpointFormat + 1;
  std::string text = to_json(manifest);
  const std::string said = "\"version\":" + to_text(version());
  ASSERT_NE(text.find(said), std::string::npos) << text;
  text.replace(text.find(said), said.size(), "\"version\":\"9.8.7\"");
  publish_file(fs_, manifest_, text);
  const Error e = error_of([&] { read_manifest(folder_ / "step-000001"); });
  EXPECT_EQ(e.code(), Code::kOtherFormat);
  EXPECT_TRUE(has(e, "format 3 made by Troupe 9.8.7; this is Troupe " + version())) << e.what();
}

TEST_F(Damage, F31_AManifestSaysWhatWroteItAndOneThatDoesNotIsOf010) {
  const Manifest manifest = read_manifest(folder_ / "step-000001");
  EXPECT_EQ(manifest.version, version());
  std::string text = to_json(manifest);
  const std::string said = "\"version\":" + to_text(version()) + ',';
  ASSERT_NE(text.find(said), std::string::npos) << text;
  text.erase(text.find(said), said.size());
  const size_t at = std::string("{\"checksum\":\"").size();
  text.replace(at, 16, 16, '0');
  text.replace(at, 16, hex(hash64(text)));
  publish_file(fs_, manifest_, text);
  EXPECT_EQ(read_manifest(folder_ / "step-000001").version, "0.1.0");
  EXPECT_EQ(read_manifest(folder_ / "step-000001").run, manifest.run);
}

TEST_F(Damage, F153_AnIndexOfATensorThatNoShardHoldsIsRefused) {
  for (const int64_t size : {INT64_MAX, int64_t{1} << 40}) {
    const std::string text = to_json(StoredTensor{{"w", Element::kU8, Box::whole({size})}, "0"});
    publish_file(fs_, index_, text);
    Manifest manifest = read_manifest(folder_ / "step-000001");
    manifest.shards[0].index_hash = hex(hash64(text));
    manifest.shards[0].index_bytes = static_cast<int64_t>(text.size());
    publish_file(fs_, manifest_, to_json(manifest));
    const Error e =
        error_of([&] { describe_tensors(*open_tensors(folder_ / "step-000001"), true); });
    EXPECT_EQ(e.exit_class(), ExitClass::kCheckpoint) << e.what();
    EXPECT_TRUE(has(e, index_)) << e.what();
  }
}

TEST_F(Damage, F137_AManifestNamesNoFileElsewhere) {
  for (const char* name : {"../x", "/etc/passwd", "..", "", "a/b"}) {
    Manifest manifest = read_manifest(folder_ / "step-000001");
    manifest.shards[0].file = name;
    EXPECT_THROW(parse_manifest(to_json(manifest), "m"), Error) << name;
  }
}

TEST_F(Damage, F164_AManifestNamesEachFileOnce) {
  Manifest manifest = read_manifest(folder_ / "step-000001");
  manifest.shards.assign(200, manifest.shards[0]);
  EXPECT_TRUE(has(error_of([&] { parse_manifest(to_json(manifest), "m"); }), "twice"));
}

TEST_F(Damage, F39_AFileThatCannotBeReadIsTriedFiveTimes) {
  const CheckpointReader reader(folder_ / "step-000001");
  std::vector<float> out(kRows * kColumns);
  const auto read_with = [&](const Faults& faults) {
    reader.read(*reader.find("w"), "w", Box::whole({kRows, kColumns}),
                std::as_writable_bytes(std::span(out)), faults);
  };
  read_with(Faults("load.read#1=eio;load.read#2=eio"));
  EXPECT_EQ(out, weights(1));
  const Error e = error_of([&] { read_with(Faults("load.read=eio")); });
  EXPECT_EQ(e.code(), Code::kUnreadableCheckpoint);
  EXPECT_TRUE(has(e, shard_) && has(e, "Input/output error")) << e.what();
}

TEST_F(Damage, TheManifestKeepsWhatTheRunGaveIt) {
  const SaveInfo info{.step = 4,
                      .scalars = R"({"tokens":9007199254740993,"lr":0.1,"s":"\u00e4\"shards\":["})",
                      .fingerprint = {{"model.moe.experts", "8"}, {"data", "abc"}},
                      .score = 2.5};
  save_as(fs_, {}, info);
  const Manifest m = read_manifest(folder_ / "step-000004");
  EXPECT_EQ(m.scalars_text, info.scalars);
  EXPECT_EQ(m.fingerprint, info.fingerprint);
  EXPECT_EQ(m.score, 2.5);
  EXPECT_EQ(m.run, "run");
  const auto lines = changes(m.fingerprint, {{"model.moe.experts", "4"}, {"seed", "1"}});
  EXPECT_EQ(lines, (std::vector<std::string>{"model.moe.experts: 8 was saved, 4 is asked for",
                                             "data: abc was saved, nothing is asked for",
                                             "seed: nothing was saved, 1 is asked for"}));
  // A key that the program did not know when it saved.
  const Fingerprint later = {
      {"model.moe.experts", "8"}, {"data", "abc"}, {"model.block.kind", "parallel"}};
  EXPECT_EQ(changes(m.fingerprint, later, {.defaults = {{"model.block.kind", "parallel"}}}),
            std::vector<std::string>());
  EXPECT_EQ(changes(m.fingerprint, later, {.defaults = {{"model.block.kind", "serial"}}}),
            std::vector<std::string>{"model.block.kind: nothing was saved, parallel is asked for"});
  // A default excuses no value that was saved.
  EXPECT_EQ(changes(m.fingerprint, {{"model.moe.experts", "4"}, {"data", "abc"}},
                    {.defaults = {{"model.moe.experts", "4"}}})
                .size(),
            1u);
  // A key that had another name when it was saved.
  EXPECT_EQ(changes(m.fingerprint, {{"model.moe.number", "8"}, {"data", "abc"}},
                    {.renamed = {{"model.moe.experts", "model.moe.number"}}}),
            std::vector<std::string>());
  EXPECT_EQ(changes(m.fingerprint, {{"model.moe.number", "4"}, {"data", "abc"}},
                    {.renamed = {{"model.moe.experts", "model.moe.number"}}}),
            std::vector<std::string>{"model.moe.number: 8 was saved, 4 is asked for"});
}

struct Counters {
  int64_t tokens = 0;
  struct Inner {
    double best = 1;
    static void visit(auto& c, auto&& f) { f("best", c.best); }
  } inner;
  static void visit(auto& c, auto&& f) {
    f("tokens", c.tokens);
    f("inner", c.inner);
  }
};

TEST_F(Damage, F131_StateThatIsMissingNeverBeginsAnew) {
  Manifest m;
  Counters counters;
  m.scalars = parse_json(R"({"tokens":7,"inner":{"best":0.5}})", "m");
  read_scalars(m, "x", counters);
  EXPECT_EQ(counters.tokens, 7);
  EXPECT_EQ(counters.inner.best, 0.5);
  for (const auto& [text, missing] : {std::pair{R"({"tokens":7})", "inner.best"},
                                      {R"({"inner":{"best":1}})", "tokens"},
                                      {"{}", "tokens, inner.best"}}) {
    m.scalars = parse_json(text, "m");
    const Error e = error_of([&] { read_scalars(m, "x", counters); });
    EXPECT_EQ(e.code(), Code::kStateMismatch);
    EXPECT_TRUE(has(e, std::string("lacks state of the run: ") + missing)) << e.what();
  }
}

// --- the run's folder ---

TEST_F(Save, F9_ARunFolderThatCannotBeIsToldAtOnce) {
  publish_file(fs_, folder_ / "plain", "x");
  for (const std::string& dir :
       {folder_ / "plain", folder_ / "plain/run", std::string("/proc/run"), std::string()}) {
    const Error e = error_of([&] { prepare_run_folder(fs_, dir); });
    EXPECT_EQ(e.code(), Code::kBadRunFolder) << e.what();
    EXPECT_EQ(e.exit_class(), ExitClass::kUsage);
  }
  FaultFs read_only;
  read_only.at = 1, read_only.error = EROFS;
  EXPECT_TRUE(has(error_of([&] { prepare_run_folder(read_only, folder_.path()); }), "Read-only"));
  prepare_run_folder(fs_, folder_ / "a/b/c");
  EXPECT_TRUE(stdfs::is_empty(folder_ / "a/b/c"));
}

TEST_F(Save, F10_TooLittleRoomIsForeseen) {
  EXPECT_EQ(space_warning(folder_.path(), 1, 3), "");
  const std::string line = space_warning(folder_.path(), int64_t{1} << 60, 3);
  EXPECT_NE(line.find("4 checkpoints of 1.0 EiB need 4.0 EiB, and "), std::string::npos) << line;
  EXPECT_NE(line.find(" are free"), std::string::npos);
}

TEST_F(Save, F11_TwoRunsDoNotShareAFolder) {
  {
    const RunLock lock(folder_.path());
    EXPECT_EQ(lock.taken_over(), "");
    const Error e = error_of([&] { const RunLock second(folder_.path()); });
    EXPECT_EQ(e.code(), Code::kFolderInUse);
    EXPECT_TRUE(has(e, "process " + std::to_string(getpid()) + " on ")) << e.what();
  }
  EXPECT_EQ(RunLock(folder_.path()).taken_over(), "");
  const pid_t child = fork();
  if (child == 0) {
    const RunLock lock(folder_.path());
    raise(SIGKILL);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_NE(RunLock(folder_.path()).taken_over().find("process " + std::to_string(child)),
            std::string::npos);
}

TEST_F(Save, LaterStepsOfABranchThatIsGivenUpAreSetAside) {
  config_.keep = 0;
  for (const int64_t step : {1, 2, 3}) save(step);
  stdfs::create_directory(folder_ / "step-000004");  // not complete: stays, and gives way later
  EXPECT_EQ(set_aside_later(fs_, folder_.path(), 1).size(), 2u);
  EXPECT_EQ(names(), (std::set<std::string>{"step-000001", "step-000002.aside", "step-000003.aside",
                                            "step-000004", "latest"}));
  save(2);
  EXPECT_EQ(set_aside_later(fs_, folder_.path(), 1).size(), 1u);
  EXPECT_TRUE(names().contains("step-000002.aside2"));
}

// F18: the abandoned branch's steps stay until the run has `keep` good ones after them.
TEST_F(Save, WhatWasSetAsideGoesOnceTheRunHasPassedIt) {
  config_.keep = 2;
  for (const int64_t step : {1, 2, 3}) save(step);
  EXPECT_EQ(names(), (std::set<std::string>{"step-000002", "step-000003", "latest"}));
  EXPECT_EQ(set_aside_later(fs_, folder_.path(), 1).size(), 2u);
  stdfs::create_directory(folder_ / "step-000001.aside");       // no checkpoint
  stdfs::create_directory(folder_ / "step-000002.aside.mine");  // another name
  std::set<std::string> rest = {"step-000001.aside", "step-000002.aside.mine", "latest"};
  const auto expect = [&](std::set<std::string> steps) {
    steps.insert(rest.begin(), rest.end());
    EXPECT_EQ(names(), steps);
  };
  save(2);
  expect({"step-000002.aside", "step-000003.aside", "step-000002"});
  save(3);  // of step 2 one good step after it, of step 3 none
  expect({"step-000002.aside", "step-000003.aside", "step-000002", "step-000003"});
  save(4);
  expect({"step-000003.aside", "step-000003", "step-000004"});
  save(5);
  expect({"step-000004", "step-000005"});
}

TEST_F(Save, WhatWasSetAsideStaysWhereItIsAskedForOrAnotherRuns) {
  const auto removed = [&] {
    return prune_set_aside(fs_, config_, [](const std::string& line) { ADD_FAILURE() << line; });
  };
  config_.keep = 0;
  for (const int64_t step : {4, 5}) save(step);
  EXPECT_EQ(set_aside_later(fs_, folder_.path(), 3).size(), 2u);
  for (const int64_t step : {4, 5, 6, 7}) save(step);
  EXPECT_TRUE(removed().empty());  // keep: 0 keeps all
  config_.keep = 2;
  config_.keep_every = 4;
  ASSERT_EQ(removed().size(), 1u);
  EXPECT_TRUE(names().contains("step-000004.aside"));
  EXPECT_FALSE(names().contains("step-000005.aside"));
  config_.keep_every = 0;
  const std::string manifest = folder_ / "step-000004.aside/manifest.json";
  Manifest other = read_manifest(folder_ / "step-000004.aside");
  const std::string own = std::exchange(other.run, "another run");
  publish_file(fs_, manifest, to_json(other));
  EXPECT_TRUE(removed().empty());
  other.run = own;
  publish_file(fs_, manifest, to_json(other));
  const std::vector<std::string> lines = removed();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_TRUE(
      lines[0].ends_with("/step-000004.aside, which the run has passed: good steps after it: "
                         "3, checkpoint.keep: 2"))
      << lines[0];
}

TEST(CheckpointConfig, ResumeIsAWord) {
  for (const char* text : {"auto", "must", "never", "step 12"}) {
    Resume resume;
    EXPECT_TRUE(from_text(text, resume));
    EXPECT_EQ(to_text(resume), text);
  }
  Resume resume;
  for (const char* text : {"", "step", "step x", "step -1", "step 01", "latest"}) {
    EXPECT_FALSE(from_text(text, resume)) << text;
  }
  CheckpointConfig config;
  validate(config);
  config.keep = -1, config.every_steps = -2;
  try {
    validate(config);
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(std::string(e.what()),
              "checkpoint.every_steps: E2005 is -2; at least 0 is asked for\n"
              "checkpoint.keep: E2005 is -1; at least 0 is asked for");
  }
}

}  // namespace
}  // namespace troupe
