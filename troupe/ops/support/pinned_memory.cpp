#include "troupe/ops/support/pinned_memory.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "troupe/core/check.h"
#include "troupe/ops/support/cuda_plugin.h"

namespace troupe {
namespace {

template <class F>
F plugin_function(const char* name) {
  return reinterpret_cast<F>(cuda_plugin_symbol(name));
}

// Locked pages, all bytes 0.
class PinnedPages {
 public:
  explicit PinnedPages(size_t bytes)
      : bytes_(bytes), unpin_(plugin_function<UnpinHostMemory>(kUnpinHostMemory)) {
    void* const pages =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) refuse(std::strerror(errno));
    const char* const why = plugin_function<PinHostMemory>(kPinHostMemory)(pages, bytes);
    if (why != nullptr) {
      ::munmap(pages, bytes);
      refuse(why);
    }
    begin_ = pages;
  }
  ~PinnedPages() {
    unpin_(begin_);
    ::munmap(begin_, bytes_);
  }
  PinnedPages(const PinnedPages&) = delete;
  PinnedPages& operator=(const PinnedPages&) = delete;

  void* begin() const { return begin_; }

 private:
  [[noreturn]] void refuse(const char* why) const {
    fail(Code::kTooLarge, "host memory", "cannot be locked,", bytes_, "bytes more of it:", why,
         "- other processes may hold it, or a container limit it: `troupe doctor` says what is "
         "free");
  }

  size_t bytes_;
  UnpinHostMemory unpin_;
  void* begin_ = nullptr;
};

}  // namespace

at::Tensor pinned_zeros(int64_t n, at::ScalarType type, const c10::Device& device) {
  const auto options = at::TensorOptions(type).device(c10::kCPU);
  if (device.is_cpu() || n == 0) return at::zeros({n}, options);
  const auto pages =
      std::make_shared<const PinnedPages>(static_cast<size_t>(n) * c10::elementSize(type));
  return at::from_blob(
      pages->begin(), {n}, [pages](void*) {}, options);
}

}  // namespace troupe
