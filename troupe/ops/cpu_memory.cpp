#include "troupe/ops/cpu_memory.h"

#include <ATen/ops/empty.h>

#ifdef __linux__
#include <sys/mman.h>
#endif

#include <cstdint>

namespace troupe {

at::Tensor empty_large(at::IntArrayRef sizes, const at::TensorOptions& options) {
  at::Tensor out = at::empty(sizes, options);
#ifdef __linux__
  constexpr uintptr_t kPage = uintptr_t{1} << 21;
  if (out.is_cpu() && out.nbytes() >= 2 * kPage) {
    const auto start = reinterpret_cast<uintptr_t>(out.data_ptr());
    const uintptr_t first = (start + kPage - 1) & ~(kPage - 1);
    const uintptr_t last = (start + out.nbytes()) & ~(kPage - 1);
    // Advice: where it is refused the tensor is as good, only slower to touch.
    if (first < last) (void)madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
  }
#endif
  return out;
}

}  // namespace troupe
