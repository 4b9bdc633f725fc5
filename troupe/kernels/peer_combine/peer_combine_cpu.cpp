// The CPU path: sums of kBlock columns stay in first-level cache while the token's rows are added
// one after the other (kernels/combine).
#include <algorithm>

#include "troupe/kernels/peer_combine/peer_combine.h"

namespace troupe {
namespace {

constexpr int64_t kBlock = 256;
constexpr int64_t kBytesPerRange = 1 << 16;

template <class T>
void combine_tokens(const PeerCombine& a, int64_t begin, int64_t end) {
  const Mat<T> out = a.out.as<T>();
  Wide<T> sum[kBlock];
  for (int64_t t = begin; t < end; ++t) {
    for (int64_t d0 = 0; d0 < out.cols; d0 += kBlock) {
      const int64_t width = std::min(kBlock, out.cols - d0);
      std::fill_n(sum, width, Wide<T>{0});
      for (int64_t c = t * a.choices; c < (t + 1) * a.choices; ++c) {
        const int32_t place = a.place[c];
        if (place < 0) continue;
        const int64_t w = place / a.each, i = place - w * a.each;
        const T* const y =
            static_cast<const T*>(a.from[static_cast<size_t>(w)]) + i * out.cols + d0;
        for (int64_t d = 0; d < width; ++d) sum[d] += static_cast<Wide<T>>(y[d]);
      }
      T* const to = out.row(t) + d0;
      for (int64_t d = 0; d < width; ++d) put(to[d], sum[d]);
    }
  }
}

}  // namespace

void peer_combine_cpu(const PeerCombine& a, const Pool& pool) {
  validate(a);
  if (a.out.rows * a.out.cols == 0) return;
  const int64_t row_bytes = (a.choices + 1) * a.out.cols * size_bytes(a.out.dtype);
  dispatch_float64(a.out.dtype, [&]<class T>() {
    pool(a.out.rows, kBytesPerRange / row_bytes + 1,
         [&](int64_t begin, int64_t end) { combine_tokens<T>(a, begin, end); });
  });
}

}  // namespace troupe
