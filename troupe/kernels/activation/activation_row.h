// One row of the activation, forward and backward, as loops that the compiler turns into vector
// instructions. The functor is a template argument: F may be any type with `F()(g)` -> ValueSlope,
// listed in functions.h or not.
#pragma once

#include "troupe/core/number/dtype.h"
#include "troupe/kernels/activation/functions.h"

namespace troupe {

// u[f] = score u0[f] for the F units of one row of h.
template <class Functor, bool kGated, class T>
inline void activation_row(const T* h, T* u, int64_t F, GluLimits<Wide<T>> limits, Wide<T> score) {
  using W = Wide<T>;
#pragma omp simd
  for (int64_t f = 0; f < F; ++f) {
    const W g = static_cast<W>(h[f]);
    if constexpr (kGated) {
      const W v = static_cast<W>(h[F + f]);
      put(u[f], score * glu_unit<Functor>(g, v, limits).value);
    } else {
      put(u[f], score * mlp_unit<Functor>(g, limits.clamp).value);
    }
  }
}

template <class T>
struct ActivationRowGrad {
  const T* h;
  const T* grad_u;
  T* grad_h;
  T* u;  // or null
};

// Returns sum_f u0[f] grad_u[f]; u as activation_row writes it.
template <class Functor, bool kGated, bool kWriteU, class T>
inline Wide<T> activation_backward_row(ActivationRowGrad<T> row, int64_t F,
                                       GluLimits<Wide<T>> limits, Wide<T> score) {
  using W = Wide<T>;
  const auto [h, grad_u, grad_h, u] = row;
  W dot = 0;
#pragma omp simd reduction(+ : dot)
  for (int64_t f = 0; f < F; ++f) {
    const W g = static_cast<W>(h[f]), grad = static_cast<W>(grad_u[f]);
    W value;
    if constexpr (kGated) {
      const auto unit = glu_unit<Functor>(g, static_cast<W>(h[F + f]), limits);
      put(grad_h[f], score * grad * unit.slope_g);
      put(grad_h[F + f], score * grad * unit.slope_v);
      value = unit.value;
    } else {
      const auto unit = mlp_unit<Functor>(g, limits.clamp);
      put(grad_h[f], score * grad * unit.slope);
      value = unit.value;
    }
    if constexpr (kWriteU) put(u[f], score * value);
    dot += value * grad;
  }
  return dot;
}

}  // namespace troupe
