// A parameter knows its global shape: the one record behind initialization, gradient reduction,
// optimizer sharding, checkpoint boxes and export. It is our DTensor, and it is all of it.
//
//   Param w1 = Param::of({E, 2, F, D}, {.kind = Init::kNormal, .std = 0.02});
//   for_each_param(model, "", [&](const std::string& name, Param& p) { p.allocate(options); });
//   initialize(w1, "layers.3.moe.experts.w1", seed);
//
// The value is the local box in row-major order, under sizes that its user likes ([E, 2F, D] for
// the box [E, 2, F, D]: gate and up halves are cut alike, each for itself).
//
// Per expert: where `per_expert`, dimension 0 numbers experts, and expert e's part is a tensor of
// its own, named with its global number ("layers.3.moe.experts.17.w1"). `experts` lists the local
// ones. So the draw, checkpoints and export do not know how experts are placed.
//
// In few bits: where `low_bit`, a frozen matrix [.., N, K] is kept packed (ops/low_bit.h) and has no
// `value`. What is drawn or loaded for it comes in pieces of whole rows, which pack() takes one at a
// time: the parameter is never whole in full precision.
//
// Initialization (rules I1, I2): element i of the tensor of global name N is a function of
// (seed, N, i), i the row-major index in the global tensor, drawn in f32 and then cast. Only the
// owned box is drawn, on the CPU, in pieces of at most 16 MiB.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "troupe/ops/low_bit.h"

namespace troupe {

// A value in few bits, of the sizes that are shown.
struct LowBitValue {
  LowBitFormat format;
  LowBit packed = {};  // undefined until allocated
};

enum class Axis { kTensor, kExpert, kExpertTensor, kFullShard };

struct Split {
  int64_t dim;
  Axis axis;
  int64_t repeat = 1;  // so many neighboring ranks of the axis have the same box
};

struct Init {
  enum Kind { kZero, kOne, kNormal, kKaiming, kKaimingUniform, kLogDecay };
  Kind kind = kZero;
  double std = 0;       // kNormal
  double truncate = 0;  // in standard deviations; 0: not truncated. Redrawn, not clamped
  // kKaiming: normal with std sqrt(2 / fan_in); kKaimingUniform: uniform in +-1 / sqrt(fan_in), as
  // torch::nn::Linear; 0: the last dimension. kLogDecay: log u, u uniform in 0.01 to 16 (Mamba's A).
  int64_t fan_in = 0;
  bool same_experts = false;  // all experts start as copies of expert 0
  int64_t repeat = 1;         // upcycling (U1): row r of dimension 0 is drawn as row r / repeat
};

// Which optimizer settings apply. kState is saved and never updated by the optimizer (rule R10).
enum class Group { kMatrix, kNoDecay, kEmbedding, kRouter, kState };

using HeldExperts = std::optional<std::vector<int64_t>>;  // global numbers; absent: all

struct Param {
  at::Tensor value;                  // local; undefined until allocated, and in few bits
  std::vector<int64_t> global = {};  // the whole tensor's sizes
  std::vector<int64_t> offset = {};  // of the local box
  std::vector<int64_t> size = {};    // of the local box
  std::vector<int64_t> shown = {};   // the value's sizes; their product is that of `size`
  std::vector<Split> splits = {};
  std::vector<int64_t> experts = {};  // global numbers of the local experts, if per_expert
  bool per_expert = false;
  Init init = {};
  Group group = Group::kMatrix;
  bool frozen = false;
  bool fp32 = false;  // stays f32 in a model of another type
  std::optional<LowBitValue> low_bit = {};

  static Param of(std::vector<int64_t> global, Init init, Group group = Group::kMatrix);
  // [E, ...]: all experts, or those listed, of which there may be none.
  static Param of_experts(std::vector<int64_t> global, Init init, const HeldExperts& held = {});

  Param&& showing(std::vector<int64_t> sizes) &&;  // the value's sizes
  Param&& as_state() &&;                           // f32, frozen, saved: kState
  // Frozen, and in few bits where a format is given; before the value is made.
  void keep_in(const std::optional<LowBitFormat>& format);
  // Keeps this part only, which may be empty; `repeat` neighbors on the axis keep the same.
  void take_box(int64_t dim, int64_t from, int64_t length, Axis axis, int64_t repeat = 1);

  int64_t numel() const;  // of the local box
  // How many neighbors of `ranks` on the tensor axis have this box: all where it is not cut.
  int64_t tensor_repeat(int64_t ranks) const;
  bool trainable() const { return !frozen && group != Group::kState; }
  // Makes the value, uninitialized, with a gradient where trainable; in few bits of zeros.
  void allocate(const at::TensorOptions& options);
  bool allocated() const {
    return value.defined() || (low_bit && low_bit->packed.values.defined());
  }
  // In few bits: elements from, from + 1, .. become these numbers; whole rows.
  void pack(int64_t from, const at::Tensor& numbers);
  // The tensors that the local value consists of: itself, or what it is packed into.
  std::vector<at::Tensor> stored() const;
};

// "layers.3.moe.experts.w1" and 17 give "layers.3.moe.experts.17.w1".
std::string expert_name(std::string_view name, int64_t expert);

// Allocates where needed and fills the local box.
void initialize(Param& p, const std::string& name, uint64_t seed);

namespace detail {
inline std::string dotted(const std::string& prefix, std::string_view name) {
  return prefix.empty() ? std::string(name) : prefix + '.' + std::string(name);
}
}  // namespace detail

template <class M, class F>
void for_each_param(M& module, const std::string& prefix, F&& f);

// Over visit() alone: what the `for_each` of a module behind an interface consists of.
template <class M, class F>
void for_each_member_param(M& module, const std::string& prefix, F&& f) {
  M::visit(module, [&](std::string_view name, auto& member) {
    for_each_param(member, detail::dotted(prefix, name), f);
  });
}

// Calls f(name, param) over a module's visit(), depth first, in the order of its fields. A module
// behind an interface has `for_each(prefix, f)`; optional and null parts that are absent are
// skipped.
template <class M, class F>
void for_each_param(M& module, const std::string& prefix, F&& f) {
  if constexpr (std::is_same_v<std::remove_const_t<M>, Param>) {
    f(prefix, module);
  } else if constexpr (requires { module.for_each(prefix, f); }) {
    module.for_each(prefix, f);
  } else if constexpr (requires { M::visit(module, [](std::string_view, auto&) {}); }) {
    for_each_member_param(module, prefix, f);
  } else if constexpr (requires { module.size(); }) {
    for (size_t i = 0; i < module.size(); ++i) {
      for_each_param(module[i], detail::dotted(prefix, std::to_string(i)), f);
    }
  } else {
    if (module) for_each_param(*module, prefix, f);  // optional, unique_ptr
  }
}

}  // namespace troupe
