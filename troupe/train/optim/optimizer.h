// Optimizers over the buckets of a ParamStore, element by element except Muon. With g the clipped
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
// moments in f64 (adamw, sgd, lion). A gradient of zeros, as of an expert
// without tokens, is one like any other (rule X9).
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/core/config/one_of.h"
#include "troupe/train/optim/adafactor.h"
#include "troupe/train/optim/optimizer_base.h"
#include "troupe/train/optim/soap.h"
#include "troupe/train/params/param_store.h"

namespace troupe {

at::ScalarType scalar_type(MomentType type);      // uint8 for kInt8: codes
double bytes_of(MomentType type);                 // of one, its part of a scale included
Param state_like(const Param& p, Extent extent);  // its box, without a value

// The buffers of all state that it names, 0.
void make_state(const Optimizer& optimizer, MomentType moments, ParamStore& store);

inline bool is_second_moment(const std::string& state_name) {
  return state_name == "v";
}

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
  void add_faults(std::vector<std::string>& out) const;
};
struct MuonConfig : AdamWConfig {
  static constexpr std::string_view kKind = "muon";
  static constexpr std::string_view kHelp =
      "orthogonalized momentum for matrices, adamw for the rest";
  static constexpr bool kWholeMatrices = true, kInt8 = false;
  double momentum = 0.95;
  static void visit(auto& c, auto&& f) {
    AdamWConfig::visit(c, f);
    f("momentum", c.momentum, "Momentum.");
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
// Can its updates be captured in a CUDA graph: do its kernels read the step's numbers on the device?
bool update_in_graph(const OptimizerConfig& config);
std::vector<std::string> optimizer_faults(const OptimizerConfig& config);
// What group settings say of a parameter. Norms and biases (kNoDecay, one dimension) do not decay.
BucketKey bucket_key(const OptimizerBase& config, const NamedParam& named);
bool is_frozen(const OptimizerBase& config, const std::string& name);

// The orthogonal matrix nearest to each of x [.., R, C], about: five Newton-Schulz steps with
// (3.4445, -4.7750, 2.0315) bring all singular values between about 0.7 and 1.2. In f32.
at::Tensor newton_schulz(const at::Tensor& x);

}  // namespace troupe
