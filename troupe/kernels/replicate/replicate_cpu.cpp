// The CPU path: rows in parallel; each bin is one fill forward and one sum backward.
#include <algorithm>

#include "troupe/kernels/replicate/bins.h"
#include "troupe/kernels/replicate/replicate.h"

namespace troupe {

using replicate_detail::Bin;
using replicate_detail::bin;

void replicate_cpu(const Replicate& a, const Pool& pool) {
  validate(a);
  replicate_detail::dispatch_word(a.element_bytes, [&]<class Word>() {
    const Word* x = static_cast<const Word*>(a.x);
    Word* out = static_cast<Word*>(a.out);
    pool(a.rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        Word* row = out + i * a.outputs;
        for (int64_t e = 0; e < a.experts; ++e) {
          const Bin b = bin(a.bins, e, a.outputs);
          std::fill(row + b.begin, row + std::max(b.begin, b.end), x[i * a.experts + e]);
        }
        const int64_t filled = replicate_detail::clamped(a.bins[a.experts - 1], a.outputs);
        std::fill(row + filled, row + a.outputs, Word{0});
      }
    });
  });
}

void replicate_backward_cpu(const ReplicateBackward& a, const Pool& pool) {
  validate(a);
  dispatch_float64(a.grad_out.dtype, [&]<class T>() {
    const auto grad = a.grad_out.as<T>();
    const auto out = a.grad_x.as<T>();
    pool(grad.rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        for (int64_t e = 0; e < out.cols; ++e) {
          Wide<T> sum = 0;
          const Bin b = bin(a.bins, e, grad.cols);
          for (int64_t j = b.begin; j < b.end; ++j) sum += static_cast<Wide<T>>(grad(i, j));
          out(i, e) = static_cast<T>(sum);
        }
      }
    });
  });
}

}  // namespace troupe
