#include "troupe/train/params/bad_values.h"

#include <ATen/ops/isfinite.h>

#include <algorithm>
#include <functional>

namespace troupe {
namespace {

int64_t bad_count(const at::Tensor& x) {
  return x.numel() - at::isfinite(x).sum().item<int64_t>();
}

// Appends the values that are not finite; `values` are those of `range`.
void add_bad(std::vector<BadValue>& out, const NamedParam& named, const at::Tensor& values,
             const OwnedRange& range) {
  const auto& [name, param, unit] = named;
  if (!values.defined() || values.numel() == 0 || bad_count(values) == 0) return;
  if (!param->per_expert) {
    out.push_back({name, bad_count(values), values.numel()});
    return;
  }
  const int64_t each = param->numel() / static_cast<int64_t>(param->experts.size());
  for (int64_t at = range.from; at < range.from + range.size;) {
    const int64_t end = std::min((at / each + 1) * each, range.from + range.size);
    const int64_t bad = bad_count(values.narrow(0, at - range.from, end - at));
    const int64_t expert = param->experts[static_cast<size_t>(at / each)];
    if (bad > 0) out.push_back({expert_name(name, expert), bad, end - at});
    at = end;
  }
}

std::vector<BadValue> bad_in(const ParamStore& store,
                             const std::function<at::Tensor(int64_t slot)>& values_of) {
  std::vector<BadValue> out;
  for (int64_t s = 0; s < static_cast<int64_t>(store.slots().size()); ++s) {
    add_bad(out, store.slots()[static_cast<size_t>(s)].named, values_of(s), store.owned(s));
  }
  return out;
}

}  // namespace

std::vector<BadValue> bad_values_of(const NamedParam& named, const at::Tensor& values) {
  std::vector<BadValue> out;
  add_bad(out, named, values.reshape(-1), {.from = 0, .size = values.numel()});
  return out;
}

std::vector<BadValue> bad_values(const ParamStore& store, at::Tensor Bucket::*buffer) {
  return bad_in(store, [&](int64_t slot) {
    const int64_t bucket = store.slots()[static_cast<size_t>(slot)].bucket;
    return store.part(slot, store.buckets()[static_cast<size_t>(bucket)].*buffer);
  });
}

std::vector<BadValue> bad_gradients(const ParamStore& store) {
  return bad_in(store, [&](int64_t slot) { return store.gradients().of(slot); });
}

}  // namespace troupe
