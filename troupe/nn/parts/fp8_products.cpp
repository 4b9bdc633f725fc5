#include "troupe/nn/parts/fp8_products.h"

#include "troupe/core/check.h"

namespace troupe {

void Fp8Products::use(const Fp8Options& fp8, int64_t products) {
  options_ = fp8;
  if (fp8.recipe != Fp8Recipe::kDelayed) return;
  TROUPE_CHECK(fp8.history_steps >= 1, "recipe delayed with a history of", fp8.history_steps,
               "steps");
  options_->history = std::make_shared<Fp8History>();
  history_ = Param::of({2 * products, fp8.history_steps}, {.kind = Init::kZero}).as_state();
}

const std::optional<Fp8Options>& Fp8Products::options() const {
  if (history_) options_->history->use(history_->value);
  return options_;
}

}  // namespace troupe
