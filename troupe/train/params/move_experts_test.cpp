#include "troupe/train/params/move_experts.h"

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "troupe/testing/torch/ranks.h"
#include "troupe/train/params/master_of_test.h"

namespace troupe {
namespace {

using testing::in_ranks;

// Four ranks: {0, 1} and {2, 3} share experts out, {0, 2} and {1, 3} hold the same ones.
struct Groups {
  std::shared_ptr<ProcessGroup> experts, owners, all;
};

Groups groups_of(World& world) {
  const int64_t r = world.rank();
  const int64_t pair = r / 2 * 2, place = r % 2;
  return {world.group({pair, pair + 1}), world.group({place, place + 2}), world.all()};
}

// Two experts' tensors and a frozen one, of a width that no range of elements divides.
struct Layer {
  Param w1, w2, frozen;
  explicit Layer(const std::vector<int64_t>& held)
      : w1(Param::of_experts({6, 5, 3}, {.kind = Init::kNormal, .std = 1}, held)),
        w2(Param::of_experts({6, 7}, {.kind = Init::kNormal, .std = 1}, held)),
        frozen(Param::of_experts({6, 2}, {.kind = Init::kNormal, .std = 1}, held)) {
    frozen.frozen = true;
  }
  std::vector<Param*> params() { return {&w1, &w2, &frozen}; }
};

Sharing sharing_of(const Groups& g, bool full) {
  const auto one = std::make_shared<ProcessGroup>();
  return {.alone = false,
          .full = full,
          .meshes = {.dense = {{1, {g.all, one, "dense"}}},
                     .experts = {{1, {g.owners, one, "experts"}}}}};
}

// As drawn: each expert's tensor is a function of its global number. The optimizer's state is one
// of the master.
std::unique_ptr<ParamStore> store_of(Layer& layer, Param& dense, const Groups& g,
                                     at::ScalarType type, bool full) {
  std::vector<NamedParam> params = {{"w1", &layer.w1, 1},
                                    {"dense", &dense, 1},
                                    {"w2", &layer.w2, 1},
                                    {"frozen", &layer.frozen, 1}};
  auto store = std::make_unique<ParamStore>(
      params, at::TensorOptions(type), [](const NamedParam&) { return BucketKey{}; },
      sharing_of(g, full));
  store->initialize_all(3);
  store->values_from_masters();
  for (Bucket& b : store->buckets()) {
    if (b.in_halves()) b.low.copy_(b.own.detach().view(at::kShort) * 31);
    const at::Tensor master = master_of(b);
    b.state = {master * 3 + 1, (master * 0.25).to(at::kBFloat16)};
  }
  return store;
}

void expect_equal(ParamStore& got, ParamStore& want, const std::string& what) {
  std::vector<int64_t> all;
  for (size_t b = 0; b < want.buckets().size(); ++b) all.push_back(static_cast<int64_t>(b));
  for (ParamStore* const store : {&got, &want}) {
    store->gather(all);
    store->need(all);
  }
  for (size_t s = 0; s < want.slots().size(); ++s) {
    const auto slot = static_cast<int64_t>(s);
    const std::string name = what + want.slots()[s].named.name;
    EXPECT_TRUE(got.slots()[s].named.param->value.equal(want.slots()[s].named.param->value))
        << name;
    const Bucket& g = got.buckets()[static_cast<size_t>(got.slots()[s].bucket)];
    const Bucket& w = want.buckets()[static_cast<size_t>(want.slots()[s].bucket)];
    EXPECT_TRUE(got.part(slot, master_of(g)).equal(want.part(slot, master_of(w)))) << name;
    for (size_t i = 0; i < w.state.size(); ++i) {
      EXPECT_TRUE(got.part(slot, g.state[i]).equal(want.part(slot, w.state[i]))) << name << i;
    }
  }
  const auto& others = want.others();
  for (size_t i = 0; i < others.size(); ++i) {
    EXPECT_TRUE(got.others()[i].param->value.equal(others[i].param->value))
        << what << others[i].name;
  }
}

// What moved is what would have been drawn there.
TEST(MoveExperts, AllOfAnExpertIsWhereItWouldHaveBegun) {
  in_ranks(4, [](World& world) {
    const Groups g = groups_of(world);
    const int64_t place = g.experts->rank();
    const ExpertPlacement from = contiguous(6, 2);
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      for (const bool full : {false, true}) {
        for (const ExpertPlacement& to : {listed(2, {{1}, {0}, {1}, {0}, {1}, {0}}),
                                          listed(2, {{1}, {1}, {1}, {0}, {0}, {0}}), from}) {
          const std::string what = std::string(at::toString(type)) + (full ? " full " : " zero1 ");
          Param dense = Param::of({11}, {.kind = Init::kNormal, .std = 1}), same = dense;
          Layer layer(from.held_by(place)), want(to.held_by(place));
          const auto store = store_of(layer, dense, g, type, full);
          const auto drawn = store_of(want, same, g, type, full);
          move_experts(*store, *g.experts, {{.params = layer.params(), .from = from, .to = to}});
          expect_equal(*store, *drawn, what);
        }
      }
    }
  });
}

// Some layers' move, others' stay, in one bucket or another.
TEST(MoveExperts, OnlyWhatIsNamedMoves) {
  in_ranks(2, [](World& world) {
    const Groups g{world.all(), std::make_shared<ProcessGroup>(world.rank()), world.all()};
    const ExpertPlacement from = contiguous(6, 2), to = listed(2, {{1}, {0}, {1}, {0}, {1}, {0}});
    Param dense = Param::of({11}, {.kind = Init::kNormal, .std = 1}), same = dense;
    Layer layer(from.held_by(world.rank())), want(from.held_by(world.rank()));
    want.w2 = Layer(to.held_by(world.rank())).w2;
    const auto store = store_of(layer, dense, g, at::kBFloat16, false);
    const auto drawn = store_of(want, same, g, at::kBFloat16, false);
    move_experts(*store, *g.experts, {{.params = {&layer.w2}, .from = from, .to = to}});
    expect_equal(*store, *drawn, "");
  });
}

}  // namespace
}  // namespace troupe
