// What all routers have in common: they turn tokens into choices and weights. One file a kind, all
// listed in routers.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "troupe/nn/moe/moe_losses.h"
#include "troupe/nn/parts/context.h"

namespace troupe {

inline constexpr const char* kRouterPlace = "model.moe.router";  // in a recipe

struct RouterShape {
  int64_t width;      // D
  int64_t experts;    // E
  int64_t top_k;      // K
  int64_t vocab = 0;  // table routing alone
};

void validate(const RouterShape& shape);  // E6: 1 <= K <= E, or an error that names both

// Group-limited choice (R9): the E experts are g equal groups, and a token's choices are in its
// best a groups, scored by the sum of each group's `top` best; 0: k div a.
struct GroupsConfig {
  int64_t groups = 1;  // g
  int64_t keep = 1;    // a
  int64_t top = 0;     // m

  static void visit(auto& c, auto&& f) {
    f("groups", c.groups, "Number of equal expert groups; 1: off.");
    f("keep", c.keep, "Groups that a token may choose from.");
    f("top", c.top, "Experts summed for a group's score; 0: K / keep.");
  }
};
void validate(const GroupsConfig& groups, const RouterShape& shape);
int64_t best_of_group(const GroupsConfig& groups, int64_t top_k);  // m, defaults resolved

struct RouterOutput {
  at::Tensor ids_TK;      // int32; -1: an invalid token, or a slot that expert choice left empty
  at::Tensor weights_TK;  // f32 (f64 beside f64), with gradient; 0 where ids are -1
  at::Tensor counts_E;    // int64 assignments as chosen, before any dropping: c
  BalanceSums balance;    // what the losses read
  // Mean over the valid tokens of the chosen scores' sum (R6); undefined for the softmax.
  at::Tensor score_sum = {};
  bool forced = false;        // a benchmark aid chose (R3): no training speed
  at::Tensor logits_TE = {};  // z without its graph, for a trace (R15)
  // The input, for whoever reads it after the router (Gated::x_TD); undefined: x itself.
  at::Tensor x_TD = {};
};

using VisitParam = std::function<void(const std::string& name, Param& param)>;
using VisitTensor = std::function<void(at::Tensor&)>;

class Router {
 public:
  virtual ~Router() = default;

  virtual RouterOutput forward(const at::Tensor& x_TD, const Tokens& tokens,
                               const Context& context) = 0;
  // After each optimizer step: updates biases from what the step's forwards counted (R10, R11). A
  // skipped step forgets the counts and changes nothing.
  virtual void end_of_step(const SumOver& /*all_sum*/, bool /*skipped*/) {}
  // The tensors, undefined ones too, by which forwards hand to end_of_step what they counted. Who
  // replays forwards without calling them (train/step/step_graph.h) sets these.
  virtual void for_each_of_step(const VisitTensor&) {}
  virtual const BalanceConfig& balance() const = 0;
  virtual GroupsConfig limit() const { return {}; }
  virtual int64_t slots() const = 0;  // columns of ids: K, or E for expert choice
  virtual bool may_drop() const = 0;  // does a capacity make sense (C8)?
  virtual bool is_causal() const { return true; }
  virtual void for_each(const std::string& prefix, const VisitParam& f) = 0;
};

}  // namespace troupe
