// A checkpoint of any layout loads in any other (F124, F125; EL4): twelve layouts, each saved after
// two steps and loaded in each other. Weights, moments and routers' state have the saved bits,
// element by element, on every rank, and the next step's loss is that of one process that loaded
// the same.
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "troupe/checkpoint/state/group_of_state.h"
#include "troupe/testing/temporary_folder.h"
#include "troupe/train/layout/layout_run_test.h"

namespace troupe {
namespace {

constexpr int kSteps = 2;
constexpr const char* kModel =
    "model: {layers: 3, width: 32, heads: 8, kv_heads: 2, vocab: 200, vocab_pad: 512, "
    "max_positions: 64, ffn: 64, first_dense: 1, qk_norm: head, tie_embeddings: true, "
    "mtp: {depth: 1}, moe: {experts: 8, top_k: 2, hidden: 16, shared: {experts: 1, hidden: 16}, "
    "router: {kind: sigmoid_bias, bias_rate: 0.01}}}\n"
    "data: {sequence: 16}\n"
    "train: {global_batch: 4, micro_batch: 1, steps: 10, clip: 0.5, precision: fp64, optimizer: "
    "{kind: adamw, lr: 0.003, eps: 1e-6}, schedule: {warmup: 0}}\n"
    "run: {device: cpu}\n"
    "checkpoint: {dir: run}\n";

struct Layout {
  std::string name, parallel;
  int ranks;
};

const std::vector<Layout> kLayouts = {
    {"one", "{}", 1},
    {"ddp_2", "{shard: none, expert: 1}", 2},
    {"zero1_3", "{shard: zero1, expert: 1}", 3},
    {"hsdp_4_ep_4", "{shard: full, shard_ranks: 2, expert: 4}", 4},
    {"zero1_tp_2_split", "{tensor: 2, shard: zero1, expert: 2, split_vocab: on, split_shared: on}",
     2},
    {"fsdp_tp_2_dp_3_ep_2", "{tensor: 2, shard: full, expert: 2}", 6},
    {"zero1_tp_4_ep_4_etp_2", "{tensor: 4, shard: zero1, expert: 4, expert_tensor: 2}", 8},
    {"fsdp_tp_2_cp_2_ep_4", "{tensor: 2, context: 2, shard: full, expert: 4}", 4},
    {"zero1_cp_4_ep_8", "{context: 4, shard: zero1, expert: 8}", 8},
    {"zero1_tp_2_pp_2_v_2",
     "{tensor: 2, pipeline: 2, virtual: 2, shard: zero1, expert: 2, split_vocab: on}", 4},
    {"ddp_pp_4", "{pipeline: 4, shard: none, expert: 1}", 4},
    {"fsdp_pp_2_zbv_dp_2_ep_2", "{pipeline: 2, schedule: zbv, shard: full, expert: 2}", 4},
};

// Tensors of a run in global coordinates, by name.
using Whole = std::map<std::string, at::Tensor>;

at::Tensor in_box(const at::Tensor& whole, const Box& box) {
  at::Tensor out = whole;
  for (size_t d = 0; d < box.size.size(); ++d) {
    out = out.narrow(static_cast<int64_t>(d), box.offset[d], box.size[d]);
  }
  return out;
}

// All that a rank holds, whether or not it is the one that writes it.
CheckpointState state_of(Learner& learner) {
  CheckpointState out;
  learner.checkpoint().add_to(out, {});
  return out;
}

// The state as one process holds it.
Whole whole_of(Learner& learner) {
  Whole out;
  const CheckpointState state = state_of(learner);
  for (const CheckpointState::Part& part : state.parts()) {
    const Box& box = part.tensor.box;
    at::Tensor& whole = out[part.tensor.name];
    if (!whole.defined()) whole = at::zeros(box.global, part.value.options());
    in_box(whole, box).copy_(part.value.detach().view(box.size));
  }
  return out;
}

// Every element of this rank's parts is the whole's. Gives their names.
std::set<std::string> expect_equal(Learner& learner, const Whole& whole) {
  std::set<std::string> out;
  const CheckpointState state = state_of(learner);
  for (const CheckpointState::Part& part : state.parts()) {
    const Box& box = part.tensor.box;
    EXPECT_TRUE(part.in_place() && whole.contains(part.tensor.name)) << part.tensor.name;
    const at::Tensor same = in_box(whole.at(part.tensor.name), box);
    EXPECT_TRUE(at::equal(part.value.detach().view(box.size), same))
        << part.tensor.name << ' ' << to_text(box);
    out.insert(part.tensor.name);
  }
  return out;
}

// A Learner on each rank of a layout.
void on_ranks(const Layout& layout, const std::function<void(const ResolvedRun&, Learner&)>& body) {
  at::set_num_threads(1);
  const Faults none;
  if (layout.ranks == 1) {
    const ResolvedRun run = resolve_alone(recipe_of("{}", kModel));
    Learner learner(run, c10::kCPU, none);
    return body(run, learner);
  }
  const Recipe recipe = recipe_of("parallel: " + layout.parallel, kModel);
  testing::in_threads(layout.ranks, [&](World& world) {
    at::set_num_threads(1);
    const ResolvedRun run = resolve(recipe, world);
    Learner learner(
        run, c10::kCPU, none,
        std::make_shared<ParallelSetup>(std::shared_ptr<World>(&world, [](World*) {}), run));
    body(run, learner);
  });
}

double next_loss(const ResolvedRun& recipe, Learner& learner, TrainState state) {
  return learner.step(feed_of(recipe, {}, learner.setup(), kSteps), state).loss;
}

void load_into(Learner& learner, const std::string& folder) {
  CheckpointState to_load;
  learner.checkpoint().add_to(to_load, {.to_load = true});
  load(folder, to_load, {}, checkpoint_group(learner.parallel()), Faults());
  learner.checkpoint().loaded(false);
}

// What a layout saved.
struct Saved {
  std::string folder;
  TrainState state = {};
  Whole whole = {};  // as one process loads it
  double loss = 0;   // of its next step
};

Saved saved_by(const Layout& layout, const std::string& run) {
  struct Held {
    std::string name;
    Box box;
    at::Tensor value;
  };
  Saved out{.folder = run + "/step-000002"};
  std::mutex mutex;
  std::vector<Held> held;  // by each rank when it saved
  const auto train = [&](const ResolvedRun& recipe, Learner& learner) {
    TrainState state;
    for (int64_t step = 0; step < kSteps; ++step) {
      learner.step(feed_of(recipe, {}, learner.setup(), step), state);
    }
    Fs fs;
    const Faults none;
    CheckpointConfig config{.dir = run};
    config.background = false;
    Saver saver(config, "run", checkpoint_group(learner.parallel()), Log(), fs, none);
    saver.go_on_from(-1);
    saver.save(state_of(learner), {.step = kSteps});
    saver.wait();
    if (learner.parallel().rank() == 0) out.state = state;
    const std::lock_guard lock(mutex);
    const CheckpointState all = state_of(learner);
    for (const CheckpointState::Part& part : all.parts()) {
      held.push_back({part.tensor.name, part.tensor.box, part.value.detach().clone()});
    }
  };
  on_ranks(layout, train);
  on_ranks(kLayouts[0], [&](const ResolvedRun& recipe, Learner& learner) {
    load_into(learner, out.folder);
    out.whole = whole_of(learner);
    for (const Held& part : held) {
      EXPECT_TRUE(
          at::equal(part.value.view(part.box.size), in_box(out.whole.at(part.name), part.box)))
          << part.name << " as " << layout.name << " saved it";
    }
    out.loss = next_loss(recipe, learner, out.state);
  });
  return out;
}

const std::vector<Saved>& all_saved() {
  static const testing::TemporaryFolder folder;
  static const std::vector<Saved> out = [] {
    std::vector<Saved> saved;
    for (const Layout& layout : kLayouts) saved.push_back(saved_by(layout, folder / layout.name));
    return saved;
  }();
  return out;
}

// Ranks of `layout` load what another saved, and take the next step.
void expect_loads(const Layout& layout, const Saved& saved) {
  std::mutex mutex;
  std::set<std::string> names;
  on_ranks(layout, [&](const ResolvedRun& recipe, Learner& learner) {
    load_into(learner, saved.folder);
    const std::set<std::string> own = expect_equal(learner, saved.whole);
    EXPECT_NEAR(next_loss(recipe, learner, saved.state), saved.loss, 1e-10 * saved.loss);
    const std::lock_guard lock(mutex);
    names.insert(own.begin(), own.end());
  });
  EXPECT_EQ(names.size(), saved.whole.size());  // no tensor is on no rank
}

class Reshard : public ::testing::TestWithParam<size_t> {};

TEST_P(Reshard, LoadsWhatEachOtherSaved) {
  const Layout& layout = kLayouts[GetParam()];
  for (size_t from = 0; from < kLayouts.size(); ++from) {
    if (from == GetParam()) continue;
    const Saved& saved = all_saved()[from];
    SCOPED_TRACE("from " + kLayouts[from].name);
    expect_loads(layout, saved);
  }
}

INSTANTIATE_TEST_SUITE_P(TwelveLayouts, Reshard, ::testing::Range(size_t{0}, kLayouts.size()),
                         [](const auto& given) { return kLayouts[given.param].name; });

// One axis at a time, and two of them: each loaded in each other.
TEST(ReshardOfAxes, LoadsWhatEachOtherSaved) {
  const testing::TemporaryFolder folder;
  const auto pass_around = [&](const std::vector<Layout>& from, const std::vector<Layout>& to) {
    for (const Layout& saver : from) {
      const Saved saved = saved_by(saver, folder / saver.name);
      for (const Layout& loader : to) {
        if (loader.name == saver.name) continue;
        SCOPED_TRACE(loader.name + " from " + saver.name);
        expect_loads(loader, saved);
      }
    }
  };
  const Layout one{"one", "{}", 1}, tp_2{"ddp_tp_2", "{tensor: 2, shard: none, expert: 1}", 2};
  const std::vector<Layout> axes = {
      one,
      tp_2,
      {"ddp_pp_2", "{pipeline: 2, shard: none, expert: 1}", 2},
      {"zero1_tp_2_pp_4", "{tensor: 2, pipeline: 4, shard: zero1, expert: 2}", 8}};
  pass_around(axes, axes);
  pass_around({{"zero1_tp_2_ep_4", "{tensor: 2, shard: zero1, expert: 4}", 4}},
              {one,
               {"fsdp_2", "{shard: full, expert: 1}", 2},
               {"zero1_tp_4", "{tensor: 4, shard: zero1, expert: 1}", 4}});
}

}  // namespace
}  // namespace troupe
