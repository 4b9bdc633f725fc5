#include "troupe/train/optim/param_slice.h"

#include <algorithm>

#include "troupe/core/check.h"
#include "troupe/core/number/moment8.h"
#include "troupe/train/optim/moments8.h"

namespace troupe {

namespace {

// Of what the store has of a slot's gradient, the part in the bucket, or in a window on it.
at::Tensor gradient_in(const ParamStore& store, const Bucket& b, int64_t slot) {
  const at::Tensor& all = store.gradients().of(slot);
  const OwnedRange whole = store.owned(slot);
  const OwnedRange range = owned_range(store.slots()[static_cast<size_t>(slot)], b);
  return range.size == whole.size ? all : all.narrow(0, range.from - whole.from, range.size);
}

}  // namespace

ParamSlice::ParamSlice(const ParamStore& store, const Bucket& b, int64_t slot)
    : grad(gradient_in(store, b, slot)) {
  const ParamStore::Slot& own = store.slots()[static_cast<size_t>(slot)];
  const auto part = [&](const at::Tensor& buffer) { return owned_part(own, b, buffer); };
  for (const at::Tensor& buffer : b.state) state.push_back(part(buffer));
  for (const at::Tensor& buffer : b.scales) {
    scales.push_back(owned_blocks_of(own, b, buffer));
  }
  if (b.in_halves()) {
    copy = part(b.own);
    low = part(b.low);
    return;
  }
  master = part(b.master);
  if (b.has_master()) copy = part(b.own);
}

ParamSlice ParamSlice::narrowed(int64_t from, int64_t size) const {
  ParamSlice out = *this;
  const auto cut = [&](at::Tensor& x) { x = x.narrow(0, from, size); };
  cut(out.grad);
  for (at::Tensor& x : out.state) cut(x);
  for (at::Tensor& x : out.scales) {
    TROUPE_CHECK(from % kMomentBlock == 0, "a piece begins within a block, at", from);
    x = x.narrow(0, from / kMomentBlock, moment_blocks(size));
  }
  if (out.master.defined()) cut(out.master);
  if (out.copy) cut(*out.copy);
  if (out.low) cut(*out.low);
  return out;
}

int64_t at_a_time(int64_t matrix) {
  constexpr int64_t kAtOnce = int64_t{1} << 24;
  return std::max<int64_t>(1, kAtOnce / matrix);
}

void update_masters(const ParamSlice& all, int64_t matrix,
                    const std::function<void(const ParamSlice& piece, int64_t from)>& f) {
  const bool converted = all.low || !all.scales.empty();
  const int64_t n = all.grad.numel();
  const int64_t each = converted ? at_a_time(matrix) * matrix : n;
  for (int64_t from = 0; from < n; from += each) {
    const ParamSlice stored = converted ? all.narrowed(from, std::min(each, n - from)) : all;
    ParamSlice piece = stored;
    if (piece.low) piece.master = joined(*piece.copy, *piece.low);
    for (size_t i = 0; i < piece.scales.size(); ++i) {
      piece.state[i] = moments_of(stored.state[i], stored.scales[i], /*second=*/false);
    }
    f(piece, from);
    for (size_t i = 0; i < piece.scales.size(); ++i) {
      code_moments(piece.state[i], stored.state[i], stored.scales[i], false, /*dithered=*/true);
    }
    if (piece.low) {
      split(piece.master, *piece.copy, *piece.low);
    } else if (piece.copy) {
      piece.copy->copy_(piece.master);
    }
  }
}

}  // namespace troupe
