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
    std::vector<int32_t> copies(static_cast<size_t>(a.targets)), rows(copies.size());
    for (int64_t t = begin; t < end; ++t) {
      const int length = list_token(a, t, [&](int32_t w) { ++rows[static_cast<size_t>(w)]; });
      const int32_t* const list = a.copy_target + t * a.width();
      for (int i = 0; i < length; ++i) ++copies[static_cast<size_t>(list[i])];
    }
    for (size_t w = 0; w < copies.size(); ++w) {
      if (rows[w] == 0) continue;
      std::atomic_ref(a.counts[3 * w]).fetch_add(copies[w]);
      std::atomic_ref(a.counts[3 * w + 1]).fetch_add(rows[w]);
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
      for (int64_t j = 0; j < columns; ++j) a.message[c * columns + j] = message_word(a, copy, j);
    }
  });
}

}  // namespace troupe
