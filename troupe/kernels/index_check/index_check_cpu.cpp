// The CPU path: one pass over each span; the number at fault is looked for where there is one.
#include <atomic>
#include <string>

#include "troupe/core/check.h"
#include "troupe/kernels/index_check/index_check.h"
#include "troupe/kernels/index_check/index_rule.h"

namespace troupe {
namespace {

constexpr int64_t kGrain = 1 << 14;

int32_t faults_of(const IndexSpan& s, int64_t begin, int64_t end) {
  int32_t faults = 0;
  for (int64_t i = begin; i < end; ++i) faults += index_detail::at_fault(s, i) ? 1 : 0;
  return faults;
}

[[noreturn]] void refuse(const IndexSpan& s) {
  int64_t i = 0;
  while (!index_detail::at_fault(s, i)) ++i;
  const int64_t v = index_detail::number(s, i);
  const bool inside = s.low <= v && v <= s.high;
  if (inside && s.rising) {
    const int64_t before = i == 0 ? s.low : index_detail::number(s, i - 1);
    if (i == 0 || v < before) {
      fail(Code::kBrokenContract, s.name, i == 0 ? "must begin at" : "must not fall below",
           std::to_string(before) + "; element", i, "is", v);
    }
  }
  if (inside) {
    fail(Code::kBrokenContract, s.name, "must be at most the rows of its segment; element", i, "is",
         v, "of", int64_t{s.offset[i + 1]} - s.offset[i], "rows");
  }
  fail(Code::kBrokenContract, s.name, "must lie in",
       std::to_string(s.low) + ".." + std::to_string(s.high) + ';', "element", i, "is", v);
}

}  // namespace

void index_check_cpu(const IndexCheck& a, const Pool& pool) {
  validate(a);
  for (int s = 0; s < a.count; ++s) {
    const IndexSpan& span = a.spans[s];
    std::atomic<int32_t> faults = 0;
    pool(span.size, kGrain,
         [&](int64_t begin, int64_t end) { faults += faults_of(span, begin, end); });
    if (a.faults != nullptr) {
      a.faults[s] = faults;
    } else if (faults > 0) {
      refuse(span);
    }
  }
}

}  // namespace troupe
