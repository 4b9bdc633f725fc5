// The CPU path: rows are shared out over the pool, a row is one vector loop (activation_row.h).
#include <algorithm>

#include "troupe/kernels/activation/activation.h"
#include "troupe/kernels/activation/activation_row.h"

namespace troupe {
namespace {

constexpr int64_t kUnitsPerRange = 16384;  // About 20 us of work.

template <class Args>
int64_t rows_in_use(const Args& a) {
  if (a.expert_offset == nullptr) return a.h.rows;
  const int64_t rows = a.expert_offset[a.num_experts];
  TROUPE_CHECK(0 <= rows && rows <= a.h.rows, "expert_offset ends at row", rows, "of", a.h.rows);
  return rows;
}

int64_t rows_per_range(int64_t num_units) {
  return std::max<int64_t>(1, kUnitsPerRange / std::max<int64_t>(1, num_units));
}

template <class W>
GluLimits<W> limits_of(const ActivationKind& kind) {
  return {static_cast<W>(kind.clamp), static_cast<W>(kind.offset)};
}

// f.operator()<T, Functor, kGated>(): what all the loops are templates of.
template <class Body>
void dispatch(Dtype dtype, Act act, bool gated, Body&& body) {
  dispatch_float64(dtype, [&]<class T>() {
    dispatch_act(act, [&]<class Functor>() {
      if (gated) return body.template operator()<T, Functor, true>();
      body.template operator()<T, Functor, false>();
    });
  });
}

}  // namespace

void activation_cpu(const Activation& a, const Pool& pool) {
  validate(a);
  const int64_t rows = rows_in_use(a), F = a.u.cols;
  dispatch(a.h.dtype, a.kind.act, a.h.cols != F, [&]<class T, class Functor, bool kGated>() {
    const auto h = a.h.as<T>();
    const auto u = a.u.as<T>();
    const auto* score = static_cast<const Wide<T>*>(a.score.data);
    const auto limits = limits_of<Wide<T>>(a.kind);
    pool(rows, rows_per_range(F), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const Wide<T> s = score == nullptr ? 1 : score[r * a.score.ld];
        activation_row<Functor, kGated>(h.row(r), u.row(r), F, limits, s);
      }
    });
  });
}

void activation_backward_cpu(const ActivationBackward& a, const Pool& pool) {
  validate(a);
  const int64_t rows = rows_in_use(a), F = a.grad_u.cols;
  dispatch(a.h.dtype, a.kind.act, a.h.cols != F, [&]<class T, class Functor, bool kGated>() {
    using W = Wide<T>;
    const auto h = a.h.as<T>(), grad_u = a.grad_u.as<T>();
    const auto grad_h = a.grad_h.as<T>();
    const auto* score = static_cast<const W*>(a.score.data);
    auto* grad_score = static_cast<W*>(a.grad_score.data);
    auto* u = static_cast<T*>(a.u.data);
    const auto limits = limits_of<W>(a.kind);
    pool(rows, rows_per_range(F), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const W s = score == nullptr ? 1 : score[r * a.score.ld];
        const ActivationRowGrad<T> row{h.row(r), grad_u.row(r), grad_h.row(r),
                                       u == nullptr ? nullptr : u + r * a.u.ld};
        const W dot = u == nullptr
                          ? activation_backward_row<Functor, kGated, false>(row, F, limits, s)
                          : activation_backward_row<Functor, kGated, true>(row, F, limits, s);
        if (grad_score != nullptr) grad_score[r * a.grad_score.ld] = dot;
      }
    });
  });
}

}  // namespace troupe
