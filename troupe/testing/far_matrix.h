// A bf16 matrix whose rows are so far apart that the last begins past element 2^31 (rule E9). Only
// the pages that are touched take memory. For CPU paths.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <memory>

#include "troupe/core/check.h"
#include "troupe/core/device/view.h"

namespace troupe::testing {

class FarMatrix {
 public:
  FarMatrix(int64_t rows, int64_t cols)
      : rows_(rows), cols_(cols), ld_((int64_t{1} << 31) / (rows - 1) + cols), memory_(reserve()) {}

  MutRef mut() { return {memory_.get(), Dtype::kBF16, rows_, cols_, ld_}; }
  MatRef view() { return mut().read(); }

 private:
  struct Unmap {
    size_t bytes;
    void operator()(void* p) const { (void)munmap(p, bytes); }
  };
  using Memory = std::unique_ptr<void, Unmap>;

  Memory reserve() const {
    const auto bytes = static_cast<size_t>(rows_ * ld_ * size_bytes(Dtype::kBF16));
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TROUPE_CHECK(p != MAP_FAILED, "cannot reserve", bytes, "bytes of address space");
    return Memory(p, Unmap{bytes});
  }

  int64_t rows_, cols_, ld_;
  Memory memory_;
};

// Copies every element; the matrices have the same sizes and are bf16.
inline void copy_into(MutRef to, MatRef from) {
  for (int64_t r = 0; r < to.rows; ++r) {
    for (int64_t c = 0; c < to.cols; ++c) to.as<BF16>()(r, c) = from.as<BF16>()(r, c);
  }
}

}  // namespace troupe::testing
