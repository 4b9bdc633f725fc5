// A model is a chain of units: unit 0 is the embedding, 1 .. layers are blocks, then MTP modules, a
// unit each, and the last is the head with the losses. Each unit has an autograd graph of its own;
// the executor of a schedule detaches its input and passes gradients from unit to unit.
//
//   auto model = build_model(config);
//   model->for_each_param(-1, [&](auto& name, Param& p) { initialize(p, name, seed); });
//   at::Tensor h;
//   for (int64_t u = 0; u < model->num_units(); ++u) h = model->forward(u, h, batch, context).h;
//
// Names are global (checkpoint names): layers are numbered over the whole model, experts over all
// ranks. Param::allocate or initialize creates the parameters' memory; a new model holds none. A
// unit may be called any number of times, in any order.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "troupe/nn/config/batch.h"
#include "troupe/nn/config/build_options.h"
#include "troupe/nn/config/config.h"
#include "troupe/nn/config/costs.h"
#include "troupe/nn/parts/context.h"
#include "troupe/nn/parts/tensor_parts.h"

namespace troupe {

class MoeLayer;         // nn/moe/moe_layer.h
class AttentionModule;  // nn/attention/attention_module.h
class DenseFfn;         // nn/ffn/dense_ffn.h

using ParamVisitor = std::function<void(const std::string& name, Param& param)>;
using MoeVisitor = std::function<void(int64_t unit, MoeLayer& layer)>;
using AttentionVisitor = std::function<void(int64_t layer, AttentionModule& attention)>;
using DenseFfnVisitor = std::function<void(int64_t layer, DenseFfn& ffn)>;

class Model {
 public:
  virtual ~Model() = default;

  virtual const ModelConfig& config() const = 0;
  virtual int64_t num_units() const = 0;
  virtual bool has_unit(int64_t) const { return true; }  // false: another stage's rank has it
  virtual UnitResult forward(int64_t unit, const at::Tensor& h, const Batch& batch,
                             const Context& context) = 0;
  // [.., D] to [.., V], for h as it enters the head without training, the same on all ranks. For
  // generation, evaluation, parity; of the context, on_output alone is read.
  virtual at::Tensor logits(const at::Tensor& h, const Context& context = {}) = 0;
  // The parameters that a unit of this rank reads; none of another rank's unit; unit < 0: all, each
  // once. A tied table, and the table that MTP modules read, are visited by each unit that reads
  // it, as one Param under one name.
  virtual void for_each_param(int64_t unit, const ParamVisitor& f) = 0;
  // The MoE layers of this rank, in the order of their units' UnitResult::stats.
  virtual void for_each_moe(const MoeVisitor& f) = 0;
  // The attention modules of this rank's layers, MTP modules' not among them.
  virtual void for_each_attention(const AttentionVisitor& f) = 0;
  // Likewise their dense feed-forwards.
  virtual void for_each_dense_ffn(const DenseFfnVisitor& f) = 0;
  // After each optimizer step, also a skipped one: routers' biases and counters.
  virtual void end_of_step(const SumOver& all_sum = {}, bool skipped = false) = 0;
  virtual const TokenSharding& tokens() const = 0;  // how they are cut over ranks
  // x of a batch, summed over the ranks that share it.
  virtual at::Tensor summed_over_batch(const at::Tensor& x, const Batch& batch) const = 0;
  ModelCosts costs() const { return costs_of(config()); }
};

// Checks the config, then builds. forward() of a unit that this rank does not have throws.
std::unique_ptr<Model> build_model(const ModelConfig& config, const BuildOptions& options = {});

// "layer 3", for messages.
std::string unit_name(const ModelConfig& config, int64_t unit);

// How many [t, D] a unit passes on, one behind the other. In training MTP module d passes on the
// final norm's result, the normed states of modules 1 .. d and, to another module, its own state.
// Without training no module computes anything, and the final norm's result alone is passed (PL5).
int64_t states_after(const ModelConfig& config, int64_t unit, bool training);

// Runs all units but the head: [B, S, D] on all ranks, the input of logits(), and of the head where
// there are no MTP modules.
at::Tensor hidden_states(Model& model, const Batch& batch, const Context& context = {});

}  // namespace troupe
