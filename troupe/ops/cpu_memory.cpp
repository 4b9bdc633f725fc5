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
  constexpr size_t kPage = size_t{1} << 21;
  if (out.is_cpu() && out.nbytes() >= 2 * kPage) {
    char* start = static_cast<char*>(out.data_ptr());
    const size_t skip = -reinterpret_cast<uintptr_t>(start) % kPage;  // to the first whole page
    // Advice: where it is refused the tensor is as good, only slower to touch.
    (void)madvise(start + skip, (out.nbytes() - skip) / kPage * kPage, MADV_HUGEPAGE);
  }
#endif
  return out;
}

}  // namespace troupe
