// The CPU path: the digits one after the other, in one thread; a pass reads and writes each item
// once.
#include <array>
#include <vector>

#include "troupe/kernels/radix_sort/passes.h"
#include "troupe/kernels/radix_sort/radix_sort.h"

namespace troupe {
namespace {

// Item i of the first pass is (x[i], i); `indices` is null there.
template <class T>
struct Items {
  T* values;
  int32_t* indices;
};

template <class T>
void sort_pass(const T* values, const int32_t* indices, int64_t n, radix::Digit<T> digit,
               const Items<T>& to) {
  std::array<int32_t, radix::kDigits> next{};
  for (int64_t i = 0; i < n; ++i) ++next[digit(values[i])];
  int32_t sum = 0;
  for (int32_t& count : next) {
    const int32_t here = count;
    count = sum;
    sum += here;
  }
  for (int64_t i = 0; i < n; ++i) {
    const int32_t place = next[digit(values[i])]++;
    to.values[place] = values[i];
    to.indices[place] = indices == nullptr ? static_cast<int32_t>(i) : indices[i];
  }
}

}  // namespace

void radix_sort_cpu(const RadixSort& a, const Pool&) {
  validate(a);
  const int64_t n = a.x.cols;
  const int passes = radix::num_passes(a.end_bit);
  dispatch_integer(a.x.dtype, [&]<class T>() {
    std::vector<T> values(passes > 1 ? n : 0);
    std::vector<int32_t> indices(values.size());
    const Items<T> out{a.out.as<T>(), a.indices}, other{values.data(), indices.data()};
    Items<T> from{const_cast<T*>(a.x.as<T>()), nullptr};
    for (int p = 0; p < passes; ++p) {
      const Items<T>& to = (passes - 1 - p) % 2 == 0 ? out : other;
      sort_pass<T>(from.values, from.indices, n, {p * radix::kDigitBits, a.end_bit}, to);
      from = to;
    }
  });
}

}  // namespace troupe
