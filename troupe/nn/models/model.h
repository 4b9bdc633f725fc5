// A model is a chain of units: unit 0 embeds, 1 .. layers are blocks, the last is the head with the
// loss (and MTP modules). Autograd works inside a unit; between units a schedule is in charge: it
// detaches, calls, and feeds gradients.
//
//   auto model = build_model(config);
//   model->for_each_param(-1, [&](const std::string& name, Param& p) { initialise(p, name, seed);
//   }); at::Tensor h; for (int64_t u = 0; u < model->num_units(); ++u) h = model->forward(u, h,
//   batch, context).h;
//
// Names are global (checkpoint names): the layer's number counts from the model's first layer, and
// an expert's is its global number. Parameters are made by Param::allocate or initialise; until
// then a model holds no memory. A unit may be called any number of times, in any order.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "troupe/nn/context.h"
#include "troupe/nn/models/config.h"
#include "troupe/nn/models/costs.h"

namespace troupe {

class KvCache;   // nn/kv_cache.h
class MoeLayer;  // nn/moe_layer.h

struct Batch {                 // one microbatch on the model's device; S may differ between batches
  at::Tensor ids_BS;           // int64: tokens
  at::Tensor labels_BS = {};   // int64: targets (already shifted); undefined: no loss
  at::Tensor weights_BS = {};  // f32 weight of each target, 0: not counted; undefined: all 1
  at::Tensor documents_BS = {};  // int32, never falling along a row: tokens see their own document
                                 // alone; undefined: a row is one document
  at::Tensor positions_BS = {};  // int64 for rotary and learned; undefined: 0 .. S-1, or from the
                                 // start of each document
  at::Tensor valid_BS = {};  // bool, false: padding that no router sees (G3); undefined: all true
  std::vector<at::Tensor> replay_TK = {};  // choices to take, for each layer, in place of the
                                           // routers' own (R15); empty: none
  KvCache* cache = nullptr;                // generation: keys and values of earlier calls
};

struct UnitResult {
  at::Tensor h;           // [B, S, D] to the next unit; undefined after the head
  at::Tensor loss_sum;    // head alone: sum over targets of weight * nll, with graph
  at::Tensor weight_sum;  // head alone: sum of the weights, no graph
  at::Tensor mtp_sum;     // MTP: to be added to loss_sum, its factor included; undefined: none
  std::vector<MoeLoss> losses;  // auxiliary, with graph; the caller scales (A7) and adds them
  std::vector<MoeStats> stats;  // of the unit's MoE layers
  at::Tensor choices_TK;        // int32, a block's routing, for replay; undefined: no MoE layer
};

using ParamVisitor = std::function<void(const std::string& name, Param& param)>;
using MoeVisitor = std::function<void(int64_t unit, MoeLayer& layer)>;

class Model {
 public:
  virtual ~Model() = default;

  virtual const ModelConfig& config() const = 0;
  virtual int64_t num_units() const = 0;
  virtual UnitResult forward(int64_t unit, const at::Tensor& h, const Batch& batch,
                             const Context& context) = 0;
  // h as it goes into the head: [.., D] to [.., V]. For generation, evaluation, parity.
  virtual at::Tensor logits(const at::Tensor& h) = 0;
  // The parameters that a unit reads; unit < 0: all, each once. A tied table, and the table that
  // MTP modules read, are visited by both units, as one Param under one name.
  virtual void for_each_param(int64_t unit, const ParamVisitor& f) = 0;
  // The MoE layers that are here, in the order of their units' UnitResult::stats.
  virtual void for_each_moe(const MoeVisitor& f) = 0;
  // After each optimizer step, also a skipped one: routers' biases and counters.
  virtual void end_of_step(const SumOver& all_sum = {}, bool skipped = false) = 0;
  ModelCosts costs() const { return costs_of(config()); }
};

struct BuildOptions {
  int64_t first_unit = 0, end_unit = -1;  // the units that this rank runs; -1: to the end
  // How MoE layer `layer` reaches its experts; absent: all are here.
  std::function<std::unique_ptr<Dispatcher>(int64_t layer, const MoeConfig& moe)> dispatcher = {};
  int64_t group_ranks = 1;  // |G|, ranks that share a microbatch
};

// Checks the config, then builds. Units outside the options' range refuse every call.
std::unique_ptr<Model> build_model(const ModelConfig& config, const BuildOptions& options = {});

// Through all units but the head: [B, S, D], as it goes into the head and logits().
at::Tensor hidden_states(Model& model, const Batch& batch, const Context& context = {});

}  // namespace troupe
