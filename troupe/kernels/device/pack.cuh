// Sixteen bytes at a time: the widest load of a thread, and what full bandwidth asks for.
#pragma once

#include <cstdint>

#include "troupe/core/device/view.h"

namespace troupe {

inline constexpr int kPackBytes = 16;
template <class T>
inline constexpr int kPackOf = kPackBytes / static_cast<int>(sizeof(T));

// kN neighbors of a row, moved in one access; kN = 1 for rows that are not aligned.
template <class T, int kN>
struct alignas(kN * sizeof(T)) Pack {
  T v[kN];
};

template <int kN, class T>
__device__ __forceinline__ Pack<T, kN> load_pack(const T* p) {
  return *reinterpret_cast<const Pack<T, kN>*>(p);
}
template <int kN, class T>
__device__ __forceinline__ void store_pack(T* p, const Pack<T, kN>& x) {
  *reinterpret_cast<Pack<T, kN>*>(p) = x;
}

// Host: does every row begin on sixteen bytes? An absent matrix is no obstacle.
inline bool rows_are_packed(const MatRef& x) {
  const bool start = reinterpret_cast<uintptr_t>(x.data) % kPackBytes == 0;
  return x.data == nullptr || (start && x.ld * size_bytes(x.dtype) % kPackBytes == 0);
}

}  // namespace troupe
