// Optimizers over the buckets of a ParamStore, element by element but for Muon. With g the clipped
// gradient (grad * grad_scale), p the master, lr and decay this step's, decay always decoupled:
//   adamw  ops/adamw.h, one fused pass
//   sgd    v = momentum v + g;               p -= lr (v + decay p)
//   lion   u = sign(b1 m + (1 - b1) g);      p -= lr (u + decay p);   m = b2 m + (1 - b2) g
//   muon   matrices: v = mu v + (1 - mu) g, u = (1 - mu) g + mu v, O = newton_schulz(u),
//          p -= lr (0.2 sqrt(max(rows, columns)) O + decay p); all others: adamw
//   soap   matrices: train/optim/soap.h; all others: adamw
//   adafactor  train/optim/adafactor.h; also of routers, embeddings and head
// Where ranks share muon's state, each has the momentum and masters of its range alone, and u is
// gathered for the product. For matrices that ranks cut (tensor ranks, slices of experts) u is put
// together on one of them, another for each matrix, and O comes back in parts
// (train/optim/matrix_parts.h). Each expert's each projection is a matrix of its own; routers,
// embeddings, head and norms are not matrices, where not said otherwise. Moments are f32 or bf16,
// those of adamw, and of sgd and lion, 8 bits too (core/number/moment8.h). Masters in f64 have
// moments in f64 (adamw, sgd, lion).
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/core/config/one_of.h"
#include "troupe/train/optim/lr_schedule.h"
#include "troupe/train/params/param_store.h"

namespace troupe {

enum class MomentType { kF32, kBF16, kInt8 };
constexpr auto names_of(MomentType) {
  return std::array{Named{"f32", MomentType::kF32}, Named{"bf16", MomentType::kBF16},
                    Named{"int8", MomentType::kInt8}};
}
at::ScalarType scalar_type(MomentType type);  // uint8 for kInt8: codes
double bytes_of(MomentType type);             // of one, its part of a scale included

// Parameters whose names match get other settings; the last that matches wins.
struct ParamGroup {
  std::string names = "*";  // * stands for any text
  double lr_scale = 1;
  bool decay = true;  // false: no weight decay; norms and biases have none in any case
  bool frozen = false;
  static void visit(auto& c, auto&& f) {
    f("names", c.names, "Parameter names, * for any text: layers.*.norm*.");
    f("lr_scale", c.lr_scale, "Learning rate multiplier.");
    f("decay", c.decay, "false: no weight decay.");
    f("frozen", c.frozen, "Excludes these parameters from updates.");
  }
};

// What every optimizer has.
struct OptimizerBase {
  double lr = 3e-4;  // the largest of the schedule
  double weight_decay = 0.1;
  std::optional<double> weight_decay_end = {};  // reached at the end of the run
  RampForm weight_decay_form = RampForm::kLinear;
  MomentType moments = MomentType::kF32;
  std::vector<ParamGroup> groups = {};
  static void visit(auto& c, auto&& f) {
    f("lr", c.lr, "Peak learning rate.");
    f("weight_decay", c.weight_decay,
      "Decoupled weight decay: each step subtracts lr times this times the weight.");
    f("weight_decay_end", c.weight_decay_end,
      "Weight decay at the end of the run; null: constant.");
    f("weight_decay_form", c.weight_decay_form, "Schedule from weight_decay to weight_decay_end.");
    f("moments", c.moments, "Type of the optimizer state: f32, bf16 or int8 (blocks of 256).");
    f("groups", c.groups, "Parameter groups by name; the last match wins.");
  }
};

// One update of one bucket.
struct UpdateStep {
  int64_t step = 1;  // of this update, from 1
  double lr = 0;     // of the bucket: with its lr_scale
  double weight_decay = 0;
  at::Tensor grad_scale;  // f32 [1], on the device
};

// State of another size than its parameter's, f32: a number for each row or column of a parameter's
// matrices (the last two dimensions of its box), or for two of either; or for each element.
enum class Extent { kEach, kRows, kColumns, kRowsRows, kColumnsColumns };
struct SlotState {
  std::string name;
  Extent extent;
};
Param state_like(const Param& p, Extent extent);  // its box, without a value

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // Names of the state that it keeps for a bucket: "m", "v". All begin at 0.
  virtual std::vector<std::string> state_names(const Bucket& bucket) const = 0;
  // More state of a parameter, in ParamStore::Slot::state. All begin at 0.
  virtual std::vector<SlotState> slot_states(const Param&, const BucketKey&) const { return {}; }
  virtual void update(const ParamStore& store, Bucket& bucket, const UpdateStep& step) = 0;
};

// The buffers of all state that it names, 0.
void make_state(const Optimizer& optimizer, MomentType moments, ParamStore& store);

inline bool is_second_moment(const std::string& state_name) {
  return state_name == "v";
}

struct AdamWConfig : OptimizerBase {
  static constexpr std::string_view kKind = "adamw";
  static constexpr std::string_view kHelp = "Adam with decoupled weight decay";
  std::vector<double> betas = {0.9, 0.95};
  double eps = 1e-8;
  static void visit(auto& c, auto&& f) {
    OptimizerBase::visit(c, f);
    f("betas", c.betas, "Two decay rates of the moments (0 to below 1).");
    f("eps", c.eps,
      "Epsilon added to the root of the second moment; adafactor: minimum parameter scale.");
  }
  std::unique_ptr<Optimizer> build() const;
};
struct SgdConfig : OptimizerBase {
  static constexpr std::string_view kKind = "sgd";
  static constexpr std::string_view kHelp = "gradient descent with momentum";
  double momentum = 0.9;
  static void visit(auto& c, auto&& f) {
    OptimizerBase::visit(c, f);
    f("momentum", c.momentum, "Momentum.");
  }
  std::unique_ptr<Optimizer> build() const;
};
struct LionConfig : OptimizerBase {
  static constexpr std::string_view kKind = "lion";
  static constexpr std::string_view kHelp = "sign of the momentum";
  std::vector<double> betas = {0.9, 0.99};
  static void visit(auto& c, auto&& f) {
    OptimizerBase::visit(c, f);
    f("betas", c.betas, "Two decay rates of the moments (0 to below 1).");
  }
  std::unique_ptr<Optimizer> build() const;
};
struct MuonConfig : AdamWConfig {
  static constexpr std::string_view kKind = "muon";
  static constexpr std::string_view kHelp =
      "orthogonalized momentum for matrices, adamw for the rest";
  double momentum = 0.95;
  static void visit(auto& c, auto&& f) {
    AdamWConfig::visit(c, f);
    f("momentum", c.momentum, "Momentum.");
  }
  std::unique_ptr<Optimizer> build() const;
};

struct AdafactorConfig : OptimizerBase {
  static constexpr std::string_view kKind = "adafactor";
  static constexpr std::string_view kHelp = "second moments by row and column";
  double beta2_decay = -0.8;
  double eps = 1e-3;
  double clip = 1;
  static void visit(auto& c, auto&& f) {
    OptimizerBase::visit(c, f);
    f("beta2_decay", c.beta2_decay, "adafactor: exponent of the second moment's decay schedule.");
    f("eps", c.eps,
      "Epsilon added to the root of the second moment; adafactor: minimum parameter scale.");
    f("clip", c.clip, "adafactor: clipping threshold of the update's root mean square.");
  }
  std::unique_ptr<Optimizer> build() const;
};
struct SoapConfig : AdamWConfig {
  static constexpr std::string_view kKind = "soap";
  static constexpr std::string_view kHelp = "adamw in the eigenbasis of Shampoo's preconditioner";
  int64_t every = 10;
  int64_t max_side = 10000;
  static void visit(auto& c, auto&& f) {
    AdamWConfig::visit(c, f);
    f("every", c.every, "soap: steps between updates of the eigenbasis.");
    f("max_side", c.max_side, "soap: matrix sides longer than this are not preconditioned.");
  }
  std::unique_ptr<Optimizer> build() const;
};

using OptimizerConfig =
    OneOf<AdamWConfig, SgdConfig, LionConfig, MuonConfig, AdafactorConfig, SoapConfig>;

const OptimizerBase& base_of(const OptimizerConfig& config);
bool needs_whole_matrices(const OptimizerConfig& config);  // to update a part of one
bool needs_whole_state(const OptimizerConfig& config);     // of a matrix, on each of its ranks
// Is each number of the state one element's own: none of a row or of a matrix, nor in a code whose
// scale a block shares?
bool has_state_by_element(const OptimizerConfig& config);
std::vector<std::string> optimizer_faults(const OptimizerConfig& config);
// What group settings say of a parameter. Norms and biases (kNoDecay, one dimension) do not decay.
BucketKey bucket_key(const OptimizerBase& config, const NamedParam& named);
bool is_frozen(const OptimizerBase& config, const std::string& name);

// The orthogonal matrix nearest to each of x [.., R, C], about: five Newton-Schulz steps with
// (3.4445, -4.7750, 2.0315) bring all singular values between about 0.7 and 1.2. In f32.
at::Tensor newton_schulz(const at::Tensor& x);

}  // namespace troupe
