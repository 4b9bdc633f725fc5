// What a loss of preference pairs is made of (preference_loss.h has the formulas).
#pragma once

#include <array>

#include "troupe/core/text/text.h"

namespace troupe {

enum class PreferenceForm { kSigmoid, kIpo, kHinge };
constexpr auto names_of(PreferenceForm) {
  return std::array{Named{"sigmoid", PreferenceForm::kSigmoid}, Named{"ipo", PreferenceForm::kIpo},
                    Named{"hinge", PreferenceForm::kHinge}};
}

struct PreferenceOptions {
  double beta = 0.1;
  double label_smoothing = 0;
  PreferenceForm loss = PreferenceForm::kSigmoid;

  static void visit(auto& c, auto&& f) {
    f("beta", c.beta,
      "Weight of the difference from the reference: the higher, the closer the model stays to it.");
    f("label_smoothing", c.label_smoothing,
      "Probability that a pair's labels are the wrong way round, 0 to below 0.5; sigmoid only.");
    f("loss", c.loss, "sigmoid (DPO), ipo or hinge (SLiC).");
  }
  bool operator==(const PreferenceOptions&) const = default;
};

}  // namespace troupe
