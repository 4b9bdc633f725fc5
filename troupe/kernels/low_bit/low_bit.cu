#include "troupe/core/device/cuda_check.h"
#include "troupe/core/number/round.h"
#include "troupe/kernels/device/pack.cuh"
#include "troupe/kernels/device/reduce.cuh"
#include "troupe/kernels/low_bit/low_bit.h"
#include "troupe/kernels/low_bit/low_bit_rule.h"

namespace troupe {
namespace {

constexpr int kThreads = 256;
constexpr int kUnpackPacks = 4;  // of x a thread, loaded before the first is stored

// kN neighbors in one access, or one by one where the address is none of a pack.
template <bool kAligned, int kN, class T>
__device__ __forceinline__ Pack<T, kN> load_neighbors(const T* p) {
  if constexpr (kAligned) {
    return load_pack<kN>(p);
  } else {
    Pack<T, kN> out;
#pragma unroll
    for (int j = 0; j < kN; ++j) out.v[j] = p[j];
    return out;
  }
}
template <bool kAligned, int kN, class T>
__device__ __forceinline__ void store_neighbors(T* p, const Pack<T, kN>& x) {
  if constexpr (kAligned) {
    store_pack(p, x);
  } else {
#pragma unroll
    for (int j = 0; j < kN; ++j) p[j] = x.v[j];
  }
}

// max over the kLanes neighboring lanes of a group.
template <int kLanes>
__device__ __forceinline__ uint32_t lanes_max(uint32_t top) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    top = max(top, __shfl_xor_sync(kWholeWarp, top, offset));
  }
  return top;
}

// The bytes of kN codes.
template <class Rule, int kN>
__device__ __forceinline__ Pack<uint8_t, kN * Rule::kBits / 8> code_bytes(
    const uint32_t (&code)[kN]) {
  Pack<uint8_t, kN * Rule::kBits / 8> out;
  if constexpr (Rule::kBits == 8) {
#pragma unroll
    for (int j = 0; j < kN; ++j) out.v[j] = static_cast<uint8_t>(code[j]);
  } else {
#pragma unroll
    for (int j = 0; j < kN / 2; ++j) {
      out.v[j] = static_cast<uint8_t>(code[2 * j] << Rule::kEvenShift |
                                      code[2 * j + 1] << (4 - Rule::kEvenShift));
    }
  }
  return out;
}

// One thread sixteen bytes of x; the 4 to 32 lanes of a group find its largest element together. x
// is read and the values are written once: bound by memory.
template <class Rule, class T, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    low_bit_pack_kernel(const T* x, int64_t N, uint8_t* values, typename Rule::Scale* scales,
                        unsigned long long* non_finite) {
  constexpr int kN = kPackOf<T>, kLanes = Rule::kGroup / kN;
  static_assert(kLanes <= kWarpLanes);
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kN;
  float v[kN] = {};
  if (i < N) {
    const auto in = load_neighbors<kAligned, kN>(x + i);
#pragma unroll
    for (int j = 0; j < kN; ++j) v[j] = static_cast<float>(in.v[j]);
  }
  uint32_t top = 0;
  int bad = 0;
#pragma unroll
  for (int j = 0; j < kN; ++j) {
    const bool finite = low_bit_magnitude(v[j]) < kLowBitInf;
    v[j] = finite ? v[j] : 0.0f;
    bad += finite ? 0 : 1;
    top = max(top, low_bit_magnitude(v[j]));
  }
  top = lanes_max<kLanes>(top);  // Past the end too: all lanes meet in the shuffles.
  if (i >= N) return;
  if (bad > 0)
    atomicAdd(non_finite, static_cast<unsigned long long>(bad));  // the same in any order
  const typename Rule::Scale stored = Rule::scale(__uint_as_float(top));
  if (threadIdx.x % kLanes == 0) scales[i / Rule::kGroup] = stored;
  const float divisor = Rule::divisor(stored);
  uint32_t code[kN];
#pragma unroll
  for (int j = 0; j < kN; ++j) code[j] = Rule::code(low_bit_quotient(v[j], divisor));
  store_neighbors<kAligned>(values + i * Rule::kBits / 8, code_bytes<Rule, kN>(code));
}

// What a code of 4 bits reads back as before its scale, in shared memory: 16 words are in 16 banks,
// so that no two lanes wait for each other.
template <class Rule>
struct ValueTable {
  float* table;

  __device__ __forceinline__ explicit ValueTable(float* shared) : table(shared) {
    if constexpr (Rule::kBits == 4) {
      if (threadIdx.x < 16) table[threadIdx.x] = Rule::value(threadIdx.x);
      __syncthreads();
    }
  }
  // Of element j of the bytes.
  template <int kBytes>
  __device__ __forceinline__ float operator()(const Pack<uint8_t, kBytes>& bytes, int j) const {
    if constexpr (Rule::kBits == 8) {
      return Rule::value(bytes.v[j]);
    } else {
      const int shift = j % 2 == 0 ? Rule::kEvenShift : 4 - Rule::kEvenShift;
      return table[bytes.v[j / 2] >> shift & 15];
    }
  }
};

// One thread kUnpackPacks times sixteen bytes of x, a block apart: a warp's loads and stores are
// neighbors. Values and scales are read and x is written once: bound by memory.
template <class Rule, class T, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    low_bit_unpack_kernel(const uint8_t* values, const typename Rule::Scale* scales, T* x,
                          int64_t N) {
  constexpr int kN = kPackOf<T>, kBytes = kN * Rule::kBits / 8;
  constexpr int64_t kApart = int64_t{kThreads} * kN;
  __shared__ float shared[16];
  const ValueTable<Rule> value(shared);
  const int64_t first = (int64_t{blockIdx.x} * kUnpackPacks * kThreads + threadIdx.x) * kN;
  Pack<uint8_t, kBytes> bytes[kUnpackPacks];
  float step[kUnpackPacks];
#pragma unroll
  for (int p = 0; p < kUnpackPacks; ++p) {
    const int64_t i = first + p * kApart;
    if (i >= N) break;
    bytes[p] = load_neighbors<kAligned, kBytes>(values + i * Rule::kBits / 8);
    step[p] = Rule::step(scales[i / Rule::kGroup]);
  }
#pragma unroll
  for (int p = 0; p < kUnpackPacks; ++p) {
    const int64_t i = first + p * kApart;
    if (i >= N) break;
    Pack<T, kN> out;
#pragma unroll
    for (int j = 0; j < kN; ++j) out.v[j] = static_cast<T>(value(bytes[p], j) * step[p]);
    store_neighbors<kAligned>(x + i, out);
  }
}

unsigned blocks_for(int64_t N, int64_t each) {
  const int64_t blocks = ceil_div(N, each);
  TROUPE_CHECK(blocks <= 0x7fffffff, "elements", N);
  return static_cast<unsigned>(blocks);
}

bool begins_on_packs(const void* x, const void* values) {
  return reinterpret_cast<uintptr_t>(x) % kPackBytes == 0 &&
         reinterpret_cast<uintptr_t>(values) % kPackBytes == 0;
}

// body<T, Rule, kAligned>()
template <class Body>
void dispatch(Dtype dtype, LowBitFormat format, bool aligned, Body&& body) {
  dispatch_float(dtype, [&]<class T>() {
    dispatch_low_bit(format, [&]<class Rule>() {
      if (aligned) return body.template operator()<T, Rule, true>();
      body.template operator()<T, Rule, false>();
    });
  });
}

}  // namespace

void low_bit_pack_cuda(const LowBitPack& a, cudaStream_t stream) {
  validate(a);
  const int64_t N = a.x.cols;
  if (N == 0) return;
  dispatch(a.x.dtype, a.format, begins_on_packs(a.x.data, a.values),
           [&]<class T, class Rule, bool kAligned>() {
             const unsigned blocks = blocks_for(N, int64_t{kThreads} * kPackOf<T>);
             low_bit_pack_kernel<Rule, T, kAligned><<<blocks, kThreads, 0, stream>>>(
                 a.x.as<T>().data, N, a.values, low_bit_scales<Rule>(a),
                 reinterpret_cast<unsigned long long*>(a.non_finite));
           });
  TROUPE_LAUNCH_CHECK(stream);
}

void low_bit_unpack_cuda(const LowBitUnpack& a, cudaStream_t stream) {
  validate(a);
  const int64_t N = a.x.cols;
  if (N == 0) return;
  dispatch(a.x.dtype, a.format, begins_on_packs(a.x.data, a.values),
           [&]<class T, class Rule, bool kAligned>() {
             const unsigned blocks = blocks_for(N, int64_t{kThreads} * kPackOf<T> * kUnpackPacks);
             low_bit_unpack_kernel<Rule, T, kAligned><<<blocks, kThreads, 0, stream>>>(
                 a.values, low_bit_scales<Rule>(a), a.x.as<T>().data, N);
           });
  TROUPE_LAUNCH_CHECK(stream);
}

}  // namespace troupe
