#include "troupe/core/device/cuda_check.h"
#include "troupe/kernels/device/pack.cuh"
#include "troupe/kernels/device/reduce.cuh"
#include "troupe/kernels/quantize/quantize.h"
#include "troupe/kernels/quantize/quantize_rule.h"

namespace troupe {
namespace {

constexpr int kThreads = 256;

// kN elements from i on, what is past n as 0. kN is always sixteen bytes' worth: a group is then a
// fixed number of lanes.
template <class T, int kN>
__device__ void load_floats(const T* x, int64_t i, int64_t n, bool packed, float (&out)[kN]) {
  if (packed && i + kN <= n) {
    const auto pack = load_pack<kN>(x + i);
    for (int j = 0; j < kN; ++j) out[j] = static_cast<float>(pack.v[j]);
  } else {
    for (int j = 0; j < kN; ++j) out[j] = i + j < n ? static_cast<float>(x[i + j]) : 0.0f;
  }
}

// max |x| over the lanes of a group, by the order of bits, in which infinity and NaN are the
// largest.
template <int kLanes>
__device__ float group_largest(unsigned top) {
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    top = max(top, __shfl_xor_sync(kWholeWarp, top, offset));
  }
  return __uint_as_float(top);
}

// Where the bytes of kN elements go: whole, or as many as there are. kBytes of them at i kBits / 8.
template <int kBytes>
__device__ void store_bytes(uint8_t* to, const uint8_t (&bytes)[kBytes], int64_t room) {
  const bool aligned = reinterpret_cast<uintptr_t>(to) % kBytes == 0;
  if (aligned && room >= kBytes) {
    Pack<uint8_t, kBytes> pack;
    for (int j = 0; j < kBytes; ++j) pack.v[j] = bytes[j];
    store_pack(to, pack);
  } else {
    for (int j = 0; j < kBytes; ++j) {
      if (j < room) to[j] = bytes[j];
    }
  }
}

// One thread sixteen bytes of x; the 4 or 8 lanes of a group find its largest element together. x
// is read and the values are written once.
template <class T, int kBits>
__global__ void __launch_bounds__(kThreads)
    quantize_kernel(const T* x, int64_t n, bool packed, uint8_t* values, F16* scales,
                    unsigned long long* saturated) {
  constexpr int kN = kPackOf<T>, kLanes = static_cast<int>(kQuantGroup) / kN;
  constexpr int kBytes = kN * kBits / 8;
  constexpr float kMax = kBits == 8 ? 127 : 7;
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kN;
  float v[kN];
  load_floats(x, i, n, packed, v);  // Past the end too: all lanes meet in the shuffles.
  unsigned top = 0;
  for (int j = 0; j < kN; ++j) top = max(top, __float_as_uint(v[j]) & 0x7fffffffu);
  const QuantScale s = quant_scale(group_largest<kLanes>(top), kMax);
  if (i >= n) return;
  if (threadIdx.x % kLanes == 0) {
    scales[i / kQuantGroup] = s.stored;
    if (s.saturated) atomicAdd(saturated, 1ull);  // Integer, hence the same in any order.
  }
  uint8_t bytes[kBytes];
  for (int j = 0; j < kN; ++j) {
    const int q = static_cast<int>(quantized(v[j], s.scale, kMax));
    if constexpr (kBits == 8) {
      bytes[j] = static_cast<uint8_t>(q);
    } else if (j % 2 == 0) {
      bytes[j / 2] = static_cast<uint8_t>(q & 15);
    } else {
      bytes[j / 2] = static_cast<uint8_t>(bytes[j / 2] | (q & 15) << 4);
    }
  }
  const int64_t at = i * kBits / 8, size = (n * kBits + 7) / 8;
  store_bytes(values + at, bytes, size - at);
}

// One thread sixteen bytes of x.
template <class T, int kBits>
__global__ void __launch_bounds__(kThreads)
    dequantize_kernel(const uint8_t* values, const F16* scales, T* x, int64_t n, bool packed) {
  constexpr int kN = kPackOf<T>;
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kN;
  if (i >= n) return;
  const float scale = static_cast<float>(scales[i / kQuantGroup]);
  Pack<T, kN> out;
  for (int j = 0; j < kN; ++j) {
    if (i + j >= n) break;
    int q;
    if constexpr (kBits == 8) {
      q = static_cast<int8_t>(values[i + j]);
    } else {
      const int byte = values[(i + j) / 2];
      q = static_cast<int8_t>((j % 2 == 0 ? byte << 4 : byte) & 0xf0) >> 4;
    }
    out.v[j] = static_cast<T>(static_cast<float>(q) * scale);
  }
  if (packed && i + kN <= n) {
    store_pack(x + i, out);
  } else {
    for (int j = 0; j < kN; ++j) {
      if (i + j < n) x[i + j] = out.v[j];
    }
  }
}

template <class Body>
void dispatch(Dtype dtype, int bits, Body&& body) {
  dispatch_float(dtype, [&]<class T>() {
    dispatch_int<8, 4>(bits, [&]<int kBits>() { body.template operator()<T, kBits>(); });
  });
}

template <class T>
unsigned blocks_for(int64_t n) {
  const int64_t each = int64_t{kThreads} * kPackOf<T>, blocks = (n + each - 1) / each;
  TROUPE_CHECK(blocks <= 0x7fffffff, "elements", n);
  return static_cast<unsigned>(blocks);
}

bool begins_packed(const void* p) {
  return reinterpret_cast<uintptr_t>(p) % kPackBytes == 0;
}

}  // namespace

void quantize_cuda(const Quantize& a, cudaStream_t stream) {
  validate(a);
  const int64_t n = a.x.cols;
  if (n == 0) return;
  dispatch(a.x.dtype, a.bits, [&]<class T, int kBits>() {
    quantize_kernel<T, kBits><<<blocks_for<T>(n), kThreads, 0, stream>>>(
        a.x.as<T>().data, n, begins_packed(a.x.data), a.values, a.scales,
        reinterpret_cast<unsigned long long*>(a.saturated));
  });
  TROUPE_LAUNCH_CHECK(stream);
}

void dequantize_cuda(const Dequantize& a, cudaStream_t stream) {
  validate(a);
  const int64_t n = a.x.cols;
  if (n == 0) return;
  dispatch(a.x.dtype, a.bits, [&]<class T, int kBits>() {
    dequantize_kernel<T, kBits><<<blocks_for<T>(n), kThreads, 0, stream>>>(
        a.values, a.scales, a.x.as<T>().data, n, begins_packed(a.x.data));
  });
  TROUPE_LAUNCH_CHECK(stream);
}

}  // namespace troupe
