#include "troupe/distributed/modules/fully_shard.h"

#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <csignal>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/distributed/modules/distributed_data_parallel.h"
#include "troupe/distributed/modules/module_cases_test.h"
#include "troupe/distributed/world/world.h"
#include "troupe/testing/torch/live_bytes.h"
#include "troupe/testing/torch/ranks.h"

namespace troupe {
namespace {

using module_cases::alone;
using module_cases::BlockImpl;
using module_cases::expect_near;
using module_cases::inputs;
using module_cases::kRows;
using module_cases::loss_of;
using module_cases::ModelImpl;
using module_cases::Steps;
using testing::in_ranks;
using testing::in_ranks_that_end;
using testing::in_threads;

Sharded<ModelImpl> sharded_model(World& world, double scale = 0.3,
                                 const ShardOptions& options = {}) {
  return fully_shard(std::make_shared<ModelImpl>(world.all(), scale, options), world.all(),
                     options);
}

// A parameter's gradient, of its parts on all ranks; undefined where no part has one. In f64.
at::Tensor whole_gradient(World& world, const at::Tensor& part, const at::Tensor& of_module) {
  const auto all = world.all();
  const at::Tensor sizes = at::zeros({all->size()}, at::kLong);
  sizes[all->rank()] = part.numel();
  all->all_reduce({sizes}).wait();
  const int64_t most = sizes.max().item<int64_t>();
  const at::Tensor own = at::zeros({most}, at::kDouble),
                   rows = at::empty({all->size() * most}, at::kDouble);
  const at::Tensor has = at::full({1}, part.grad().defined() ? 1.0 : 0.0, at::kDouble);
  all->all_reduce({has}).wait();
  if (has.item<double>() == 0) return {};
  own.narrow(0, 0, part.numel()).copy_(part.grad());
  all->all_gather({rows}, {own}).wait();
  std::vector<at::Tensor> parts;
  for (int64_t r = 0; r < all->size(); ++r) {
    parts.push_back(rows.narrow(0, r * most, sizes[r].item<int64_t>()));
  }
  return at::cat(parts).view(of_module.sizes());
}

std::vector<at::Tensor> whole_gradients(World& world, const Sharded<ModelImpl>& model) {
  std::vector<at::Tensor> out;
  const auto parts = model.parameters(), whole = model->parameters();
  for (size_t i = 0; i < parts.size(); ++i) {
    out.push_back(whole_gradient(world, parts[i], whole[i]));
  }
  return out;
}

// A copy of the model that is not cut, on rank 0; null elsewhere.
std::shared_ptr<ModelImpl> whole_model(World& world, const Sharded<ModelImpl>& model) {
  const auto out = world.rank() == 0 ? std::make_shared<ModelImpl>(alone(), 0.9) : nullptr;
  model.copy_to(out.get());
  return out;
}

// Steps on this rank's rows against `want`, of the whole batch in one process.
void compare_steps(World& world, const Steps& want, bool reshard_after_forward) {
  const int64_t n = kRows / world.size();
  // Other values on other ranks: rank 0's count.
  const auto model = sharded_model(world, 0.3 + static_cast<double>(world.rank()),
                                   {.reshard_after_forward = reshard_after_forward});
  EXPECT_EQ(model->seen.item<double>(), 0.3);
  const auto names = model->named_parameters().keys();
  torch::optim::AdamW optimizer(model.parameters(), module_cases::adamw());
  for (size_t step = 0; step < want.losses.size(); ++step) {
    optimizer.zero_grad();
    const at::Tensor x = inputs(static_cast<int64_t>(step), world.rank() * n, n);
    const at::Tensor loss = loss_of(model(x), x);
    loss.backward();
    const at::Tensor sum = world.all()->all_reduced(loss);
    EXPECT_NEAR(sum.item<double>() / static_cast<double>(world.size()), want.losses[step], 1e-12);
    const auto gradients = whole_gradients(world, model);
    for (size_t i = 0; i < names.size(); ++i) {
      expect_near(gradients[i], want.gradients[step][i],
                  names[i] + " of step " + std::to_string(step));
    }
    optimizer.step();
  }
  const auto whole = whole_model(world, model);
  if (!whole) return;
  for (size_t i = 0; i < names.size(); ++i) {
    expect_near(whole->parameters()[i], want.parameters[i], names[i]);
  }
}

TEST(FullyShard, TwoAndFourRanksAreOneProcessWithTheWholeBatch) {
  const Steps want = module_cases::whole_batch();
  for (const int ranks : {2, 4}) {
    for (const bool reshard : {true, false}) {
      in_threads(ranks, [&](World& world) { compare_steps(world, want, reshard); });
    }
  }
}

TEST(FullyShard, ProcessesOverGlooAreOneProcessToo) {
  const Steps want = module_cases::whole_batch();
  in_ranks(2, [&](World& world) { compare_steps(world, want, /*reshard_after_forward=*/true); });
}

TEST(FullyShard, GradientsHaveTheBitsOfReplicas) {
  in_threads(4, [](World& world) {
    // Both sum in order of ranks, and a parameter begins at a multiple of 64 bytes in both.
    const at::Tensor x = inputs(0, 2 * world.rank(), 2);
    ModelImpl replica(alone());
    const DistributedDataParallel replicas(replica, world.all());
    loss_of(replica.forward(x), x).backward();
    const auto model = sharded_model(world);
    loss_of(model(x), x).backward();
    const auto got = whole_gradients(world, model);
    const auto want = replica.named_parameters();
    for (size_t i = 0; i < got.size(); ++i) {
      const at::Tensor& grad = want[i].value().grad();
      ASSERT_EQ(got[i].defined(), grad.defined()) << want[i].key();
      EXPECT_TRUE(!grad.defined() || at::equal(got[i], grad)) << want[i].key();
    }
  });
}

TEST(FullyShard, ARankHoldsItsShareOutsideOfTheForward) {
  in_threads(4, [](World& world) {
    constexpr int64_t kSide = 256;
    constexpr int64_t kBytes = kSide * kSide * 8;  // of a layer in f64
    const at::Tensor x = at::full({2, kSide}, 0.01, at::kDouble);
    const auto bytes = std::make_shared<testing::LiveBytes>();
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, bytes);
    const auto layer = [&] {
      torch::nn::Linear out(torch::nn::LinearOptions(kSide, kSide).bias(false));
      out->to(at::kDouble);
      return fully_shard(out, world.all());
    };
    const Sharded<torch::nn::LinearImpl> first = layer(), second = layer();
    const int64_t parts = 2 * kBytes / 4;
    EXPECT_GE(bytes->live, parts);
    EXPECT_LT(bytes->live, parts + kBytes / 8);
    bytes->peak = bytes->live;
    {
      const at::Tensor loss = second(first(x)).square().mean();
      EXPECT_LT(bytes->live, parts + kBytes / 8);           // between forward and backward
      EXPECT_LT(bytes->peak, parts + kBytes + kBytes / 8);  // one unit at a time
      loss.backward();
    }
    EXPECT_GE(bytes->live, 2 * parts);  // values and gradients
    EXPECT_LT(bytes->live, 2 * parts + kBytes / 8);
    {
      const at::NoGradGuard no_grad;
      second(first(x));
    }
    EXPECT_LT(bytes->live, 2 * parts + kBytes / 8);
  });
}

TEST(FullyShard, BackwardsAddUpInTheParts) {
  in_threads(2, [](World& world) {
    ModelImpl want(alone());
    const auto model = sharded_model(world);
    const int64_t n = kRows / 2;
    for (int64_t step = 0; step < 2; ++step) {
      const at::Tensor x = inputs(step), own = inputs(step, world.rank() * n, n);
      loss_of(want.forward(x), x).backward();
      loss_of(model(own), own).backward();
    }
    const auto got = whole_gradients(world, model);
    for (size_t i = 0; i < got.size(); ++i) {
      expect_near(got[i], want.parameters()[i].grad(), std::to_string(i));
    }
  });
}

TEST(FullyShard, SeveralForwardsBeforeTheirBackwardsAndOneTwice) {
  in_threads(2, [](World& world) {
    ModelImpl want(alone());
    const auto model = sharded_model(world);
    const at::Tensor x = inputs(0), y = inputs(1);
    const at::Tensor a = loss_of(want.forward(x), x), b = loss_of(want.forward(y), y);
    (a + b).backward({}, /*retain_graph=*/true);
    b.backward();
    const at::Tensor c = loss_of(model(x), x), d = loss_of(model(y), y);
    (c + d).backward({}, /*retain_graph=*/true);
    d.backward();
    const auto got = whole_gradients(world, model);
    for (size_t i = 0; i < got.size(); ++i) {
      expect_near(got[i], want.parameters()[i].grad(), std::to_string(i));
    }
  });
}

TEST(FullyShard, ClipsByTheNormOfAllParts) {
  in_threads(4, [](World& world) {
    ModelImpl want(alone());
    const auto model = sharded_model(world);
    const at::Tensor x = inputs(0);
    loss_of(want.forward(x), x).backward();
    loss_of(model(x), x).backward();
    const double norm = torch::nn::utils::clip_grad_norm_(want.parameters(), 0.01);
    EXPECT_GT(norm, 0.01);
    EXPECT_NEAR(model.clip_grad_norm(0.01), norm, 1e-12 * norm);
    const auto got = whole_gradients(world, model);
    for (size_t i = 0; i < got.size(); ++i) {
      expect_near(got[i], want.parameters()[i].grad(), std::to_string(i));
    }
  });
}

TEST(FullyShard, WholeValuesGoThroughTorchSaveAndBackIntoAnotherNumberOfRanks) {
  std::stringstream file;
  in_threads(4, [&](World& world) {
    const auto whole = whole_model(world, sharded_model(world, 0.5));
    if (whole) torch::save(whole, file);
  });
  const ModelImpl want(alone(), 0.5);
  in_threads(2, [&](World& world) {
    const auto model = sharded_model(world, 0.3);
    std::shared_ptr<ModelImpl> loaded;
    if (world.rank() == 0) {
      loaded = std::make_shared<ModelImpl>(alone(), 0.7);
      torch::load(loaded, file);
    }
    model.copy_from(loaded.get());
    EXPECT_EQ(model->seen.item<double>(), 0.5);
    const auto whole = whole_model(world, model);
    if (!whole) return;
    for (const auto& item : want.named_parameters()) {
      EXPECT_TRUE(at::equal(whole->named_parameters()[item.key()], item.value())) << item.key();
    }
  });
}

struct PairImpl : torch::nn::Module {
  PairImpl()
      : layer(register_module("layer", torch::nn::Linear(2, 2))),
        frozen(register_parameter("frozen", at::full({2, 2}, 0.5), /*requires_grad=*/false)) {
    module_cases::set_values(*layer);
    frozen.set_data(frozen.to(at::kDouble));
  }
  std::tuple<at::Tensor, std::optional<at::Tensor>> forward(const at::Tensor& x) {
    return {layer(x).matmul(frozen), layer(x * 2)};
  }
  torch::nn::Linear layer;
  at::Tensor frozen;
};

TEST(FullyShard, ResultsMayBeSeveralAndParametersFrozen) {
  in_threads(2, [](World& world) {
    PairImpl want;
    const auto model = fully_shard(std::make_shared<PairImpl>(), world.all());
    const auto grad_of = [](auto&& module, const auto& forward) {
      const at::Tensor x = at::full({1, 2}, 0.25, at::kDouble).set_requires_grad(true);
      const auto [first, second] = forward(module, x);
      (first.sum() + second->square().sum()).backward();
      return x.grad();
    };
    const auto call = [](auto&& module, const at::Tensor& x) { return module.forward(x); };
    expect_near(grad_of(model, call), grad_of(want, call), "x");
    const auto parts = model.named_parameters();
    ASSERT_EQ(parts.size(), 3U);
    EXPECT_EQ(parts[0].first, "frozen");
    EXPECT_FALSE(parts[0].second.requires_grad() || parts[0].second.grad().defined());
    expect_near(whole_gradient(world, parts[1].second, model->layer->weight),
                want.layer->weight.grad(), "layer.weight");
    expect_near(whole_gradient(world, parts[2].second, model->layer->bias), want.layer->bias.grad(),
                "layer.bias");
  });
}

// The error that this makes.
std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) {
    return e.what();
  }
  return "none";
}

struct LeakyImpl : torch::nn::Module {
  LeakyImpl() : layer(register_module("layer", torch::nn::Linear(2, 2))) {}
  at::Tensor forward(const at::Tensor&) { return layer->weight.t(); }
  torch::nn::Linear layer;
};

struct TiedImpl : torch::nn::Module {
  explicit TiedImpl(const std::shared_ptr<ProcessGroup>& group)
      : layer(register_module("layer", torch::nn::Linear(2, 2))),
        tied(register_parameter("tied", layer->weight)),
        unit(fully_shard(layer, group)) {}
  at::Tensor forward(const at::Tensor& x) { return unit(x).matmul(tied); }
  torch::nn::Linear layer;
  at::Tensor tied;
  Sharded<torch::nn::LinearImpl> unit;
};

TEST(FullyShard, RefusesWhatWouldGiveWrongValues) {
  in_threads(2, [](World& world) {
    const auto all = world.all();
    const auto expect = [](const std::string& said, const std::string& part) {
      EXPECT_NE(said.find(part), std::string::npos) << said;
    };
    const auto leaky = fully_shard(std::make_shared<LeakyImpl>(), all);
    const at::Tensor x = at::full({1, 2}, 0.5);
    expect(error_of([&] { leaky(x); }), "shares memory with a parameter");
    expect(error_of([&] { fully_shard(std::make_shared<TiedImpl>(all), all); }),
           "has not this module");
    const auto layer = fully_shard(torch::nn::Linear(2, 2), all);
    expect(error_of([&] { DistributedDataParallel(*layer, all); }), "sharded");
    const auto outer = std::make_shared<BlockImpl>();
    const auto unit = fully_shard(outer, all);
    expect(error_of([&] { fully_shard(outer, all); }), "in a unit already");
    expect(error_of([&] { fully_shard(outer->out, all); }), "shard inner modules first");
    expect(error_of([&] { Sharded<BlockImpl>()(x); }), "no fully_shard made");

    torch::optim::AdamW optimizer(layer.parameters(), module_cases::adamw());
    const at::Tensor early = layer(x).sum(), late = layer(x).sum();
    early.backward();
    optimizer.step();
    expect(error_of([&] { late.backward(); }), "changed between its forward and this backward");
    const at::Tensor graph = layer(x).sum();
    expect(error_of([&] { graph.backward({}, {}, /*create_graph=*/true); }), "create_graph");

    torch::nn::Linear other(2, 3);
    expect(error_of([&] { layer.copy_from(world.rank() == 0 ? other.get() : nullptr); }), "E4005");
    expect(error_of([&] { layer.copy_to(nullptr); }), "E4005");
    expect(error_of([&] { fully_shard(torch::nn::Linear(2, 3 + world.rank()), all); }), "E2010");
  });
}

// A unit with two layers, the second of which only some calls use.
struct ChoiceImpl : torch::nn::Module {
  ChoiceImpl()
      : always(register_module("always", torch::nn::Linear(2, 2))),
        sometimes(register_module("sometimes", torch::nn::Linear(2, 2))) {
    module_cases::set_values(*this);
  }
  at::Tensor forward(const at::Tensor& x, bool both) {
    const at::Tensor y = always(x);
    return both ? y + sometimes(x) : y;
  }
  torch::nn::Linear always, sometimes;
};
TORCH_MODULE(Choice);

// Two units and a layer around them. What of it a loss is made of is the caller's.
struct ChoicesImpl : torch::nn::Module {
  explicit ChoicesImpl(const std::shared_ptr<ProcessGroup>& group, const ShardOptions& options = {})
      : scale(register_module("scale", torch::nn::Linear(2, 2))) {
    module_cases::set_values(*scale);
    first = fully_shard(register_module("first", Choice()), group, options);
    second = fully_shard(register_module("second", Choice()), group, options);
  }
  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& x, bool both) {
    const at::Tensor y = second(first(x, true), both);
    return {scale(y), y};
  }
  torch::nn::Linear scale;
  Sharded<ChoiceImpl> first, second;
};

// Backwards of a rank, from its number. Ranks with other graphs have the mean of their gradients.
void expect_mean_of_ranks(
    World& world, const ShardOptions& options,
    const std::function<void(const std::function<std::pair<at::Tensor, at::Tensor>(bool)>&,
                             int64_t)>& backwards) {
  const at::Tensor x = at::full({1, 2}, 0.25, at::kDouble);
  std::vector<at::Tensor> want;
  for (int64_t rank = 0; rank < world.size(); ++rank) {
    ChoicesImpl own(alone());
    backwards([&](bool both) { return own.forward(x, both); }, rank);
    for (size_t i = 0; i < own.parameters().size(); ++i) {
      const at::Tensor& grad = own.parameters()[i].grad();
      if (rank == 0) want.emplace_back();
      if (!grad.defined()) continue;
      want[i] = (want[i].defined() ? want[i] : at::zeros_like(grad)) +
                grad / static_cast<double>(world.size());
    }
  }
  const auto model =
      fully_shard(std::make_shared<ChoicesImpl>(world.all(), options), world.all(), options);
  backwards([&](bool both) { return model(x, both); }, world.rank());
  const auto parts = model.named_parameters();
  for (size_t i = 0; i < parts.size(); ++i) {
    expect_near(whole_gradient(world, parts[i].second, model->parameters()[i]), want[i],
                parts[i].first);
  }
}

TEST(FullyShard, RanksWhoseBackwardsComeToOtherLayersHaveTheMean) {
  for (const bool reshard : {true, false}) {
    const ShardOptions options{.reshard_after_forward = reshard};
    in_threads(2, [&](World& world) {
      // A layer that rank 0 alone uses, then one that rank 1 alone does.
      expect_mean_of_ranks(world, options, [](const auto& model, int64_t rank) {
        model(rank == 0).first.sum().backward();
        model(rank == 1).first.square().sum().backward();
      });
    });
    in_threads(3, [&](World& world) {
      // Results of units that some ranks do not use, among them all of an inner unit's.
      expect_mean_of_ranks(world, options, [](const auto& model, int64_t rank) {
        const auto [y, inner] = model(true);
        (rank == 0 ? y.sum() : inner.square().sum()).backward();
        const auto a = model(true), b = model(rank == 1);
        (rank == 2 ? a.first : b.first + a.second).sum().backward({}, /*retain_graph=*/true);
        (rank == 1 ? a.second : b.first).sum().backward();
      });
    });
  }
}

TEST(FullyShard, ProcessesWhoseBackwardsComeToOtherLayersHaveTheMeanToo) {
  in_ranks(2, [](World& world) {
    expect_mean_of_ranks(world, {}, [](const auto& model, int64_t rank) {
      model(rank == 0).first.sum().backward();
      model(rank == 1).first.square().sum().backward();
    });
  });
}

TEST(FullyShard, RanksThatCallOtherUnitsAreRefusedByTheBackward) {
  in_threads(2, [](World& world) {
    std::vector<Sharded<ChoiceImpl>> experts;
    for (int i = 0; i < 2; ++i) experts.push_back(fully_shard(Choice(), world.all()));
    const at::Tensor x = at::full({1, 2}, 0.25, at::kDouble);
    // Gathers of as many bytes, which meet.
    const at::Tensor loss = experts[static_cast<size_t>(world.rank())](x, true).sum();
    try {
      loss.backward();
      ADD_FAILURE() << "values of two units were mixed";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Code::kRanksDiffer) << e.what();
      EXPECT_NE(std::string(e.what()).find("rank(s) 1 "), std::string::npos) << e.what();
    }
  });
}

TEST(FullyShard, UnitsInEachOtherHaveOneGroup) {
  in_threads(4, [](World& world) {
    const auto pair =
        world.group(world.rank() < 2 ? std::vector<int64_t>{0, 1} : std::vector<int64_t>{2, 3});
    const auto expect = [&](const std::shared_ptr<ProcessGroup>& inner,
                            const std::shared_ptr<ProcessGroup>& outer) {
      const auto module = std::make_shared<BlockImpl>();
      const auto unit = fully_shard(module->out, inner);
      try {
        fully_shard(module, outer);
        ADD_FAILURE() << "units of two groups were taken";
      } catch (const Error& e) {
        EXPECT_NE(std::string(e.what()).find("one group"), std::string::npos) << e.what();
        EXPECT_NE(std::string(e.what()).find("out.weight"), std::string::npos) << e.what();
      }
    };
    expect(pair, world.all());
    expect(world.all(), pair);
    expect(pair, alone());
  });
}

TEST(FullyShard, MeansOfHalfPrecisionDoNotOverflow) {
  for (const int ranks : {2, 4}) {
    in_threads(ranks, [](World& world) {
      torch::nn::Linear layer(torch::nn::LinearOptions(1, 1).bias(false));
      layer->to(at::kHalf);
      const auto model = fully_shard(layer, world.all());
      model(at::full({1, 1}, 65504.0, at::kHalf)).sum().backward();
      const at::Tensor grad = whole_gradient(world, model.parameters()[0], layer->weight);
      EXPECT_EQ(grad.item<double>(), 65504.0);
    });
  }
}

TEST(FullyShard, AForwardReadsWhatAnOptimizerWrotePastTheCountOfWrites) {
  in_threads(2, [](World& world) {
    const auto layer =
        fully_shard(torch::nn::Linear(2, 2), world.all(), {.reshard_after_forward = false});
    torch::optim::SGD optimizer(layer.parameters(), torch::optim::SGDOptions(1.0));
    const at::Tensor x = at::full({1, 2}, 0.5);
    const at::Tensor first = layer(x);
    first.sum().backward();
    const at::Tensor kept = layer(x);  // whole until a backward that does not come
    EXPECT_TRUE(at::equal(kept, first));
    optimizer.step();
    // Each weight by 0.5, each bias by 1.
    EXPECT_TRUE(at::allclose(layer(x), first - 1.5));
  });
}

TEST(FullyShard, ABackwardThatThrewDoesNotSpoilTheNext) {
  in_threads(2, [](World& world) {
    ModelImpl want(alone());
    const auto model = sharded_model(world);
    const at::Tensor x = inputs(0), again = inputs(0).clone().set_requires_grad(true);
    loss_of(want.forward(x), x).backward();
    again.register_hook([](const at::Tensor&) { throw std::runtime_error("the caller's own"); });
    EXPECT_ANY_THROW(loss_of(model(again), x).backward());
    for (const at::Tensor& part : model.parameters()) part.mutable_grad().reset();
    loss_of(model(x), x).backward();
    const auto got = whole_gradients(world, model);
    for (size_t i = 0; i < got.size(); ++i) {
      expect_near(got[i], want.parameters()[i].grad(), std::to_string(i));
    }
  });
}

TEST(FullyShard, AGroupOfOneChangesNothing) {
  ModelImpl want(alone());
  const auto model = fully_shard(std::make_shared<ModelImpl>(alone()), alone());
  EXPECT_TRUE(model.parameters()[0].is_same(model->first->weight));
  const at::Tensor x = inputs(0);
  loss_of(want.forward(x), x).backward();
  loss_of(model(x), x).backward();
  EXPECT_TRUE(at::equal(model->first->weight.grad(), want.first->weight.grad()));
  ModelImpl other(alone(), 0.8), back(alone());
  model.copy_from(&other);
  model.copy_to(&back);
  EXPECT_TRUE(at::equal(back.head->weight, other.head->weight));
}

TEST(FullyShard, ALostRankIsTheLibrarysError) {
  in_ranks_that_end({3, -SIGKILL}, [](World& world) {
    try {
      const auto model = sharded_model(world);
      const at::Tensor x = inputs(0), loss = loss_of(model(x), x);
      world.all()->barrier();
      if (world.rank() == 1) std::raise(SIGKILL);
      loss.backward();
    } catch (const Error& e) {
      std::_Exit(e.code() == Code::kRankLost ? 3 : 2);
    }
  });
}

}  // namespace
}  // namespace troupe
