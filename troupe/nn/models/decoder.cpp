#include <vector>

#include "troupe/core/check.h"
#include "troupe/nn/head.h"
#include "troupe/nn/models/model.h"

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
      : config_(config), layers_(config.layers) {
    const int64_t last = config.layers + 1, from = options.first_unit,
                  end = options.end_unit < 0 ? last + 1 : options.end_unit;
    TROUPE_CHECK(0 <= from && from < end && end <= last + 1, "units", from, "to", end, "of",
                 last + 1);
    const bool heads = end == last + 1;
    if (from == 0 || (heads && shares_table())) embed_.emplace(config);
    for (int64_t i = 0; i < config.layers; ++i) {
      if (from > i + 1 || i + 1 >= end) continue;
      layers_[i] = std::make_unique<Block>(config, layer_config(config, i), options);
    }
    if (!heads) return;
    head_ = std::make_unique<Head>(config);
    head_->add_mtp(config, options);
  }

  const ModelConfig& config() const override { return config_; }
  int64_t num_units() const override { return config_.layers + 2; }

  UnitResult forward(int64_t unit, const at::Tensor& h, const Batch& batch,
                     const Context& context) override {
    TROUPE_CHECK(0 <= unit && unit < num_units(), "unit", unit, "of", num_units());
    const c10::Device device = unit == 0 ? batch.ids_BS.device() : h.device();
    const Packing packing = packing_of(batch.documents_BS, batch.positions_BS, device);
    if (unit == 0) {
      UnitResult result;
      result.h = here(embed_).forward(batch, packing, context);
      return result;
    }
    if (unit <= config_.layers) return here(layers_[unit - 1]).forward(h, batch, packing, context);
    return here(head_).forward(h, batch, packing, context, table());
  }

  at::Tensor logits(const at::Tensor& h) override { return here(head_).logits(h, table()); }

  void for_each_param(int64_t unit, const ParamVisitor& f) override {
    if (unit < 0) return troupe::for_each_param(*this, "", f);
    TROUPE_CHECK(unit < num_units(), "unit", unit, "of", num_units());
    const bool heads = unit == num_units() - 1;
    if (unit == 0 || (heads && shares_table())) troupe::for_each_param(here(embed_), "embed", f);
    if (unit > 0 && !heads) {
      troupe::for_each_param(here(layers_[unit - 1]), "layers." + std::to_string(unit - 1), f);
    }
    if (heads) troupe::for_each_param(here(head_), "head", f);
  }

  void for_each_moe(const MoeVisitor& f) override {
    const auto visit_one = [&](int64_t unit, MoeLayer* moe) {
      if (moe != nullptr) f(unit, *moe);
    };
    for (int64_t i = 0; i < config_.layers; ++i) {
      visit_one(i + 1, layers_[i] ? layers_[i]->moe() : nullptr);
    }
    if (!head_) return;
    for (MtpModule& module : head_->mtp()) visit_one(config_.layers + 1, module.moe());
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
  bool shares_table() const { return config_.tie_embeddings || config_.mtp.depth > 0; }
  const Embedding* table() const { return embed_ ? &*embed_ : nullptr; }

  ModelConfig config_;
  std::optional<Embedding> embed_;
  std::vector<std::unique_ptr<Block>> layers_;  // null: another rank's
  std::unique_ptr<Head> head_;
};

}  // namespace

std::unique_ptr<Model> build_model(const ModelConfig& config, const BuildOptions& options) {
  validate(config);
  return std::make_unique<Decoder>(config, options);
}

at::Tensor hidden_states(Model& model, const Batch& batch, const Context& context) {
  at::Tensor h;
  for (int64_t u = 0; u + 1 < model.num_units(); ++u) h = model.forward(u, h, batch, context).h;
  return h;
}

}  // namespace troupe
