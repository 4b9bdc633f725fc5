#include <algorithm>
#include <bit>

#include "troupe/core/device/cuda_check.h"
#include "troupe/kernels/device/pack.cuh"
#include "troupe/kernels/device/token_grid.h"
#include "troupe/kernels/peer_combine/peer_combine.h"

namespace troupe {
namespace {

constexpr int kMostInFlight = 8;  // rows a thread has under way: 128 bytes

// Some lanes a token, kN neighbors a lane. kInFlight rows are loaded before the first is added, so
// that reads over the links overlap; the order of the sum is that of the places. Bound by the link.
template <class T, int kN, int kInFlight>
__global__ void __launch_bounds__(kTokenGridThreads)
    peer_combine_kernel(const __grid_constant__ PeerCombine a, Mat<T> out) {
  const int64_t t = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  if (t >= out.rows) return;
  const int each = static_cast<int>(a.each);
  const int C = static_cast<int>(a.choices), packs = static_cast<int>(out.cols / kN);
  const int32_t* place = a.place + t * C;
  for (int p = static_cast<int>(threadIdx.x); p < packs; p += static_cast<int>(blockDim.x)) {
    float sum[kN] = {};
    for (int c0 = 0; c0 < C; c0 += kInFlight) {
      Pack<T, kN> value[kInFlight];
      bool there[kInFlight];
#pragma unroll
      for (int n = 0; n < kInFlight; ++n) {
        const int32_t at = c0 + n < C ? __ldg(&place[c0 + n]) : -1;
        there[n] = at >= 0;
        if (!there[n]) continue;
        const int w = at / each, i = at - w * each;
        value[n] = load_pack<kN>(static_cast<const T*>(a.from[w]) + int64_t{i} * out.cols + p * kN);
      }
#pragma unroll
      for (int n = 0; n < kInFlight; ++n) {
        if (!there[n]) continue;
#pragma unroll
        for (int v = 0; v < kN; ++v) sum[v] += static_cast<float>(value[n].v[v]);
      }
    }
    Pack<T, kN> rounded;
#pragma unroll
    for (int v = 0; v < kN; ++v) rounded.v[v] = static_cast<T>(sum[v]);
    store_pack(out.row(t) + p * kN, rounded);
  }
}

template <class T, int kN>
void launch(const PeerCombine& a, cudaStream_t stream) {
  const TokenGrid grid = token_grid(a.out.rows, a.out.cols / kN);
  const auto wanted =
      static_cast<unsigned>(std::clamp<int64_t>(a.choices, 1, int64_t{kMostInFlight}));
  dispatch_int<1, 2, 4, 8>(static_cast<int>(std::bit_ceil(wanted)), [&]<int kInFlight>() {
    peer_combine_kernel<T, kN, kInFlight>
        <<<grid.blocks, dim3(grid.lanes, grid.tokens), 0, stream>>>(a, a.out.as<T>());
  });
  TROUPE_LAUNCH_CHECK(stream);
}

bool on_packs(const PeerCombine& a) {
  auto all = reinterpret_cast<uintptr_t>(a.out.data) |
             static_cast<uintptr_t>(a.out.cols * size_bytes(a.out.dtype));
  for (int64_t w = 0; w < a.peers; ++w) all |= reinterpret_cast<uintptr_t>(a.from[w]);
  return all % kPackBytes == 0;
}

}  // namespace

void peer_combine_cuda(const PeerCombine& a, cudaStream_t stream) {
  validate(a);
  if (a.out.rows * a.out.cols == 0) return;
  dispatch_float(a.out.dtype, [&]<class T>() {
    on_packs(a) ? launch<T, kPackOf<T>>(a, stream) : launch<T, 1>(a, stream);
  });
}

}  // namespace troupe
