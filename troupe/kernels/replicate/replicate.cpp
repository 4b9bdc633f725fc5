#include "troupe/kernels/replicate/replicate.h"

#include <algorithm>

#include "troupe/kernels/replicate/bins.h"

namespace troupe {

using replicate_detail::Bin;
using replicate_detail::bin;

void validate(const Replicate& a) {
  TROUPE_CHECK(a.element_bytes == 2 || a.element_bytes == 4 || a.element_bytes == 8,
               "element_bytes", a.element_bytes);
  TROUPE_CHECK(a.rows >= 0 && a.experts >= 1 && a.outputs >= 0, "rows", a.rows, "experts",
               a.experts, "outputs", a.outputs);
  TROUPE_CHECK((a.x != nullptr && a.bins != nullptr) || a.rows == 0, "x, bins");
  TROUPE_CHECK(a.out != nullptr || a.rows * a.outputs == 0, "out");
}

void validate(const ReplicateBackward& a) {
  TROUPE_CHECK(a.grad_x.rows == a.grad_out.rows && a.grad_x.cols >= 1, "grad_x is", a.grad_x.rows,
               "x", a.grad_x.cols, "for", a.grad_out.rows, "rows");
  TROUPE_CHECK(a.grad_x.dtype == a.grad_out.dtype, "grad_out is", name(a.grad_out.dtype), "grad_x",
               name(a.grad_x.dtype));
  TROUPE_CHECK(a.bins != nullptr || a.grad_x.rows == 0, "bins");
}

int64_t bytes_moved(const Replicate& a) {
  return a.rows * (a.experts + a.outputs) * a.element_bytes + a.experts * 4;
}

void replicate_ref(const Replicate& a) {
  validate(a);
  replicate_detail::dispatch_word(a.element_bytes, [&]<class Word>() {
    const Word* x = static_cast<const Word*>(a.x);
    Word* out = static_cast<Word*>(a.out);
    for (int64_t i = 0; i < a.rows; ++i) {
      std::fill_n(out + i * a.outputs, a.outputs, Word{0});
      for (int64_t e = 0; e < a.experts; ++e) {
        const Bin b = bin(a.bins, e, a.outputs);
        for (int64_t j = b.begin; j < b.end; ++j) out[i * a.outputs + j] = x[i * a.experts + e];
      }
    }
  });
}

void replicate_backward_ref(const ReplicateBackward& a) {
  validate(a);
  dispatch_float64(a.grad_out.dtype, [&]<class T>() {
    const auto grad = a.grad_out.as<T>();
    const auto out = a.grad_x.as<T>();
    for (int64_t i = 0; i < grad.rows; ++i) {
      for (int64_t e = 0; e < out.cols; ++e) {
        double sum = 0;
        const Bin b = bin(a.bins, e, grad.cols);
        for (int64_t j = b.begin; j < b.end; ++j) sum += static_cast<Wide<T>>(grad(i, j));
        out(i, e) = static_cast<T>(static_cast<Wide<T>>(sum));
      }
    }
  });
}

}  // namespace troupe
