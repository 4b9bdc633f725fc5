#include "troupe/kernels/peer_combine/peer_combine.h"

namespace troupe {

void validate(const PeerCombine& a) {
  TROUPE_CHECK(0 <= a.peers && a.peers <= kMostPeers, a.peers, "peers, of at most", kMostPeers);
  TROUPE_CHECK(a.each >= 0 && a.choices >= 0, a.each, "rows of each peer,", a.choices, "places");
  TROUPE_CHECK(a.peers * a.each <= INT32_MAX, a.peers, "peers of", a.each, "rows");
  check_matrix(a.out.read(), "out", a.out.rows, a.out.cols, a.out.dtype);
  TROUPE_CHECK(a.out.ld == a.out.cols || a.out.rows <= 1, "out has rows of", a.out.cols,
               "elements,", a.out.ld, "apart, and must be packed");
  if (a.out.rows * a.out.cols == 0) return;
  TROUPE_CHECK(a.place != nullptr || a.choices == 0, "place");
  for (int64_t w = 0; w < a.peers && a.each > 0; ++w) {
    TROUPE_CHECK(a.from[static_cast<size_t>(w)] != nullptr, "rows of peer", w, "are missing");
  }
}

int64_t bytes_moved(const PeerCombine& a) {
  return a.out.rows * ((a.choices + 1) * a.out.cols * size_bytes(a.out.dtype) +
                       a.choices * int64_t{sizeof(int32_t)});
}

void peer_combine_ref(const PeerCombine& a) {
  validate(a);
  if (a.out.data == nullptr) return;
  dispatch_float64(a.out.dtype, [&]<class T>() {
    const Mat<T> out = a.out.as<T>();
    for (int64_t t = 0; t < out.rows; ++t) {
      for (int64_t d = 0; d < out.cols; ++d) {
        double sum = 0;
        for (int64_t c = 0; c < a.choices; ++c) {
          const int32_t place = a.place[t * a.choices + c];
          if (place < 0) continue;
          const auto* const y = static_cast<const T*>(a.from[static_cast<size_t>(place / a.each)]);
          sum += static_cast<Wide<T>>(y[place % a.each * out.cols + d]);
        }
        out(t, d) = static_cast<T>(static_cast<Wide<T>>(sum));
      }
    }
  });
}

}  // namespace troupe
