#include "troupe/kernels/index_check/index_check.h"

#include "troupe/core/check.h"
#include "troupe/kernels/index_check/index_rule.h"

namespace troupe {

void validate(const IndexCheck& a) {
  TROUPE_CHECK(0 <= a.count && a.count <= IndexCheck::kMost, "spans", a.count);
  for (int s = 0; s < a.count; ++s) {
    TROUPE_CHECK(a.spans[s].size >= 0 && (a.spans[s].data != nullptr || a.spans[s].size == 0),
                 a.spans[s].name, "is missing:", a.spans[s].size, "numbers");
  }
}

int64_t bytes_moved(const IndexCheck& a) {
  int64_t bytes = 0;
  for (int s = 0; s < a.count; ++s) {
    const int64_t each = (a.spans[s].wide ? 8 : 4) + (a.spans[s].offset != nullptr ? 4 : 0);
    bytes += each * a.spans[s].size;
  }
  return bytes;
}

void index_check_ref(const IndexCheck& a) {
  validate(a);
  for (int s = 0; s < a.count; ++s) {
    a.faults[s] = 0;
    for (int64_t i = 0; i < a.spans[s].size; ++i) {
      a.faults[s] += index_detail::at_fault(a.spans[s], i) ? 1 : 0;
    }
  }
}

}  // namespace troupe
