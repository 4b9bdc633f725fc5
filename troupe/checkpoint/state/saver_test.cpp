#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <thread>

#include "troupe/checkpoint/folder/run_folder.h"
#include "troupe/checkpoint/state/checkpoint.h"
#include "troupe/checkpoint/state/thread_ranks_test.h"
#include "troupe/core/check.h"
#include "troupe/core/number/moment8.h"
#include "troupe/testing/temporary_folder.h"

namespace troupe {
namespace {

// A tensor that all `replica.count` ranks hold whole.
void add_whole(CheckpointState& state, const std::string& name, const at::Tensor& value,
               Replica replica = {}) {
  state.add_box(name, Box::whole(value.sizes().vec()), value, replica);
}

namespace stdfs = std::filesystem;
using testing::TemporaryFolder;
using testing::ThreadRanks;
using Clock = std::chrono::steady_clock;

const Faults kNone;

// A model of two parameters with their moments and a counter.
struct Model {
  explicit Model(int64_t hidden = 4, at::ScalarType type = at::kFloat)
      : dense(Param::of({hidden, 6}, {.kind = Init::kNormal, .std = 1})),
        experts(Param::of_experts({5, 3, 2}, {.kind = Init::kNormal, .std = 1})) {
    dense.allocate(at::TensorOptions(type));
    initialize(dense, "dense", 1);
    initialize(experts, "moe.w1", 1);
    moment = at::zeros_like(dense.value);
    steps = at::full({}, 0, at::kLong);
  }
  CheckpointState state() const {
    CheckpointState out;
    out.add("model.dense", dense);
    out.add("model.moe.w1", experts);
    out.add_like("moment.dense", dense, moment);
    add_whole(out, "steps", steps);
    return out;
  }
  void advance(int64_t step) {
    dense.value.detach().add_(0.25);
    experts.value.detach().mul_(1.5);
    moment.add_(static_cast<double>(step));
    steps.fill_(step);
  }
  bool same(const Model& other) const {
    return at::equal(dense.value, other.dense.value) &&
           at::equal(experts.value, other.experts.value) && at::equal(moment, other.moment) &&
           at::equal(steps, other.steps);
  }
  Param dense, experts;
  at::Tensor moment, steps;
};

class Saving : public ::testing::Test {
 protected:
  Saving() { config_.dir = folder_.path(), config_.background = false; }

  std::unique_ptr<Saver> saver(const Faults& faults = kNone) {
    return std::make_unique<Saver>(config_, "run", CheckpointGroup{}, Log(), fs_, faults);
  }
  Loaded load_into(const Model& run, const LoadOptions& options = {}) {
    return load(find_resume(folder_.path(), {})->folder, run.state(), options, {}, kNone);
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

TEST_F(Saving, WhatIsLoadedIsWhatWasSavedToTheBit) {
  for (const bool background : {false, true}) {
    config_.background = background;
    Model run, other;
    run.advance(7);
    const int64_t step = background ? 2 : 1;
    {
      const auto s = saver();
      s->save(run.state(), {.step = step, .scalars = R"({"tokens":5})", .stalled = 7});
      s->wait();
      const auto results = s->take_results();
      ASSERT_EQ(results.size(), 1u);
      EXPECT_GE(results[0].stall_seconds, 7 + (background ? 0 : results[0].write_seconds));
    }
    const Loaded loaded = load_into(other);
    EXPECT_TRUE(run.same(other));
    EXPECT_EQ(loaded.point.manifest.step, step);
    EXPECT_EQ(loaded.bytes_read, run.state().owned_bytes());
    EXPECT_EQ(loaded.point.manifest.scalars_text, R"({"tokens":5})");
    EXPECT_TRUE(loaded.notes.empty());
  }
}

TEST_F(Saving, ABackgroundSaveHoldsTheStateOfItsStep) {
  config_.background = true;
  const Faults slow("save.shard=sleep:5000");
  Model run, wanted, other;
  run.advance(1), wanted.advance(1);
  const auto s = saver(slow);
  const auto start = Clock::now();
  s->save(run.state(), {.step = 1});
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(4));
  EXPECT_TRUE(s->busy());
  run.advance(2);  // training goes on
  s->wait();
  EXPECT_FALSE(s->busy());
  const auto results = s->take_results();
  ASSERT_EQ(results.size(), 1u);
  EXPECT_LT(results[0].stall_seconds, 4);
  EXPECT_GE(results[0].write_seconds, 5);
  load_into(other);
  EXPECT_TRUE(other.same(wanted));
}

TEST_F(Saving, F4_AKillInABackgroundSaveLeavesTheStepBefore) {
  const pid_t child = fork();
  if (child == 0) {
    config_.background = true;
    const Faults slow("save.shard#2=sleep:30000");
    Model run;
    const auto s = saver(slow);
    s->save(run.state(), {.step = 1});
    s->wait();
    s->save(run.state(), {.step = 2});
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    raise(SIGKILL);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(read_file(folder_ / "latest"), "step-000001\n");
  Model other;
  EXPECT_EQ(load_into(other).point.manifest.step, 1);
  const auto next = saver();  // takes over and clears what was left
  for (const auto& entry : stdfs::directory_iterator(folder_.path())) {
    EXPECT_FALSE(is_staging(entry.path().filename().string()));
  }
}

TEST_F(Saving, F12_WithKeep1TheNewStepIsThereBeforeTheOldIsGone) {
  config_.background = true, config_.keep = 1;
  Model run;
  const auto s = saver();
  s->save(run.state(), {.step = 1});
  s->wait();
  size_t most = 0, least = 9;
  for (int64_t step = 2; step < 12; ++step) {
    s->save(run.state(), {.step = step});
    while (s->busy()) {
      const size_t n = steps_in(folder_.path()).size();
      most = std::max(most, n), least = std::min(least, n);
    }
  }
  s->wait();
  EXPECT_GE(least, 1u);
  EXPECT_LE(most, 2u);
}

TEST_F(Saving, F13_OneSaveIsInFlightAndTheNextWaits) {
  config_.background = true;
  const Faults slow("save.shard=sleep:1000");
  Model run;
  const auto s = saver(slow);
  s->save(run.state(), {.step = 1});
  EXPECT_TRUE(s->busy());
  const auto start = Clock::now();
  s->save(run.state(), {.step = 2});
  EXPECT_GE(Clock::now() - start, std::chrono::milliseconds(300));
  s->wait();
  EXPECT_FALSE(s->busy());
  const auto results = s->take_results();
  ASSERT_EQ(results.size(), 2u);
  EXPECT_GE(results[1].stall_seconds, 0.3);
  EXPECT_EQ(steps_in(folder_.path()), (std::vector<int64_t>{1, 2}));
}

TEST_F(Saving, F17_ASecondSignalDropsTheSaveAndLeavesTheOldStep) {
  config_.background = true;
  const Faults slow("save.shard#2=sleep:1000");
  Model run;
  const auto s = saver(slow);
  s->save(run.state(), {.step = 1});
  s->wait();
  s->save(run.state(), {.step = 2});
  s->abandon();
  s->wait();
  EXPECT_EQ(s->take_results().back().skipped, "it was abandoned");
  EXPECT_EQ(steps_in(folder_.path()), std::vector<int64_t>{1});
  s->save(run.state(), {.step = 3});  // and only that one
  s->wait();
  EXPECT_EQ(steps_in(folder_.path()), (std::vector<int64_t>{1, 3}));
}

TEST_F(Saving, F21_StepsGoOnWhileAWriteStalls) {
  config_.background = true;
  const Faults stall("save.manifest=sleep:3000");
  Model run;
  const auto s = saver(stall);
  s->save(run.state(), {.step = 1});
  for (int step = 0; step < 20; ++step) {
    s->take_results();
    run.advance(step);
  }
  EXPECT_TRUE(s->busy());
  s->wait();
  EXPECT_GE(s->take_results()[0].write_seconds, 3);
}

TEST_F(Saving, F6_AFullDiskIsAWarningAnErrorOrAPause) {
  Model run;
  const Faults full("save.shard#1=enospc"), io("save.shard#1=eio");
  {
    const auto s = saver(full);
    s->save(run.state(), {.step = 1});  // retry: training goes on
    EXPECT_FALSE(s->failed());
    EXPECT_TRUE(s->take_results().empty());
    EXPECT_THROW(s->wait(), Error);  // but the end of a run is not silent
    s->save(run.state(), {.step = 2});
    s->wait();
    EXPECT_EQ(s->take_results().size(), 1u);
  }
  config_.on_error = OnError::kStop;
  for (const bool background : {false, true}) {
    config_.background = background;
    const Faults again("save.shard#1=eio");
    const auto s = saver(again);
    const Error e = error_of([&] {
      s->save(run.state(), {.step = 3});
      while (s->busy()) {
      }
      EXPECT_TRUE(s->failed());
      s->wait();
    });
    EXPECT_EQ(e.code(), Code::kFileFailed);
    EXPECT_FALSE(s->failed());
    s->take_results();  // reported once
  }
  config_.on_error = OnError::kPause, config_.pause = milliseconds(60);
  const auto s = saver(io);
  const auto start = Clock::now();
  s->save(run.state(), {.step = 4});
  s->wait();
  EXPECT_GE(Clock::now() - start, std::chrono::milliseconds(60));
  EXPECT_EQ(steps_in(folder_.path()), (std::vector<int64_t>{2, 4}));
}

TEST_F(Saving, AFaultThatIsNotTheDisksIsNeverAWarning) {
  const Faults bug("save.manifest=throw");
  Model run;
  const auto s = saver(bug);
  EXPECT_THROW(s->save(run.state(), {.step = 1}), Error);
  EXPECT_THROW(Saver(config_, "x", CheckpointGroup{}, Log(), fs_, kNone),
               Error);  // F11: the folder is in use
}

TEST_F(Saving, F27_AnotherElementTypeIsAnErrorOrACast) {
  Model run, half(4, at::kBFloat16);
  run.dense.value.detach().fill_(1.5);
  saver()->save(run.state(), {.step = 1});
  CheckpointState want;
  want.add("model.dense", half.dense);
  LoadOptions options = {.waive_unused = {"model.moe.*", "moment.*", "steps"}};
  const auto attempt = [&] { return load(folder_ / "step-000001", want, options, {}, kNone); };
  const Error e = error_of(attempt);
  EXPECT_EQ(e.code(), Code::kStateMismatch);
  EXPECT_TRUE(has(e, "retyped: model.dense is F32 [4, 6] there and BF16 [4, 6] here")) << e.what();
  options.cast = true;
  const Loaded loaded = attempt();
  EXPECT_EQ(half.dense.value.detach()[0][0].item<float>(), 1.5f);
  EXPECT_EQ(loaded.notes.front(), "cast: 1 tensor from F32 to BF16");
}

TEST_F(Saving, F28_F29_F30_AllThatDiffersIsToldAtOnce) {
  Model run, wide(8);
  saver()->save(run.state(), {.step = 1});
  CheckpointState want;
  want.add("model.dense", wide.dense);
  want.add("model.moe.w1", Param(run.experts));
  want.add_like("moment.danse", run.dense, run.moment);
  add_whole(want, "extra", run.steps);
  Param more = Param::of_experts({7, 3, 2}, {});
  initialize(more, "more", 1);
  want.add("model.more.w1", more);
  const Error e = error_of([&] { load(folder_ / "step-000001", want, {}, {}, kNone); });
  EXPECT_EQ(e.code(), Code::kStateMismatch);
  for (const char* line :
       {"reshaped: model.dense is F32 [4, 6] there and F32 [8, 6] here",
        "missing: moment.danse F32 [4, 6]; there is moment.dense", "missing: extra I64 []",
        "missing: model.more.6.w1 F32 [3, 2]", "unused: moment.dense F32 [4, 6]",
        "unused: steps I64 []", "differs from the model in 12 tensors"}) {
    EXPECT_TRUE(has(e, line)) << line << "\n" << e.what();
  }
  const LoadOptions waive = {.waive_missing = {"moment.*", "extra", "model.more.*"},
                             .waive_unused = {"moment.dense", "steps"}};
  EXPECT_TRUE(has(error_of([&] { load(folder_ / "step-000001", want, waive, {}, kNone); }),
                  "differs from the model in 1 tensors"));
}

// What a run may lack begins anew, in other sizes too, and is left where it is in vain: told once.
TEST_F(Saving, Q8_34_WhatARunMayLackIsNoFault) {
  Model run, other;
  const auto state_of = [](Model& model, const std::vector<std::pair<std::string, int64_t>>& more,
                           std::vector<Param>& made) {
    CheckpointState out = model.state();
    out.may_lack("model.*.history");
    made.reserve(more.size());
    for (const auto& [name, steps] : more) {
      made.push_back(Param::of({2, steps}, {.kind = Init::kOne}).as_state());
      initialize(made.back(), name, 1);
      out.add(name, made.back());
    }
    return out;
  };
  std::vector<Param> saved, loaded;
  saver()->save(state_of(run, {{"model.a.history", 3}, {"model.b.history", 3}}, saved),
                {.step = 1});
  const CheckpointState want =
      state_of(other, {{"model.b.history", 4}, {"model.c.history", 3}}, loaded);
  for (const Param& p : loaded) p.value.fill_(7);
  const Loaded now = load(folder_ / "step-000001", want, {}, {}, kNone);
  ASSERT_EQ(now.notes.size(), 2U);
  EXPECT_EQ(now.notes[0],
            "2 tensors model.*.history begin anew: the checkpoint lacks them, or has them in other "
            "sizes");
  EXPECT_EQ(now.notes[1], "1 tensor model.*.history of the checkpoint is not used here");
  for (const Param& p : loaded) EXPECT_TRUE(p.value.eq(7).all().item<bool>());
  EXPECT_TRUE(at::equal(other.dense.value, run.dense.value));
}

TEST_F(Saving, F34_NumbersThatAreNotFiniteAreCountedWhenLoaded) {
  Model run, other;
  saver()->save(run.state(), {.step = 1});
  run.dense.value.detach()[1][2] = NAN;
  saver()->save(run.state(), {.step = 2});
  const std::string bad = folder_ / "step-000002";
  const Loaded loaded = load(bad, other.state(), {}, {}, kNone);
  ASSERT_EQ(loaded.notes.size(), 1u);
  EXPECT_EQ(loaded.notes[0], "model.dense: 1 numbers are NaN or infinite");
  EXPECT_THROW(load(bad, other.state(), {.strict = true}, {}, kNone), Error);
  EXPECT_EQ(resume(config_, other.state(), {}, {}, kNone)->point.manifest.step, 1);  // F14
}

TEST_F(Saving, F23_F25_ResumeGoesBackToAnIntactStepAndSaysSo) {
  Model run, other;
  for (const int64_t step : {1, 2, 3}) {
    run.advance(step);
    saver()->save(run.state(), {.step = step});
  }
  // The bytes of step 3 are wrong, which its sizes do not tell; a shard of step 2 is gone.
  const std::string shard = "/shard-00000-000.safetensors", three = folder_ / "step-000003" + shard;
  std::string bytes = read_file(three);
  bytes.back() = static_cast<char>(bytes.back() ^ 4);
  publish_file(fs_, three, bytes);
  stdfs::remove(folder_ / "step-000002" + shard);
  publish_file(fs_, folder_ / "step-000001/extra.safetensors", "x");
  const auto loaded = resume(config_, other.state(), {}, {}, kNone);
  EXPECT_EQ(loaded->point.manifest.step, 1);
  const std::vector<std::string>& passed = loaded->point.passed_over;
  ASSERT_EQ(passed.size(), 2u);
  EXPECT_NE(passed[0].find("step 3: "), std::string::npos);
  EXPECT_NE(passed[0].find("is damaged: its checksum is"), std::string::npos);
  EXPECT_NE(passed[1].find("step 2: "), std::string::npos);
  EXPECT_NE(loaded->point.latest_note.find("the newest complete step is step-000001"),
            std::string::npos);
  ASSERT_EQ(loaded->notes.size(), 1u);
  EXPECT_NE(loaded->notes[0].find("extra.safetensors is in the folder and in no manifest"),
            std::string::npos);
  config_.resume = {Resume::kStep, 3};  // a named step never falls back
  EXPECT_THROW(resume(config_, other.state(), {}, {}, kNone), Error);
  // The run goes on from 1: what came later is neither overwritten nor taken for its own.
  config_.resume = {};
  Saver next(config_, "run", {}, Log(), fs_, kNone);
  next.go_on_from(loaded->point.manifest.step);
  EXPECT_TRUE(stdfs::exists(folder_ / "step-000003.aside"));
  next.save(run.state(), {.step = 2});
  next.save(run.state(), {.step = 3});
  EXPECT_EQ(resume(config_, other.state(), {}, {}, kNone)->point.manifest.step, 3);
  EXPECT_TRUE(other.same(run));
}

TEST_F(Saving, AllDamagedIsNoFreshStart) {
  Model run, other;
  EXPECT_FALSE(resume(config_, other.state(), {}, {}, kNone));
  saver()->save(run.state(), {.step = 1});
  const std::string shard = folder_ / "step-000001/shard-00000-000.safetensors";
  std::string bytes = read_file(shard);
  bytes.back() = static_cast<char>(bytes.back() ^ 4);
  publish_file(fs_, shard, bytes);
  EXPECT_EQ(error_of([&] { resume(config_, other.state(), {}, {}, kNone); }).code(),
            Code::kDamagedCheckpoint);
}

TEST_F(Saving, F30_F33_AChangedRunIsRefusedWithEachChange) {
  Model run;
  saver()->save(run.state(),
                {.step = 1, .fingerprint = {{"model.moe.experts", "4"}, {"data", "a"}}});
  const Fingerprint now = {{"model.moe.experts", "8"}, {"data", "b"}};
  const Error e = error_of([&] { resume(config_, run.state(), now, {}, kNone); });
  EXPECT_EQ(e.code(), Code::kOtherRun);
  EXPECT_TRUE(has(e, "model.moe.experts: 4 was saved, 8 is asked for") &&
              has(e, "data: a was saved, b is asked for") &&
              has(e, "add: --set 'checkpoint.waive_changed=[model.moe.experts,data]'"))
      << e.what();
  config_.waive_changed = {"data"};
  EXPECT_FALSE(has(error_of([&] { resume(config_, run.state(), now, {}, kNone); }), "data: a"));
  config_.waive_changed = {"*"};
  EXPECT_TRUE(resume(config_, run.state(), now, {}, kNone));
}

TEST_F(Saving, ExpertsAreNamedApartWhereverTheyLie) {
  Model run;
  saver()->save(run.state(), {.step = 1});
  Param some = Param::of_experts({5, 3, 2}, {}, std::vector<int64_t>{4, 1});
  initialize(some, "some", 9);
  CheckpointState want;
  want.add("model.moe.w1", some);
  load(folder_ / "step-000001", want, {.waive_unused = {"*"}}, {}, kNone);
  EXPECT_TRUE(at::equal(some.value[0], run.experts.value[4]));
  EXPECT_TRUE(at::equal(some.value[1], run.experts.value[1]));
}

// f32 numbers in halves are f32 in the files, whoever reads them.
TEST_F(Saving, NumbersInHalvesAreSavedWhole) {
  const int64_t n = (int64_t{1} << 20) + 77;  // more than a piece
  const at::Tensor numbers = at::randn({n}), high = at::empty({n}, at::kBFloat16),
                   low = at::empty({n}, at::kShort);
  CheckpointState halves, whole;
  halves.add_box("x", Box::whole({n}), {high, low});
  whole.add_box("x", Box::whole({n}), numbers);
  EXPECT_EQ(halves.owned_bytes(), whole.owned_bytes());
  for (const CheckpointState::Part& part : halves.parts()) part.fill(numbers);
  EXPECT_TRUE(at::allclose(high.to(at::kFloat), numbers, 0x1p-8, 0));
  for (const bool background : {false, true}) {
    config_.background = background;
    {
      const auto s = saver();
      s->save(halves, {.step = background ? 2 : 1});
      s->wait();
    }
    const at::Tensor wanted = numbers.clone(), had = high.clone();
    numbers.zero_(), high.zero_(), low.zero_();
    const std::string folder = find_resume(folder_.path(), {})->folder;
    EXPECT_TRUE(load(folder, whole, {}, {}, kNone).notes.empty());
    EXPECT_TRUE(at::equal(numbers, wanted));
    load(folder, halves, {}, {}, kNone);
    EXPECT_TRUE(at::equal(high, had));
  }
  // A file with bf16 numbers, as an import may be: nothing is left beside them.
  CheckpointState import;
  import.add_box("x", Box::whole({n}), high.clone());
  saver()->save(import, {.step = 3});
  low.fill_(5);
  load(folder_ / "step-000003", halves, {.cast = true}, {}, kNone);
  EXPECT_EQ(low.abs().max().item<int>(), 0);
}

// Moments in 8 bits are f32 in the files too; what a load brings comes in pieces of any size.
TEST_F(Saving, CodesAreSavedAsTheNumbersThatTheyStandFor) {
  constexpr int64_t kRows = 7, kColumns = 100, kSize = kRows * kColumns;
  const Param p = Param::of({kRows, kColumns}, {});
  for (const bool second : {false, true}) {
    const at::Tensor codes = at::full({kSize}, 0, at::kByte), scales = at::full({3}, 0.25);
    for (int64_t i = 0; i < kSize; ++i) codes[i] = (i * 7) % 256;
    scales[1] = 4;
    std::vector<float> want(kSize);
    for (int64_t i = 0; i < kSize; ++i) {
      const uint8_t code = codes.const_data_ptr<uint8_t>()[i];
      const float scale = scales.const_data_ptr<float>()[i / 256];
      want[static_cast<size_t>(i)] =
          second ? second_moment(code, scale) : first_moment(code, scale);
    }
    at::Tensor brought = at::full({kSize}, -1, at::kFloat);
    const StateTensor::Take take = [&](int64_t at, const at::Tensor& numbers) {
      brought.narrow(0, at, numbers.numel()).copy_(numbers);
    };
    // Two ranges of a parameter, the cut within a row: each of whole blocks and a rest.
    CheckpointState state;
    for (const auto& [from, n] : {std::pair<int64_t, int64_t>{0, 512}, {512, kSize - 512}}) {
      state.add_range(
          "m", p, from,
          StateTensor::coded(
              codes.narrow(0, from, n), scales.narrow(0, from / 256, moment_blocks(n)), second,
              [take, from = from](int64_t at, const at::Tensor& x) { take(from + at, x); }));
    }
    EXPECT_GT(state.parts().size(), 2u);
    const int64_t step = second ? 2 : 1;
    saver()->save(state, {.step = step});
    const at::Tensor read = at::empty({kSize}, at::kFloat);
    CheckpointState whole;
    whole.add_like("m", p, read);
    load(find_resume(folder_.path(), {})->folder, whole, {}, {}, kNone);
    EXPECT_TRUE(std::equal(want.begin(), want.end(), read.const_data_ptr<float>()));
    load(find_resume(folder_.path(), {})->folder, state, {}, {}, kNone);
    EXPECT_TRUE(at::equal(brought, read));
  }
}

TEST_F(Saving, HalvesOfOtherTypesAreRefused) {
  CheckpointState state;
  const at::Tensor high = at::full({4}, 1, at::kBFloat16), low = at::full({4}, 1, at::kShort);
  EXPECT_THROW(state.add_box("x", Box::whole({4}), {high.to(at::kHalf), low}), Error);
  EXPECT_THROW(state.add_box("x", Box::whole({4}), {high, low.to(at::kInt)}), Error);
  EXPECT_THROW(state.add_box("x", Box::whole({4}), {high, low.narrow(0, 0, 3)}), Error);
}

// Rank r of W of a model of which each holds a run of elements of every tensor, and all the
// counter.
struct CutModel {
  CutModel(const CheckpointGroup& group, at::ScalarType type)
      : rank(group.rank), world(group.size) {
    whole.dense.value = whole.dense.value.to(type);
    for (at::Tensor* const x : {&dense, &moment, &experts}) {
      const int64_t n = x == &experts ? 30 : 24;
      *x = at::full({(rank + 1) * n / world - rank * n / world}, -1, at::TensorOptions(type));
    }
    moment = moment.to(at::kFloat), experts = experts.to(at::kFloat);
  }
  CheckpointState state() const {
    CheckpointState out;
    out.add_range("model.dense", whole.dense, rank * 24 / world, dense);
    out.add_range("model.moe.w1", whole.experts, rank * 30 / world, experts);
    out.add_range("moment.dense", whole.dense, rank * 24 / world, moment);
    add_whole(out, "steps", whole.steps);
    return out;
  }
  bool is_of(const Model& run) const {
    const auto same = [&](const at::Tensor& part, const at::Tensor& of) {
      const int64_t from = rank * of.numel() / world;
      return at::equal(part, of.reshape({-1}).narrow(0, from, part.numel()).to(part.dtype()));
    };
    return same(dense, run.dense.value) && same(experts, run.experts.value) &&
           same(moment, run.moment) && at::equal(whole.steps, run.steps);
  }
  int64_t rank, world;
  Model whole;
  at::Tensor dense, experts, moment;
};

TEST_F(Saving, RanksReadEachByteOnceAndSendEachOtherWhatTheyNeed) {
  Model run;
  run.advance(3);
  saver()->save(run.state(), {.step = 1});
  for (const int world : {1, 2, 3, 5, 8}) {
    for (const int64_t at_a_time : {1, 100, 1 << 20}) {
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
        std::atomic<int64_t> read = 0;
        ThreadRanks(world).run([&](const CheckpointGroup& group) {
          const CutModel cut(group, type);
          const LoadOptions options = {.cast = true, .buffer_bytes = at_a_time};
          read += load(folder_ / "step-000001", cut.state(), options, group, kNone).bytes_read;
          EXPECT_TRUE(cut.is_of(run)) << "rank " << group.rank << " of " << world;
        });
        EXPECT_EQ(read, run.state().owned_bytes()) << world << " ranks";
      }
    }
  }
}

TEST_F(Saving, WhatOneRankCannotReadIsAnErrorOfAll) {
  saver()->save(Model().state(), {.step = 1});
  const Faults broken("load.read=eio");
  ThreadRanks(3).run([&](const CheckpointGroup& group) {
    const CutModel cut(group, at::kFloat);
    const Error e = error_of([&] {
      load(folder_ / "step-000001", cut.state(), {}, group, group.rank == 1 ? broken : kNone);
    });
    EXPECT_EQ(e.code(), Code::kUnreadableCheckpoint);
    EXPECT_TRUE(has(e, "rank 1")) << e.what();
  });
}

TEST_F(Saving, OneOfTheReplicasWritesABox) {
  Model run;
  int64_t owned = 0;
  for (int64_t r = 0; r < 3; ++r) {
    CheckpointState state;
    for (char name = 'a'; name <= 't'; ++name)
      add_whole(state, std::string(1, name), run.moment, {r, 3});
    EXPECT_GT(state.owned_bytes(), 0);  // all take part
    owned += state.owned_bytes();
  }
  EXPECT_EQ(owned, 20 * 24 * 4);
}

TEST_F(Saving, RefusesAStateThatCannotBe) {
  Model run;
  CheckpointState state;
  EXPECT_THROW(state.add_like("x", run.dense, run.steps), Error);
  EXPECT_THROW(add_whole(state, "x", run.dense.value.detach().t()), Error);
  EXPECT_THROW(add_whole(state, "x", run.moment, {2, 2}), Error);
  EXPECT_THROW(state.add_box("x", {{4}, {3}, {2}}, run.moment), Error);
  add_whole(state, "x", run.moment);
  add_whole(state, "x", run.moment);
  EXPECT_THROW(saver()->save(state, {.step = 1}), Error);
}

}  // namespace
}  // namespace troupe
