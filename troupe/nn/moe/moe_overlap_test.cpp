// What a MoE layer computes while its rows travel, as the order in which one thread begins and
// awaits transfers and computes: rule SH4 (the shared expert, both ways) and OV5 (gradients of
// weights beside the way back of those of rows), and T14 of products whose tokens are gathered. And
// that nothing but the order depends on it.
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "troupe/distributed/dispatch/all_gather_dispatcher.h"
#include "troupe/distributed/dispatch/all_to_all_dispatcher.h"
#include "troupe/distributed/group/token_sharding.h"
#include "troupe/nn/moe/moe_layer.h"
#include "troupe/nn/parts/linear.h"
#include "troupe/testing/torch/ranks.h"

namespace troupe {
namespace {

using testing::in_threads;
using Named = std::map<std::string, at::Tensor>;

constexpr int64_t kWidth = 8, kTokens = 12;

// What this thread does, each with its time.
struct Moment {
  int64_t at;
  std::string what;
};
std::vector<Moment>& moments() {
  thread_local std::vector<Moment> all;
  return all;
}

// Begins of operators and of nodes of a backward, while it lives.
class Recorded {
 public:
  Recorded() {
    moments().clear();
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction& f)
                                       -> std::unique_ptr<at::ObserverContext> {
          static const std::set<std::string> nodes = {
              "troupe::combine",         "troupe::combine_arrival", "troupe::moe_ffn",
              "troupe::dispatch",        "troupe::moe_ffn_weights", "troupe::dispatch_arrival",
              "troupe::joined_linear",   "troupe::gathered",        "troupe::joined_linear_weights",
              "troupe::gathered_arrival"};
          static const std::set<std::string> operators = {"troupe::moe_ffn_forward",
                                                          "troupe::routing_plan"};
          const std::string name = f.name();
          const bool node = f.scope() == at::RecordScope::BACKWARD_FUNCTION;
          if ((node ? nodes : operators).contains(name)) {
            moments().push_back({steady_now(), name.substr(8)});
          }
          return nullptr;
        }).scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
  }
  ~Recorded() { at::removeCallback(handle_); }
  Recorded(const Recorded&) = delete;
  Recorded& operator=(const Recorded&) = delete;

  // In order, with the exchanges of `pulse` since `from`, counted from 0.
  static std::string text(const Pulse& pulse, int64_t from) {
    std::vector<Moment> all = moments();
    std::map<int64_t, int64_t> number;
    pulse.flight().visit([&](const FlightRecorder::Raw& raw) {
      if (raw.at < from || raw.operation.what != Collective::kAllToAll) return;
      const int64_t i = number.try_emplace(raw.operation.number, std::ssize(number)).first->second;
      if (raw.event == Note::kIssue) all.push_back({raw.at, "send" + std::to_string(i)});
      if (raw.event == Note::kWait) all.push_back({raw.at, "wait" + std::to_string(i)});
    });
    std::ranges::stable_sort(all, {}, &Moment::at);
    std::string out;
    for (const Moment& moment : all) out += (out.empty() ? "" : " ") + moment.what;
    return out;
  }

 private:
  at::CallbackHandle handle_;
};

MoeConfig config_of(bool overlap) {
  MoeConfig c;
  c.experts = 4;
  c.top_k = 2;
  c.ffn.hidden = 6;
  c.ffn.init.std = 0.4;
  c.router = TopkSoftmaxRouting{};
  c.shared = {.experts = 1, .form = SharedForm::kGate, .overlap = overlap};
  return c;
}

std::unique_ptr<Dispatcher> a2a(World& world) {
  return all_to_all_dispatcher(world.all(), contiguous(4, world.size()), DispatchMode::kFast);
}

MoeLayer layer_of(const MoeConfig& config, std::unique_ptr<Dispatcher> dispatcher) {
  MoeLayer layer(config, MoeShape::alone(kWidth), std::move(dispatcher));
  for_each_param(layer, "moe", [&](const std::string& name, Param& p) {
    p.allocate(at::TensorOptions(at::kFloat));
    initialize(p, name, 11);
  });
  return layer;
}

struct Step {
  Named tensors;
  std::string forward, backward;  // the order
  std::vector<int64_t> sent;      // bytes of each exchange, of forward and then of backward
};

// Of each exchange since `from`, in order.
void add_bytes(const Pulse& pulse, int64_t from, std::vector<int64_t>& out) {
  std::map<int64_t, int64_t> bytes;  // by the exchange's number
  pulse.flight().visit([&](const FlightRecorder::Raw& raw) {
    if (raw.at < from || raw.operation.what != Collective::kAllToAll) return;
    if (raw.event == Note::kIssue) bytes[raw.operation.number] = raw.operation.bytes;
  });
  for (const auto& [number, size] : bytes) out.push_back(size);
}

Step step(World& world, const MoeConfig& config, std::unique_ptr<Dispatcher> dispatcher) {
  static std::mutex drawing;  // ranks are threads here, and share PyTorch's generator
  std::unique_lock lock(drawing);
  at::manual_seed(7 + world.rank());
  MoeLayer layer = layer_of(config, std::move(dispatcher));
  const at::Tensor x = at::randn({kTokens, kWidth}).requires_grad_();
  const at::Tensor g = at::randn({kTokens, kWidth});
  lock.unlock();
  Step out;
  at::Tensor y;
  {
    const int64_t from = steady_now();
    const Recorded recorded;
    y = layer.forward(x, {}, {.training = true, .seed = 5}).y;
    out.forward = Recorded::text(world.pulse(), from);
    add_bytes(world.pulse(), from, out.sent);
  }
  {
    const int64_t from = steady_now();
    const Recorded recorded;
    y.backward(g);
    out.backward = Recorded::text(world.pulse(), from);
    add_bytes(world.pulse(), from, out.sent);
  }
  out.tensors = {{"y", y.detach()}, {"x", x.grad()}};
  for_each_param(layer, "", [&](const std::string& name, Param& p) {
    if (p.trainable()) out.tensors[name] = p.value.grad();
  });
  return out;
}

// 0: counts; 1, 2: routing and rows, while which travel the shared expert and the rows' plan are
// made; 3: results. Backward 0: gradients of results; 1, 2: of rows and of scores.
TEST(MoeOverlap, SH4_OV5_WhatIsComputedWhileRowsTravel) {
  in_threads(2, [](World& world) {
    const Step beside = step(world, config_of(true), a2a(world));
    EXPECT_EQ(beside.forward,
              "send0 wait0 routing_plan send1 send2 moe_ffn_forward wait1 routing_plan wait2 "
              "moe_ffn_forward send3 wait3");
    EXPECT_EQ(beside.backward,
              "combine send0 moe_ffn combine_arrival wait0 moe_ffn dispatch send1 send2 "
              "moe_ffn_weights dispatch_arrival wait1 wait2");
    const Step after = step(world, config_of(false), a2a(world));
    EXPECT_EQ(
        after.forward,
        "send0 wait0 routing_plan send1 send2 wait1 routing_plan wait2 moe_ffn_forward send3 wait3 "
        "moe_ffn_forward");
    EXPECT_EQ(after.backward,
              "moe_ffn combine send0 combine_arrival wait0 moe_ffn dispatch send1 send2 "
              "moe_ffn_weights dispatch_arrival wait1 wait2");
  });
}

// Whether `what` stands in `order` after `from` and before `to`.
bool is_between(const std::string& order, const std::string& from, const std::string& what,
                const std::string& to) {
  const std::string all = ' ' + order + ' ';
  const size_t begin = all.find(' ' + from + ' '), end = all.find(' ' + to + ' ');
  if (begin == std::string::npos || end == std::string::npos) return false;
  const size_t found = all.find(' ' + what + ' ', begin);
  return found < end;
}

// Experts of width 4 in a layer of 8: its shared expert too is computed while rows travel, and in
// backward while those of results do, the experts' weight gradients while those of rows do.
TEST(MoeOverlap, SH4_OV5_WhatALatentLayerComputesWhileRowsTravel) {
  in_threads(2, [](World& world) {
    MoeConfig beside = config_of(true), after = config_of(false);
    beside.latent = after.latent = 4;
    const Step together = step(world, beside, a2a(world)), apart = step(world, after, a2a(world));
    EXPECT_TRUE(is_between(together.forward, "send2", "moe_ffn_forward", "wait1"))
        << together.forward;
    EXPECT_FALSE(is_between(apart.forward, "send2", "moe_ffn_forward", "wait1")) << apart.forward;
    EXPECT_TRUE(is_between(together.backward, "send0", "moe_ffn", "wait0")) << together.backward;
    EXPECT_FALSE(is_between(apart.backward, "send0", "moe_ffn", "wait0")) << apart.backward;
    for (const Step* each : {&together, &apart}) {
      EXPECT_TRUE(is_between(each->backward, "send1", "moe_ffn_weights", "wait1"))
          << each->backward;
    }
  });
}

// The rows that go to the experts and come back, and their gradients: four exchanges of seven. The
// others are of counts, choices and weights, which have no width.
TEST(MoeOverlap, L3_TheBytesOfRowsAreInProportionToTheLatentWidth) {
  in_threads(2, [](World& world) {
    const std::vector<int64_t> plain = step(world, config_of(true), a2a(world)).sent;
    ASSERT_EQ(plain.size(), 7U);
    for (const int64_t latent : {2, 4}) {
      MoeConfig config = config_of(true);
      config.latent = latent;
      const std::vector<int64_t> sent = step(world, config, a2a(world)).sent;
      ASSERT_EQ(sent.size(), plain.size());
      int rows = 0;
      for (size_t i = 0; i < sent.size(); ++i) {
        if (sent[i] == plain[i]) continue;
        ++rows;
        EXPECT_GT(sent[i], 0);
        EXPECT_EQ(sent[i] * kWidth, plain[i] * latent) << "exchange " << i;
      }
      EXPECT_EQ(rows, 4) << latent;
    }
  });
}

TEST(MoeOverlap, T14_GradientsOfTokensGoHomeWhileThoseOfWeightsAreMade) {
  in_threads(2, [](World& world) {
    at::manual_seed(3);
    const TokenSharding sharding(world.all());
    Linear q({.out = 6, .in = kWidth, .init = {}}), k({.out = 2, .in = kWidth, .init = {}});
    for (Param* p : {&q.weight, &k.weight}) {
      p->allocate(at::TensorOptions(at::kFloat));
      initialize(*p, "w", 11);
    }
    const at::Tensor all = at::randn({kTokens, kWidth}), g = at::randn({kTokens, 8});
    const auto run = [&](bool beside, std::string* order) {
      const at::Tensor x = sharding.own_rows(all).clone().requires_grad_();
      const GatheredTokens gathered = sharding.all_gather(x, kTokens);
      const at::Tensor y = joined_linear(
          gathered.x_T, {&q, &k}, {.weights_order = beside ? gathered.beside : std::nullopt});
      for (Param* p : {&q.weight, &k.weight}) p->value.mutable_grad().reset();
      const int64_t from = steady_now();
      const Recorded recorded;
      y.backward(g);
      *order = Recorded::text(world.pulse(), from);
      return std::vector<at::Tensor>{x.grad(), q.weight.value.grad(), k.weight.value.grad()};
    };
    std::string beside, after;
    const auto got = run(true, &beside), want = run(false, &after);
    EXPECT_EQ(beside, "joined_linear gathered send0 joined_linear_weights gathered_arrival wait0");
    EXPECT_EQ(after, "joined_linear gathered send0 gathered_arrival wait0");
    for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(at::equal(got[i], want[i])) << i;
  });
}

TEST(MoeOverlap, SH4_ChangesNoBit) {
  in_threads(2, [](World& world) {
    const auto gather = [&] {
      return all_gather_dispatcher(world.all(), contiguous(4, 2), DispatchMode::kExact);
    };
    for (const SharedForm form : {SharedForm::kSum, SharedForm::kWeighted, SharedForm::kGate}) {
      for (const int64_t latent : {0, 4}) {
        MoeConfig beside = config_of(true);
        beside.shared.form = form;
        beside.latent = latent;
        MoeConfig after = beside;
        after.shared.overlap = false;
        for (const bool exact : {false, true}) {
          const Step got = step(world, beside, exact ? gather() : a2a(world));
          const Step want = step(world, after, exact ? gather() : a2a(world));
          ASSERT_GE(got.tensors.size(), 7U);
          for (const auto& [name, tensor] : want.tensors) {
            EXPECT_TRUE(at::equal(got.tensors.at(name), tensor)) << name << ' ' << to_text(form);
          }
        }
      }
    }
  });
}

}  // namespace
}  // namespace troupe
