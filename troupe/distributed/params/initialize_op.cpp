// The draw of initial values (rule I1) from Python: layers there begin as those here do.
//   initialize_(Tensor(a!) value, str name, int seed, float std, bool per_expert) -> ()
// value, contiguous, gets N(0, std): element i is a function of (seed, name, i). With per_expert
// its first dimension numbers experts, each a tensor of its own name (param.h).
#include "troupe/core/check.h"
#include "troupe/distributed/params/param.h"
#include "troupe/ops/support/define.h"

namespace troupe {
namespace {

void initialize_device(const at::Tensor& value, std::string name, int64_t seed, double std,
                       bool per_expert) {
  TROUPE_CHECK(!per_expert || value.dim() > 0,
               "initialize_: value must have a dimension of experts");
  const Init init{.kind = Init::kNormal, .std = std};
  const std::vector<int64_t> sizes = value.sizes().vec();
  Param p = per_expert ? Param::of_experts(sizes, init) : Param::of(sizes, init);
  p.value = value;
  initialize(p, name, static_cast<uint64_t>(seed));
}

void initialize_meta(const at::Tensor& /*value*/, std::string /*name*/, int64_t /*seed*/,
                     double /*std*/, bool /*per_expert*/) {}

}  // namespace
}  // namespace troupe

TORCH_LIBRARY_FRAGMENT(troupe, m) {
  troupe::define(m,
                 "initialize_(Tensor(a!) value, str name, int seed, float std, bool per_expert) "
                 "-> ()",
                 troupe::initialize_device, troupe::initialize_meta);
}
