#include <ATen/TensorOperators.h>

#include <algorithm>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/nn/attention/context_slice.h"
#include "troupe/nn/model/head.h"
#include "troupe/nn/model/model.h"

namespace troupe {
namespace {

// A part that this rank holds.
template <class Part>
auto& here(Part& part) {
  TROUPE_CHECK(part, "this rank does not hold the unit");
  return *part;
}

// All families: which modules a block has follows from the config.
class Decoder : public Model {
 public:
  Decoder(const ModelConfig& config, const BuildOptions& options)
      : config_(config), parts_(options.tensor), layers_(config.layers) {
    units_.assign(static_cast<size_t>(num_units()), options.units.empty());
    for (const int64_t unit : options.units) {
      TROUPE_CHECK(0 <= unit && unit < num_units(), "unit", unit, "of", num_units());
      units_[static_cast<size_t>(unit)] = true;
    }
    for (int64_t unit = 0; unit < num_units(); ++unit) {
      if (has_unit(unit) && reads_table(unit) && !embed_) embed_.emplace(config, options.tensor);
    }
    for (int64_t i = 0; i < config.layers; ++i) {
      if (!has_unit(i + 1)) continue;
      layers_[i] = build_block({config, layer_config(config, i), options});
    }
    const std::vector<bool> behind(units_.end() - config.mtp.depth - 1, units_.end());
    if (std::ranges::count(behind, true) > 0) head_.emplace(config, options, behind);
    if (!config.lora.on()) return;
    troupe::for_each_param(*this, "", [](const std::string& name, Param& p) {
      p.frozen = p.frozen || !is_adapter(name);
    });
  }

  const ModelConfig& config() const override { return config_; }
  int64_t num_units() const override { return config_.layers + config_.mtp.depth + 2; }
  bool has_unit(int64_t unit) const override { return units_.at(static_cast<size_t>(unit)); }
  const TokenSharding& tokens() const override { return parts_.sharding; }
  at::Tensor summed_over_batch(const at::Tensor& x, const Batch& batch) const override {
    return (batch.slice ? parts_.microbatch : parts_.sharding).all_reduce_no_grad(x);
  }

  UnitResult forward(int64_t unit, const at::Tensor& h, const Batch& batch,
                     const Context& given) override {
    TROUPE_CHECK(0 <= unit && unit < num_units(), "unit", unit, "of", num_units());
    TROUPE_CHECK(has_unit(unit), "this rank does not hold unit", unit);
    const Context context = of_own_tokens(given, batch);
    const c10::Device device = unit == 0 ? batch.ids_BS.device() : h.device();
    const Packing packing = packing_of(batch.documents_BS, batch.positions_BS, device);
    if (unit == 0) {
      UnitResult result;
      result.h = here(embed_).forward(batch, packing, context);
      return result;
    }
    if (unit <= config_.layers) {
      UnitResult result = here(layers_[unit - 1]).forward(h, batch, packing, context);
      if (context.on_output != nullptr) {
        (*context.on_output)("layers." + std::to_string(unit - 1), result.h);
      }
      return result;
    }
    if (unit + 1 == num_units()) return here(head_).forward(h, batch, context, table());
    return here(head_).predict(unit - config_.layers, h, {batch, packing, context}, here(embed_));
  }

  at::Tensor logits(const at::Tensor& h, const Context& context) override {
    at::Tensor out = here(head_).logits(h, context, table());
    context.output("head", out);
    return out;
  }

  void for_each_param(int64_t unit, const ParamVisitor& f) override {
    if (unit < 0) return troupe::for_each_param(*this, "", f);
    TROUPE_CHECK(unit < num_units(), "unit", unit, "of", num_units());
    if (!has_unit(unit)) return;
    if (reads_table(unit)) troupe::for_each_param(here(embed_), "embed", f);
    if (unit > 0 && unit <= config_.layers) {
      troupe::for_each_param(here(layers_[unit - 1]), "layers." + std::to_string(unit - 1), f);
    }
    if (unit > config_.layers) {
      here(head_).for_each_param_of(
          unit - config_.layers, [&](const std::string& name, Param& p) { f("head." + name, p); });
    }
  }

  void for_each_moe(const MoeVisitor& f) override {
    const auto visit_one = [&](int64_t unit, MoeLayer* moe) {
      if (moe != nullptr) f(unit, *moe);
    };
    for (int64_t i = 0; i < config_.layers; ++i) {
      visit_one(i + 1, layers_[i] ? layers_[i]->moe() : nullptr);
    }
    for (int64_t d = 1; head_ && d <= config_.mtp.depth; ++d) {
      visit_one(config_.layers + d, head_->moe(d));
    }
  }

  void for_each_attention(const AttentionVisitor& f) override {
    for (int64_t i = 0; i < config_.layers; ++i) {
      AttentionModule* const attention = layers_[i] ? layers_[i]->attention() : nullptr;
      if (attention != nullptr) f(i, *attention);
    }
  }

  void for_each_dense_ffn(const DenseFfnVisitor& f) override {
    for (int64_t i = 0; i < config_.layers; ++i) {
      DenseFfn* const ffn = layers_[i] ? layers_[i]->ffn() : nullptr;
      if (ffn != nullptr) f(i, *ffn);
    }
  }

  void end_of_step(const SumOver& all_sum, bool skipped) override {
    for_each_moe([&](int64_t, MoeLayer& moe) { moe.end_of_step(all_sum, skipped); });
  }

  static void visit(auto& m, auto&& f) {
    f("embed", m.embed_);
    f("layers", m.layers_);
    f("head", m.head_);
  }

 private:
  // The context of the tokens of this rank, with those who share the microbatch.
  Context of_own_tokens(const Context& given, const Batch& batch) const {
    Context out = given;
    if (batch.slice) return of_slice(given, *batch.slice);
    if (parts_.sharding.alone()) return out;
    TROUPE_CHECK(batch.ids_BS.defined(), "the batch has no ids");
    const int64_t tokens = batch.ids_BS.numel();
    const TokenRange own = parts_.sharding.own(tokens);
    out.first_token += own.from;
    out.group_sum = [sharding = parts_.sharding](const at::Tensor& x) {
      return sharding.all_reduce_no_grad(x.detach());
    };
    if (!out.all_sum) out.all_sum = out.group_sum;
    out.group_rows = [sharding = parts_.sharding, tokens, from = own.from](const at::Tensor& x) {
      return RowsOfGroup{sharding.all_gather_no_grad(x, tokens), from};
    };
    return out;
  }
  // The same of a slice: other ranks have other tokens of its rows.
  Context of_slice(const Context& given, const ContextSlice& slice) const {
    const TokenSharding &sharding = parts_.sharding, &all = parts_.microbatch;
    TROUPE_CHECK(
        slice.ranks() == parts_.keys.ranks() && all.ranks() == slice.ranks() * sharding.ranks(),
        "rows are cut over", slice.ranks(), "ranks; the model has", parts_.keys.ranks());
    Context out = given;
    const at::Tensor own_T = sharding.own_rows(slice.places());
    out.index_T = own_T + given.first_token;
    out.group_sum = [all](const at::Tensor& x) { return all.all_reduce_no_grad(x.detach()); };
    if (!out.all_sum) out.all_sum = out.group_sum;
    out.group_rows = [all, own_T, order = slice.order(sharding),
                      most = slice.most(sharding)](const at::Tensor& x) {
      const at::Tensor parts = all.all_of(padded_rows(x.detach(), most));
      return RowsOfGroup{parts.flatten(0, 1).index_select(0, order), 0, own_T};
    };
    return out;
  }
  bool reads_table(int64_t unit) const {
    if (unit + 1 == num_units()) return config_.tie_embeddings;
    return unit == 0 || unit > config_.layers;
  }
  const Embedding* table() const { return embed_ ? &*embed_ : nullptr; }

  ModelConfig config_;
  std::vector<bool> units_;  // that are here
  TensorParts parts_;
  std::optional<Embedding> embed_;
  std::vector<std::unique_ptr<Block>> layers_;  // null: another rank's
  std::optional<Head> head_;                    // with the MTP modules of this rank
};

}  // namespace

std::unique_ptr<Model> build_model(const ModelConfig& config, const BuildOptions& options) {
  validate(config);
  return std::make_unique<Decoder>(config, options);
}

int64_t whole_tokens(const Batch& batch) {
  return batch.slice ? batch.slice->all() : batch.ids_BS.numel();
}

std::string unit_name(const ModelConfig& config, int64_t unit) {
  if (unit == 0) return "the embedding";
  if (unit <= config.layers) return "layer " + std::to_string(unit - 1);
  if (unit > config.layers + config.mtp.depth) return "the output head";
  return "MTP module " + std::to_string(unit - config.layers);
}

int64_t states_after(const ModelConfig& config, int64_t unit, bool training) {
  const int64_t module = unit - config.layers;
  if (!training || module <= 0 || module > config.mtp.depth) return 1;
  return module + (module < config.mtp.depth ? 2 : 1);
}

at::Tensor hidden_states(Model& model, const Batch& batch, const Context& context) {
  at::Tensor h;
  for (int64_t u = 0; u + 1 < model.num_units(); ++u) h = model.forward(u, h, batch, context).h;
  const int64_t tokens = batch.ids_BS.numel();
  h = model.tokens().all_gather(h.narrow(0, 0, model.tokens().own(tokens).count), tokens).x_T;
  return h.view({batch.ids_BS.size(0), batch.ids_BS.size(1), h.size(1)});
}

}  // namespace troupe
