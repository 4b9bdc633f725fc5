// Operands of a tile product on their way into shared memory. A stage holds kDepth of k of an
// operand tile of kSize rows (of M or N), in chunks of 16 bytes, in the order in which global
// memory has it:
//   Major::kK    kSize rows of 64 bytes, k contiguous
//   Major::kMN   kDepth rows of kSize elements, M or N contiguous
// Chunks are moved within a row so that eight chunks of one column, or of one row, are in different
// banks: neither cp.async nor ldmatrix meets a conflict.
//
// A source belongs to one thread, which copies the same chunks of every stage. What is outside
// the operand becomes zeros. kAligned: all rows start at multiples of 16 bytes, and cp.async does
// it; without, elements are read one by one.
#pragma once

#include <bit>
#include <cstdint>

#include "troupe/kernels/device/mma_sync.cuh"

namespace troupe::tile {

enum class Major { kK, kMN };

template <class T>
inline constexpr int kChunk = 16 / static_cast<int>(sizeof(T));  // elements
template <class T>
inline constexpr int kDepth = 4 * kChunk<T>;  // k of a stage: 32 of 16 bits, 16 of 32

template <class T, int kSize, Major kMajor>
struct Layout {
  static constexpr int kPitch = kMajor == Major::kK ? 64 : kSize * static_cast<int>(sizeof(T));
  static constexpr int kRowChunks = kPitch / 16;
  static constexpr int kBytes = kSize * 64;

  // Two rows of 64 bytes share a line of 128; a longer row has its own.
  __device__ static uint32_t at(int row, int chunk) {
    const int twist = kMajor == Major::kK ? (row >> 1) & 3 : row & 7;
    return static_cast<uint32_t>(row * kPitch + ((chunk ^ twist) << 4));
  }
};

template <class T>
struct alignas(16) Chunk {
  T element[kChunk<T>];
};

// The first `count` elements of a chunk, then zeros.
template <class T, bool kAligned>
__device__ __forceinline__ void copy_chunk(uint32_t dst, const T* src, int count) {
  if constexpr (kAligned) {
    sm80::copy16(dst, src, static_cast<uint32_t>(count) * sizeof(T));
  } else {
    Chunk<T> chunk;
#pragma unroll
    for (int i = 0; i < kChunk<T>; ++i) chunk.element[i] = i < count ? src[i] : T(0.0f);
    sm80::store_shared16(dst, std::bit_cast<uint4>(chunk));
  }
}

// Rows that stay the same while k advances. `first` is a thread's first row, its chunk in each.
template <class T, int kSize, int kThreads>
struct KMajorCopies {
  using Tile = Layout<T, kSize, Major::kK>;
  static constexpr int kRowsAtOnce = kThreads / 4;
  static constexpr int kCopies = kSize / kRowsAtOnce;
  static constexpr int kBytesApart = kRowsAtOnce * Tile::kPitch;
  static_assert(kRowsAtOnce % 8 == 0 && kSize % kRowsAtOnce == 0);

  __device__ static int first() { return static_cast<int>(threadIdx.x / 4); }
  __device__ static int chunk() { return static_cast<int>(threadIdx.x % 4); }
  __device__ static uint32_t place() { return Tile::at(first(), chunk()); }
};

// Rows anywhere.
template <class T, int kSize, int kThreads, bool kAligned>
class KMajorRows {
  using Copies = KMajorCopies<T, kSize, kThreads>;

 public:
  // row_at(i), 0 <= i < kSize: where row i of the tile starts; nullptr is a row of zeros.
  template <class RowAt>
  __device__ __forceinline__ void open(const RowAt& row_at, int k) {
    valid_ = 0;
#pragma unroll
    for (int i = 0; i < Copies::kCopies; ++i) {
      const T* row = row_at(Copies::first() + i * Copies::kRowsAtOnce);
      row_[i] = row + Copies::chunk() * kChunk<T>;
      valid_ |= unsigned{row != nullptr} << i;
    }
    left_ = k - Copies::chunk() * kChunk<T>;
  }

  // Copies the next kDepth of k to the tile at `dst`.
  __device__ __forceinline__ void load(uint32_t dst) {
    const int count = min(max(left_, 0), kChunk<T>);
    dst += Copies::place();
#pragma unroll
    for (int i = 0; i < Copies::kCopies; ++i) {
      copy_chunk<T, kAligned>(dst + i * Copies::kBytesApart, row_[i], valid_ >> i & 1 ? count : 0);
      row_[i] += kDepth<T>;
    }
    left_ -= kDepth<T>;
  }

 private:
  const T* row_[Copies::kCopies];
  unsigned valid_;
  int left_;  // of k, from this thread's chunk on
};

// Rows at equal distances, of which only the first `rows` are there: one pointer in place of many.
template <class T, int kSize, int kThreads, bool kAligned>
class KMajorSource {
  using Copies = KMajorCopies<T, kSize, kThreads>;

 public:
  __device__ __forceinline__ void open(const T* data, int64_t ld, int rows, int k) {
    at_ = data + Copies::first() * ld + Copies::chunk() * kChunk<T>;
    apart_ = Copies::kRowsAtOnce * ld;
    rows_ = rows - Copies::first();
    left_ = k - Copies::chunk() * kChunk<T>;
  }

  __device__ __forceinline__ void load(uint32_t dst) {
    const int count = min(max(left_, 0), kChunk<T>);
    const T* at = at_;
    dst += Copies::place();
#pragma unroll
    for (int i = 0; i < Copies::kCopies; ++i) {
      copy_chunk<T, kAligned>(dst + i * Copies::kBytesApart, at,
                              i * Copies::kRowsAtOnce < rows_ ? count : 0);
      at += apart_;
    }
    at_ += kDepth<T>;
    left_ -= kDepth<T>;
  }

 private:
  const T* at_;
  int64_t apart_;
  int rows_, left_;  // rows from this thread's first on; of k, from its chunk on
};

// Rows that are k: `rows` of them from `begin`, at data + index * ld.
template <class T>
struct RowRange {
  const T* data;  // row 0, at the tile's first column
  int ld;
  int cols;  // from there on
  int begin, end;
  const int32_t* src = nullptr;  // [end]  optional: a row whose entry is negative is zeros, ...
  bool gather = false;           // ... and the others are at row src[r] in place of r
};

template <class T, int kSize, int kThreads, bool kAligned>
class MNMajorSource {
  using Tile = Layout<T, kSize, Major::kMN>;
  static constexpr int kRowsAtOnce = kThreads / Tile::kRowChunks;
  static constexpr int kCopies = kDepth<T> / kRowsAtOnce;
  static_assert(kRowsAtOnce % 8 == 0 && kDepth<T> % kRowsAtOnce == 0);

 public:
  __device__ __forceinline__ void open(const RowRange<T>& range) {
    const int column = chunk() * kChunk<T>;
    range_ = range;
    range_.data += column;
    range_.begin += row();
    count_ = min(max(range.cols - column, 0), kChunk<T>);
    look_up();
  }

  __device__ __forceinline__ void load(uint32_t dst) {
    dst += Tile::at(row(), chunk());
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const T* src = range_.data + int64_t{index_[i]} * range_.ld;
      copy_chunk<T, kAligned>(dst + i * kRowsAtOnce * Tile::kPitch, src,
                              index_[i] >= 0 ? count_ : 0);
    }
    range_.begin += kDepth<T>;
    look_up();
  }

 private:
  __device__ static int chunk() {
    return static_cast<int>(threadIdx.x) % Tile::kRowChunks;
  }
  __device__ static int row() {
    return static_cast<int>(threadIdx.x) / Tile::kRowChunks;
  }

  // The rows of the next stage, a stage early: the copies must not wait for the indices.
  __device__ __forceinline__ void look_up() {
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int r = range_.begin + i * kRowsAtOnce;
      index_[i] = r < range_.end ? r : -1;
      if (range_.src == nullptr || r >= range_.end) continue;
      const int src = __ldg(range_.src + r);
      index_[i] = range_.gather || src < 0 ? src : r;
    }
  }

  RowRange<T> range_;
  int count_;
  int index_[kCopies];
};

template <class T, int kSize, Major kMajor, int kThreads, bool kAligned>
using Source = std::conditional_t<kMajor == Major::kK, KMajorSource<T, kSize, kThreads, kAligned>,
                                  MNMajorSource<T, kSize, kThreads, kAligned>>;

}  // namespace troupe::tile
