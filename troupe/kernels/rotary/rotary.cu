#include <algorithm>

#include "troupe/core/device/cuda_check.h"
#include "troupe/kernels/rotary/rotary.h"

namespace troupe {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 0x7fffffff;

template <class T>
struct Turn {
  Mat<const T> x;
  Mat<T> y;
  Mat<const float> cos, sin;
  int64_t head_dim, num_heads, first, pairs;
  const int64_t* position;  // or null
  bool half, inverse;
};

struct Angle {
  float c, s;
};

// The table's row for a token, or -1.
template <class T>
__device__ int64_t place_of(const Turn<T>& turn, int64_t t) {
  const int64_t p = turn.position == nullptr ? t % turn.cos.rows : turn.position[t];
  return p < turn.cos.rows ? p : -1;
}

template <class T>
__device__ Angle angle_of(const Turn<T>& turn, int64_t place, int64_t j) {
  if (place < 0) return {NAN, NAN};
  const float s = turn.sin(place, j);
  return {turn.cos(place, j), turn.inverse ? -s : s};
}

// kN elements in one access where kAligned of them are known to begin on their own size.
template <class T, int kN, int kAligned>
struct alignas(kAligned * sizeof(T)) Some {
  T v[kN];
};

// kN neighboring pairs: a half-rotated head's pairs j and j + 1 are side by side in both halves,
// an interleaved head's are four elements in a row.
template <class T, int kN>
__device__ void turn_pairs(const Turn<T>& turn, int64_t t, int64_t place, int64_t head, int64_t j) {
  const int64_t start = head * turn.head_dim + turn.first;
  const T* from = turn.x.row(t) + start;
  T* to = turn.y.row(t) + start;
  if (turn.half) {
    const auto a = *reinterpret_cast<const Some<T, kN, kN>*>(from + j);
    const auto b = *reinterpret_cast<const Some<T, kN, kN>*>(from + j + turn.pairs);
    Some<T, kN, kN> out_a, out_b;
    for (int i = 0; i < kN; ++i) {
      const Angle angle = angle_of(turn, place, j + i);
      const float u = static_cast<float>(a.v[i]), v = static_cast<float>(b.v[i]);
      out_a.v[i] = static_cast<T>(u * angle.c - v * angle.s);
      out_b.v[i] = static_cast<T>(v * angle.c + u * angle.s);
    }
    *reinterpret_cast<Some<T, kN, kN>*>(to + j) = out_a;
    *reinterpret_cast<Some<T, kN, kN>*>(to + j + turn.pairs) = out_b;
  } else {
    const auto in = *reinterpret_cast<const Some<T, 2 * kN, kN == 1 ? 1 : 2 * kN>*>(from + 2 * j);
    Some<T, 2 * kN, kN == 1 ? 1 : 2 * kN> out;
    for (int i = 0; i < kN; ++i) {
      const Angle angle = angle_of(turn, place, j + i);
      const float u = static_cast<float>(in.v[2 * i]), v = static_cast<float>(in.v[2 * i + 1]);
      out.v[2 * i] = static_cast<T>(u * angle.c - v * angle.s);
      out.v[2 * i + 1] = static_cast<T>(v * angle.c + u * angle.s);
    }
    *reinterpret_cast<Some<T, 2 * kN, kN == 1 ? 1 : 2 * kN>*>(to + 2 * j) = out;
  }
}

// One block a token, one thread kN pairs at a time; x is read and y written once, the tables stay
// in a cache. Indices within a row are 32 bits: a division of 64 takes longer than the memory does.
template <class T, int kN>
__global__ void __launch_bounds__(kThreads) rotary_kernel(Turn<T> turn) {
  const int64_t t = blockIdx.x, place = place_of(turn, t);
  const auto per_head = static_cast<unsigned>(turn.pairs / kN);
  const unsigned groups = static_cast<unsigned>(turn.num_heads) * per_head;
  for (unsigned i = threadIdx.x; i < groups; i += blockDim.x) {
    turn_pairs<T, kN>(turn, t, place, i / per_head, i % per_head * kN);
  }
  if (turn.y.data == turn.x.data) return;
  const auto rest = static_cast<unsigned>(turn.head_dim - 2 * turn.pairs);
  for (unsigned i = threadIdx.x; i < static_cast<unsigned>(turn.num_heads) * rest;
       i += blockDim.x) {
    const int64_t k = i % rest, head = i / rest;
    const int64_t d = head * turn.head_dim + (k < turn.first ? k : k + 2 * turn.pairs);
    turn.y(t, d) = turn.x(t, d);
  }
}

bool begins_on(const MatRef& x, int64_t elements) {
  const int64_t bytes = elements * size_bytes(x.dtype);
  return reinterpret_cast<uintptr_t>(x.data) % static_cast<uintptr_t>(bytes) == 0 &&
         x.ld % elements == 0;
}

}  // namespace

void rotary_cuda(const Rotary& a, cudaStream_t stream) {
  validate(a);
  if (a.x.rows == 0 || a.x.cols == 0) return;
  TROUPE_CHECK(a.x.rows <= kMaxBlocks && a.x.cols <= kMaxBlocks, "tokens", a.x.rows, "of", a.x.cols,
               "elements");
  const bool by_four = begins_on(a.x, 4) && begins_on(a.y.read(), 4) && a.head_dim % 4 == 0 &&
                       a.first % 4 == 0 && a.cos.cols % 2 == 0;
  const int64_t threads = std::clamp<int64_t>((a.x.cols / 4 + 31) / 32 * 32, 32, kThreads);
  dispatch_float(a.x.dtype, [&]<class T>() {
    const Turn<T> turn{.x = a.x.as<T>(),
                       .y = a.y.as<T>(),
                       .cos = a.cos.as<float>(),
                       .sin = a.sin.as<float>(),
                       .head_dim = a.head_dim,
                       .num_heads = a.x.cols / a.head_dim,
                       .first = a.first,
                       .pairs = a.cos.cols,
                       .position = a.position,
                       .half = a.form == RotaryForm::kHalf,
                       .inverse = a.inverse};
    const auto kernel = by_four ? rotary_kernel<T, 2> : rotary_kernel<T, 1>;
    kernel<<<static_cast<unsigned>(a.x.rows), static_cast<unsigned>(threads), 0, stream>>>(turn);
  });
  TROUPE_LAUNCH_CHECK(stream);
}

}  // namespace troupe
