#include <algorithm>
#include <atomic>
#include <vector>

#include "troupe/kernels/rank_copies/rank_copies.h"
#include "troupe/kernels/rank_copies/rank_copies_rule.h"

namespace troupe {
namespace {

constexpr int64_t kGrain = 512;  // tokens or copies

}  // namespace

void list_copies_cpu(const ListCopies& a, const Pool& pool) {
  validate(a);
  for (int64_t w = 0; w < a.targets; ++w) {
    a.counts[3 * w] = a.counts[3 * w + 1] = 0;
    a.counts[3 * w + 2] = static_cast<int32_t>(a.capacity);
  }
  pool(a.tokens, kGrain, [&](int64_t begin, int64_t end) {
    std::vector<int32_t> found(static_cast<size_t>(2 * a.targets));  // copies, rows
    for (int64_t t = begin; t < end; ++t) {
      const int copies =
          list_token(a, t, [&](int32_t w) { ++found[static_cast<size_t>(2 * w + 1)]; });
      const int32_t* const list = a.copy_target + t * a.width();
      for (int i = 0; i < copies; ++i) ++found[static_cast<size_t>(2 * list[i])];
    }
    for (int64_t w = 0; w < a.targets; ++w) {
      for (int64_t i = 0; i < 2; ++i) {
        const int32_t n = found[static_cast<size_t>(2 * w + i)];
        if (n > 0) std::atomic_ref(a.counts[3 * w + i]).fetch_add(n);
      }
    }
  });
}

void tell_copies_cpu(const TellCopies& a, const Pool& pool) {
  validate(a);
  const int64_t columns = a.columns();
  pool(a.copies, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      const CopyOf copy = copy_of(a, c);
      a.token[c] = std::max<int64_t>(0, copy.token);
      for (int64_t j = 0; j < columns; ++j) a.told[c * columns + j] = told_word(a, copy, j);
    }
  });
}

}  // namespace troupe
