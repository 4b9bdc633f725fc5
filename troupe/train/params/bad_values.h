// Which parameters have values or gradients that are not finite.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "troupe/train/params/param_store.h"

namespace troupe {

// The tensor and, where it is per expert, the expert with the first value that is not finite.
struct BadValue {
  std::string name;  // an expert's own name
  int64_t bad = 0, of = 0;
};
// Over the slots in the order given, as far as they are owned here; nothing: all are finite.
std::vector<BadValue> bad_values(const ParamStore& store, at::Tensor Bucket::*buffer);
std::vector<BadValue> bad_gradients(const ParamStore& store);
// In the whole values of one of them, such as its gradient before it is summed over ranks.
std::vector<BadValue> bad_values_of(const NamedParam& named, const at::Tensor& values);

}  // namespace troupe
