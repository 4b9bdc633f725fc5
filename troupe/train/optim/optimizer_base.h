// What every optimizer is made of; optimizer.h lists them. A config has kKind, kHelp, visit() and
// build(), and where they apply:
//   static constexpr bool kWholeMatrices = true;  // to update a part of a matrix it needs all of it
//   static constexpr bool kWholeState = true;     // on each of a matrix' ranks
//   static constexpr bool kInt8 = false;          // no moments in 8 bits
//   void add_faults(std::vector<std::string>& out) const;  // of its own fields
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/train/optim/lr_schedule.h"
#include "troupe/train/params/param_store.h"

namespace troupe {

enum class MomentType { kF32, kBF16, kInt8 };
constexpr auto names_of(MomentType) {
  return std::array{Named{"f32", MomentType::kF32}, Named{"bf16", MomentType::kBF16},
                    Named{"int8", MomentType::kInt8}};
}
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
  // Optimizer::constants(), f32 on the device, in place of step, lr and weight_decay; undefined: by
  // these.
  at::Tensor constants = {};
};

// State of another size than its parameter's, f32: a number for each row or column of a parameter's
// matrices (the last two dimensions of its box), or for two of either; or for each element.
enum class Extent { kEach, kRows, kColumns, kRowsRows, kColumnsColumns };
struct SlotState {
  std::string name;
  Extent extent;
};
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // Names of the state that it keeps for a bucket: "m", "v". All begin at 0.
  virtual std::vector<std::string> state_names(const Bucket& bucket) const = 0;
  // More state of a parameter, in ParamStore::Slot::state. All begin at 0.
  virtual std::vector<SlotState> slot_states(const Param&, const BucketKey&) const { return {}; }
  // Is each element's update its own, so that a bucket may be updated in pieces that end anywhere?
  virtual bool by_element(const Bucket&) const { return true; }
  // `bucket`: of the store, or a window on its own range, which begins and ends between parameters
  // where the update is not by element.
  virtual void update(const ParamStore& store, Bucket& bucket, const UpdateStep& step) = 0;
  // What of a step its kernels can read on the device, equally many numbers for each step; none
  // where update_in_graph() is false.
  virtual std::vector<float> constants(const UpdateStep&) const { return {}; }
};

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
  void add_faults(std::vector<std::string>& out) const;
};

}  // namespace troupe
