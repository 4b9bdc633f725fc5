#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/isfinite.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "troupe/core/file/file.h"
#include "troupe/train/loop/trainer_runs_test.h"
#include "troupe/train/params/master_of_test.h"

namespace troupe {
namespace {

// All that a store has of each parameter, by its name: buckets of the two stores differ.
std::map<std::string, at::Tensor> all_by_name(const ParamStore& store) {
  std::map<std::string, at::Tensor> out;
  for (int64_t s = 0; s < std::ssize(store.slots()); ++s) {
    const ParamSlot& slot = store.slots()[static_cast<size_t>(s)];
    const Bucket& b = store.buckets()[static_cast<size_t>(slot.bucket)];
    std::vector<at::Tensor> parts = {store.part(s, master_of(b))};
    for (const at::Tensor& x : b.state) parts.push_back(store.part(s, x).to(at::kFloat));
    for (const at::Tensor& x : b.scales) parts.push_back(store.part_of_blocks(s, x));
    for (const at::Tensor& x : slot.state) parts.push_back(x.flatten());
    out[slot.named.name] = at::cat(parts).detach();
  }
  return out;
}

struct NamedResult {
  std::vector<std::string> losses;
  std::map<std::string, at::Tensor> all;
  TrainState state;
};

NamedResult named_run(Runs& runs, const std::string& name, std::vector<std::string> sets,
                      const std::vector<std::string>& more, const std::string& faults = "") {
  NamedResult out;
  sets.insert(sets.end(), more.begin(), more.end());
  runs.run(name, sets, faults, [&](Trainer& trainer) {
    out.all = all_by_name(trainer.learner().store());
    out.state = trainer.state();
  });
  out.losses = runs.losses(name);
  return out;
}

void expect_same_run(const NamedResult& a, const NamedResult& b) {
  EXPECT_FALSE(a.losses.empty());
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.state.last_norm, b.state.last_norm);
  ASSERT_EQ(a.all.size(), b.all.size());
  for (const auto& [name, x] : a.all) EXPECT_TRUE(at::equal(x, b.all.at(name))) << name;
}

// Row 115: without clipping, and with that of the step before, whatever the optimizer keeps.
TEST(UpdatesInBackward, ChangeNoBit) {
  Runs runs;
  const std::vector<std::vector<std::string>> forms = {
      {"train.micro_batch=8", "train.clip=0"},
      {"train.micro_batch=8", "train.clip=0.5", "train.clip_by=last_step"},
      {"train.micro_batch=2", "train.clip=0"},
      {"train.micro_batch=8", "train.clip=0", "train.precision=bf16", "train.offload_state=true",
       "train.optimizer.moments=int8", "train.recompute='1'"},
      {"train.micro_batch=8", "train.clip=0", "model.tie_embeddings=true", "model.mtp.depth=1"},
      {"train.micro_batch=8", "train.clip=0", "train.precision=bf16", "train.optimizer.kind=muon",
       "train.offload_state=true"},
      {"train.micro_batch=8", "train.clip=0", "train.optimizer.kind=soap"}};
  for (size_t i = 0; i < forms.size(); ++i) {
    SCOPED_TRACE(i);
    const std::string name = std::to_string(i);
    expect_same_run(named_run(runs, "after" + name, forms[i], {}),
                    named_run(runs, "in" + name, forms[i], {"train.update=in_backward"}));
  }
}

TEST(UpdatesInBackward, ClippingByTheLastStepIsThatOfTheStepBefore) {
  Runs runs;
  const std::vector<std::string> steps = {"train.steps=3"};
  // One step has no norm before it: it is not clipped, and the second is.
  const NamedResult none = named_run(runs, "none", {"train.clip=0"}, steps);
  const NamedResult last =
      named_run(runs, "last", {"train.clip=1e-3", "train.clip_by=last_step"}, steps);
  EXPECT_EQ(none.losses[0], last.losses[0]);
  EXPECT_EQ(none.losses[1], last.losses[1]);
  EXPECT_NE(none.losses[2], last.losses[2]);
  EXPECT_GT(last.state.last_norm, 0);
  // A resumed run knows the norm of the step before its first.
  const std::vector<std::string> sets = {"train.clip=0.1", "train.clip_by=last_step",
                                         "train.update=in_backward", "train.micro_batch=8",
                                         "checkpoint.at=[6]"};
  const NamedResult whole = named_run(runs, "whole", sets, {});
  EXPECT_THROW(named_run(runs, "parts", sets, {}, "batch:6=throw"), std::exception);
  expect_same_run(whole, named_run(runs, "parts", sets, {}));
}

TEST(UpdatesInBackward, F111_ANanStopsThoseOfItsStep) {
  Runs runs;
  const std::vector<std::string> sets = {"train.clip=0", "train.update=in_backward",
                                         "train.micro_batch=8"};
  const NamedResult bad = named_run(runs, "bad", sets, {}, "backward.1:5=nan");
  EXPECT_EQ(bad.state.skipped, 1);
  EXPECT_EQ(bad.state.nonfinite, 1);
  for (const auto& [name, x] : bad.all) {
    EXPECT_TRUE(at::isfinite(x).all().item<bool>()) << name;
  }
  const std::string log = read_file(runs.path("bad") + "/log.jsonl");
  EXPECT_NE(log.find("\"first\":\"gradient of layers.0"), std::string::npos);
  // The head and the second layer came before the first one.
  EXPECT_NE(log.find("\"units_updated\":2"), std::string::npos);
}

}  // namespace
}  // namespace troupe
