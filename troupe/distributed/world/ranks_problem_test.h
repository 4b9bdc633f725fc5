// What tests of dispatchers between processes share: the same layer over the tokens of all ranks,
// drawn alike in each process, and what one process makes of it.
#pragma once

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "troupe/distributed/dispatch/all_to_all_dispatcher.h"
#include "troupe/distributed/dispatch/dispatcher.h"
#include "troupe/distributed/dispatch/local_dispatcher.h"
#include "troupe/distributed/world/world.h"

namespace troupe::ranks_problem {

constexpr int64_t kD = 8, kF = 4;

enum class Load { kRandom, kBalanced, kHotExpert, kHotRank, kTwice, kNone };

struct Case {
  std::vector<int64_t> tokens;  // of each rank
  at::ScalarType type = at::kFloat;
  Load load = Load::kRandom;
  double masked = 0.2;
  int64_t experts = 8, choices = 3;
  uint64_t seed = 1;
  int64_t width = kD;

  int64_t all() const { return std::accumulate(tokens.begin(), tokens.end(), int64_t{0}); }
  int64_t first(int64_t rank) const {
    return std::accumulate(tokens.begin(), tokens.begin() + rank, int64_t{0});
  }
};

struct Inputs {
  at::Tensor x_TD, ids_TK, scores_TK, grad_TD, w1, w2;
};

inline at::Tensor choices(const Case& c) {
  const int64_t T = c.all(), E = c.experts, K = c.choices;
  at::Tensor preference = at::rand({T, E}, at::kDouble);
  if (c.load == Load::kHotExpert) preference.select(1, E - 2).fill_(-1);
  if (c.load == Load::kHotRank) preference.narrow(1, 0, K) -= 1;
  at::Tensor ids = std::get<1>(preference.sort()).narrow(1, 0, K).to(at::kInt).contiguous();
  if (c.load == Load::kBalanced) {
    ids = at::arange(T * K, at::kInt).remainder(E).reshape({T, K});
  }
  if (c.load == Load::kTwice) ids.select(1, 1).copy_(ids.select(1, 0));
  ids.masked_fill_(at::rand({T, K}).lt(c.masked), -1);
  if (T > 2) ids[T / 2].fill_(-1);
  if (c.load == Load::kNone) ids.fill_(-1);
  return ids;
}

// Inputs of all ranks. Threads draw one after another: they share the generator.
inline Inputs draw(const Case& c) {
  static std::mutex generator;
  const std::lock_guard lock(generator);
  at::manual_seed(c.seed);
  const auto wide = c.type == at::kDouble ? at::kDouble : at::kFloat;
  const auto normal = [&](std::vector<int64_t> sizes) {
    return at::randn(sizes, at::kDouble).to(c.type);
  };
  const int64_t T = c.all(), D = c.width;
  return {normal({T, D}),
          choices(c),
          at::rand({T, c.choices}, at::kDouble).to(wide),
          normal({T, D}),
          normal({c.experts, 2 * kF, D}),
          normal({c.experts, D, kF})};
}

// Rank r's tokens, and the weights that it holds.
inline Inputs part_of(const Inputs& all, const Case& c, const ExpertPlacement& placement,
                      int64_t rank) {
  const auto own = [&](const at::Tensor& x) {
    return x.narrow(0, c.first(rank), c.tokens[rank]).clone();
  };
  const at::Tensor held = at::tensor(placement.held_by(rank), at::kLong);
  Inputs out{own(all.x_TD),
             own(all.ids_TK),
             own(all.scores_TK),
             own(all.grad_TD),
             all.w1.index_select(0, held),
             all.w2.index_select(0, held)};
  if (placement.slices() > 1) {
    const int64_t F = kF / placement.slices(), from = F * placement.slice_of(rank);
    out.w1 = at::cat({out.w1.narrow(1, from, F), out.w1.narrow(1, kF + from, F)}, 1);
    out.w2 = out.w2.narrow(2, from, F).contiguous();
  }
  return out;
}

struct Options {
  int64_t alignment = 1, capacity = 0, budget = 0, most = 0;
};

struct Results {
  at::Tensor out_TD, x_TD, scores_TK, w1, w2, lost;
};

struct Forward {
  std::vector<at::Tensor> leaves;
  at::Tensor out_TD, lost, grad_TD;

  Results backward() const {
    const at::Tensor loss = (out_TD.to(at::kDouble) * grad_TD.to(at::kDouble)).sum();
    loss.backward();
    return {out_TD.detach(),  leaves[0].grad(), leaves[1].grad(),
            leaves[2].grad(), leaves[3].grad(), lost};
  }
};

inline Forward forward(Dispatcher& d, const Inputs& in, const Options& o = {}) {
  Forward f;
  for (const at::Tensor& x : {in.x_TD, in.scores_TK, in.w1, in.w2}) {
    f.leaves.push_back(x.detach().clone().requires_grad_());
  }
  const DispatchedRows rows = d.begin(f.leaves[0], {.ids_TK = in.ids_TK,
                                                    .scores_TK = f.leaves[1],
                                                    .alignment = o.alignment,
                                                    .capacity = o.capacity,
                                                    .budget = o.budget,
                                                    .most = o.most})
                                  .finish();
  const ExpertWeights w{f.leaves[2], std::nullopt, f.leaves[3], std::nullopt};
  f.out_TD = rows.combine(moe_ffn(rows.source_SD, rows.scores_SK, rows.plan, w, {}));
  f.lost = rows.lost;
  f.grad_TD = in.grad_TD;
  return f;
}

inline Results run(Dispatcher& d, const Inputs& in, const Options& o = {}) {
  return forward(d, in, o).backward();
}

// What this rank should have, of what one process made of all.
inline Results part_of(const Results& all, const Case& c, const ExpertPlacement& placement,
                       int64_t rank) {
  const Inputs whole{all.out_TD, all.out_TD, all.scores_TK, all.x_TD, all.w1, all.w2};
  const Inputs part = part_of(whole, c, placement, rank);
  return {part.x_TD, part.grad_TD, part.scores_TK, part.w1, part.w2, {}};
}

// bound 0: the same bits.
inline void expect_equal(const Results& got, const Results& want, const std::string& what,
                         double bound = 0) {
  const auto one = [&](const at::Tensor& g, const at::Tensor& w, const char* name) {
    ASSERT_EQ(g.sizes(), w.sizes()) << what << ' ' << name;
    EXPECT_EQ(g.scalar_type(), w.scalar_type()) << what << ' ' << name;
    const double off =
        g.numel() == 0 ? 0 : (g.to(at::kDouble) - w.to(at::kDouble)).abs().max().item<double>();
    EXPECT_TRUE(off <= bound) << what << ' ' << name << " is off by " << off;  // also if NaN
  };
  one(got.out_TD, want.out_TD, "out");
  one(got.x_TD, want.x_TD, "grad x");
  one(got.scores_TK, want.scores_TK, "grad scores");
  one(got.w1, want.w1, "grad w1");
  one(got.w2, want.w2, "grad w2");
}

// (token, node or rank) pairs of all ranks' tokens, other than the token's own node.
inline int64_t copies_off_node(const Inputs& all, const Case& c, const ExpertPlacement& p,
                               int64_t per_node, bool by_node) {
  int64_t copies = 0;
  for (int64_t rank = 0; rank < p.ranks(); ++rank) {
    const at::Tensor ids = part_of(all, c, p, rank).ids_TK;
    for (int64_t t = 0; t < ids.size(0); ++t) {
      std::set<int64_t> met;
      for (int64_t k = 0; k < ids.size(1); ++k) {
        const int64_t e = ids[t][k].item<int64_t>();
        if (e < 0) continue;
        const int64_t to = p.owners(e)[0];
        if (to / per_node != rank / per_node) met.insert(by_node ? to / per_node : to);
      }
      copies += static_cast<int64_t>(met.size());
    }
  }
  return copies;
}

// ||got - want|| / ||want||; 0 of nothing.
inline double relative_error(const at::Tensor& got, const at::Tensor& want) {
  const at::Tensor w = want.to(at::kDouble), off = got.to(at::kDouble) - w;
  const double size = w.norm().item<double>();
  return size == 0 ? off.norm().item<double>() : off.norm().item<double>() / size;
}

inline std::string text_of(const Case& c, const ExpertPlacement& p) {
  return std::to_string(p.ranks()) + " ranks, type " + at::toString(c.type) + ", load " +
         std::to_string(static_cast<int>(c.load)) + ", " + std::to_string(c.all()) +
         " tokens, seed " + std::to_string(c.seed);
}

using Maker = std::unique_ptr<Dispatcher> (*)(std::shared_ptr<ProcessGroup>, const ExpertPlacement&,
                                              DispatchMode, WireType);
// kFast against virtual ranks, kExact against one process, both bit for bit.
inline void compare(World& world, Maker make, const Case& c, const ExpertPlacement& p,
                    const Options& o = {}) {
  const Inputs all = draw(c), own = part_of(all, c, p, world.rank());
  Options whole = o;
  whole.capacity *= p.ranks();
  for (const DispatchMode mode : {DispatchMode::kFast, DispatchMode::kExact}) {
    const auto oracle =
        mode == DispatchMode::kFast ? virtual_ranks_dispatcher(p) : local_dispatcher(c.experts);
    const auto d = make(world.all(), p, mode, WireType::kNative);
    const Results got = run(*d, own, o);
    expect_equal(got, part_of(run(*oracle, all, whole), c, p, world.rank()),
                 to_text(mode) + ", " + text_of(c, p));
    expect_equal(run(*d, own, o), got, to_text(mode) + " once more, " + text_of(c, p));
  }
}

// Every type, load and distribution of tokens.
inline void compare_all(World& world, Maker make) {
  const int64_t W = world.size();
  const ExpertPlacement p = contiguous(8 * W / std::gcd(int64_t{8}, W), W);
  const std::vector<int64_t> even(W, 20), none(W, 0), one(W, 1);
  std::vector<int64_t> ragged(W), last(W, 0);
  for (int64_t r = 0; r < W; ++r) ragged[r] = 7 * ((r + 2) % W) + r % 2;
  last.back() = 33;
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    compare(world, make, {.tokens = ragged, .type = type, .experts = p.experts()}, p);
    compare(world, make, {.tokens = last, .type = type, .experts = p.experts()}, p);
  }
  for (const auto& tokens : {even, one, none}) {
    compare(world, make, {.tokens = tokens, .experts = p.experts()}, p);
  }
  for (const Load load :
       {Load::kBalanced, Load::kHotExpert, Load::kHotRank, Load::kTwice, Load::kNone}) {
    compare(world, make, {.tokens = ragged, .load = load, .experts = p.experts()}, p);
  }
}

}  // namespace troupe::ranks_problem
