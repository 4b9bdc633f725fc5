#include "troupe/ops/moe_ffn/fp8_weights.h"

#include "troupe/core/check.h"

namespace troupe {

Fp8Recipe fp8_recipe_of(const std::string& name, const char* op) {
  Fp8Recipe out = Fp8Recipe::kRow;
  TROUPE_CHECK(from_text(name, out), op, "has no recipe",
               name + ": there are row, tensor and block");
  TROUPE_CHECK(out != Fp8Recipe::kDelayed, op, "has no recipe delayed, which needs a history of",
               "earlier steps that train.fp8 keeps: there are row, tensor and block");
  return out;
}

const Fp8Weight& Fp8Weights::get(Which which, const at::Tensor& w,
                                 const std::function<Fp8Weight()>& round) {
  Entry& e = entries_.at(which);
  const int64_t version = w.is_inference() ? 0 : static_cast<int64_t>(w._version());
  const bool same = e.source.defined() && e.source.const_data_ptr() == w.const_data_ptr() &&
                    e.source.sizes() == w.sizes() && e.version == version;
  if (!same) e = {w.detach(), version, round()};
  return e.weight;
}

}  // namespace troupe
