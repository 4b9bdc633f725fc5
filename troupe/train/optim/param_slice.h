// A parameter's part of its bucket's buffers, as optimizers change it.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "troupe/ops/support/view.h"
#include "troupe/train/params/param_store.h"

namespace troupe {

// All flat and of one size, except for scales. `bucket`: of the store, or a window on one, which has
// a part of its own range (train/optim/state_stream.h).
struct ParamSlice {
  ParamSlice(const ParamStore& store, const Bucket& bucket, int64_t slot);

  at::Tensor scaled_grad(const at::Tensor& scale) const { return grad.to(wide_type(grad)) * scale; }
  ParamSlice narrowed(int64_t from, int64_t size) const;

  at::Tensor master = {};  // f32 or f64; none where it is in halves
  at::Tensor grad;
  std::vector<at::Tensor> state = {}, scales = {};  // scales: of states in codes
  std::optional<at::Tensor> copy = {};              // the model's, of a smaller type
  std::optional<at::Tensor> low = {};               // with `copy` the master
};

// How many matrices of `matrix` elements are worked on at a time, where not all are: 64 MiB of f32.
int64_t at_a_time(int64_t matrix);

// f(piece, from) for elements from, from + 1, .. with master and state in f32 (or bf16 moments),
// which f changes; the model's values follow. What memory has in another form (masters in halves,
// first moments in codes) is converted and stored again, a few matrices of `matrix` elements at a
// time, and f called for each of these.
void update_masters(const ParamSlice& all, int64_t matrix,
                    const std::function<void(const ParamSlice& piece, int64_t from)>& f);

}  // namespace troupe
