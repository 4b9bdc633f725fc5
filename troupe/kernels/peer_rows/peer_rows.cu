#include <algorithm>

#include "troupe/core/device/cuda_check.h"
#include "troupe/kernels/device/token_grid.h"
#include "troupe/kernels/peer_rows/peer_rows.h"

namespace troupe {
namespace {

constexpr int kInFlight =
    4;  // words a thread has under way: a link's latency is over a microsecond

// Some lanes a row, a word a lane and access; kInFlight words are loaded before the first is
// stored. Reads go straight to the peer's memory. Bound by the link, or by memory where the row is
// this GPU's own.
template <class Word>
__global__ void __launch_bounds__(kTokenGridThreads)
    peer_rows_kernel(const __grid_constant__ PeerRows a, Word filling) {
  const int each = static_cast<int>(a.each), repeats = static_cast<int>(a.repeats);
  const int r = static_cast<int>(blockIdx.x * blockDim.y + threadIdx.y);
  if (r >= static_cast<int>(a.peers) * each * repeats) return;
  bool wanted = a.wanted == nullptr;
  for (int64_t c = 0; !wanted && c < a.choices; ++c) {
    wanted = __ldg(&a.wanted[int64_t{r} * a.choices + c]) >= 0;
  }
  if (!wanted && a.fill < 0) return;
  const int source = r / repeats, w = source / each, i = source - w * each;
  const int words = static_cast<int>(a.row_bytes / static_cast<int64_t>(sizeof(Word)));
  const auto* const from = reinterpret_cast<const Word*>(a.from[w] + int64_t{i} * a.row_bytes);
  auto* const to = reinterpret_cast<Word*>(a.out + int64_t{r} * a.row_bytes);
  const int lanes = static_cast<int>(blockDim.x);
  for (int p0 = static_cast<int>(threadIdx.x); p0 < words; p0 += kInFlight * lanes) {
    Word value[kInFlight];
#pragma unroll
    for (int n = 0; n < kInFlight; ++n) {
      const int p = p0 + n * lanes;
      if (p < words) value[n] = wanted ? from[p] : filling;
    }
#pragma unroll
    for (int n = 0; n < kInFlight; ++n) {
      const int p = p0 + n * lanes;
      if (p < words) to[p] = value[n];
    }
  }
}

bool on_bytes(const PeerRows& a, uintptr_t n) {
  uintptr_t all = reinterpret_cast<uintptr_t>(a.out) | static_cast<uintptr_t>(a.row_bytes);
  for (int64_t w = 0; w < a.peers; ++w) all |= reinterpret_cast<uintptr_t>(a.from[w]);
  return all % n == 0;
}

template <class Word>
void launch(const PeerRows& a, Word filling, cudaStream_t stream) {
  const auto words = a.row_bytes / static_cast<int64_t>(sizeof(Word));
  const TokenGrid grid = token_grid(a.rows(), ceil_div(words, kInFlight));
  peer_rows_kernel<Word><<<grid.blocks, dim3(grid.lanes, grid.tokens), 0, stream>>>(a, filling);
  TROUPE_LAUNCH_CHECK(stream);
}

}  // namespace

void peer_rows_cuda(const PeerRows& a, cudaStream_t stream) {
  validate(a);
  if (a.rows() * a.row_bytes == 0) return;
  const unsigned filling = static_cast<unsigned>(std::max(a.fill, 0)) * 0x01010101u;
  if (on_bytes(a, 16)) return launch(a, make_uint4(filling, filling, filling, filling), stream);
  if (on_bytes(a, 4)) return launch(a, filling, stream);
  launch(a, static_cast<uint8_t>(filling), stream);
}

}  // namespace troupe
