// Adafactor (Shazeer and Stern, 2018), as torch.optim.Adafactor has it: second moments of a matrix
// are the product of one number a row and one a column, and a step is a part of the matrix's size.
// With g the gradient, w = step^beta2_decay, e = 2^-23, all means over one matrix [R, C]:
//
//   rate   = min(lr, 1 / sqrt(step)) max(eps, rms(p))
//   row    = row + w (mean over columns of g^2 - row);  column likewise over rows
//   V      = row column / max(mean(row), e)             [R, C]
//   u      = g / sqrt(max(V, e^2))
//   p      = (1 - lr weight_decay) p - rate u / max(1, rms(u) / clip)
//
// A parameter of one dimension keeps V itself: V = V + w (g^2 - V).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/train/optim/optimizer_base.h"

namespace troupe {

struct AdafactorStep {
  int64_t step = 1;  // from 1
  double lr = 0;
  double weight_decay = 0;
  double beta2_decay = -0.8;
  double eps = 1e-3;
  double clip = 1;
};

// N matrices, each on its own: p and g [N, R, C], row [N, R], column [N, C], all f32.
void adafactor_matrices(const at::Tensor& p, const at::Tensor& g, const at::Tensor& row,
                        const at::Tensor& column, const AdafactorStep& s);
// N vectors likewise: p and g [N, 1, n], variance [N, n].
void adafactor_vectors(const at::Tensor& p, const at::Tensor& g, const at::Tensor& variance,
                       const AdafactorStep& s);

struct AdafactorConfig : OptimizerBase {
  static constexpr std::string_view kKind = "adafactor";
  static constexpr std::string_view kHelp = "second moments by row and column";
  static constexpr bool kWholeState = true;
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
  void add_faults(std::vector<std::string>& out) const;
};

}  // namespace troupe
