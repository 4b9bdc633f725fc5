// A matrix of any float type with padded rows, read and written as double: what tests of
// element-wise and row-wise kernels hand to every path.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <type_traits>

#include "troupe/core/device/cuda_stream.h"
#include "troupe/core/device/view.h"
#include "troupe/testing/backend.h"
#include "troupe/testing/replay_gate.h"
#include "troupe/testing/tolerance.h"

namespace troupe::testing {

class Matrix {
 public:
  // Rows are cols + pad elements apart; all elements, pads too, begin as 0.
  Matrix(Dtype dtype, int64_t rows, int64_t cols, int64_t pad = 0)
      : dtype_(dtype),
        rows_(rows),
        cols_(cols),
        ld_(cols + pad),
        bytes_(rows * ld_ * size_bytes(dtype)) {
    std::memset(bytes_.data(), 0, bytes_.size());
  }

  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  Dtype dtype() const { return dtype_; }
  MatRef view() { return mut().read(); }
  MutRef mut() { return {bytes_.data(), dtype_, rows_, cols_, ld_}; }

  double get(int64_t r, int64_t c) {
    return dispatch_float64(
        dtype_, [&]<class T>() -> double { return static_cast<Wide<T>>(mut().as<T>()(r, c)); });
  }
  void set(int64_t r, int64_t c, double value) {
    dispatch_float64(dtype_, [&]<class T>() {
      mut().as<T>()(r, c) = static_cast<T>(static_cast<Wide<T>>(value));
    });
  }

  void fill(double value) {
    each([&](int64_t r, int64_t c) { set(r, c, value); });
  }
  void fill_normal(unsigned seed, double size = 1) {
    std::mt19937 rng(seed);
    std::normal_distribution<double> normal;
    each([&](int64_t r, int64_t c) { set(r, c, size * normal(rng)); });
  }

  template <class F>
  void each(F&& f) {
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t c = 0; c < cols_; ++c) f(r, c);
    }
  }

  // Pads included: a kernel that writes past its columns is found out.
  bool same_bits(Matrix& other) {
    return bytes_.size() == other.bytes_.size() &&
           std::memcmp(bytes_.data(), other.bytes_.data(), bytes_.size()) == 0;
  }

 private:
  Dtype dtype_;
  int64_t rows_, cols_, ld_;
  Buffer<char> bytes_;
};

// |got - want| <= rtol |want| + atol max(1, the matrix's largest |want|).
// NaN agrees with NaN alone, and infinity with itself.
inline void expect_near(Matrix& got, Matrix& want, Tolerance bound, const std::string& what = "") {
  ASSERT_TRUE(got.rows() == want.rows() && got.cols() == want.cols()) << what;
  double largest = 1;
  want.each([&](int64_t r, int64_t c) {
    const double x = std::abs(want.get(r, c));
    if (std::isfinite(x)) largest = std::max(largest, x);
  });
  int64_t faults = 0;
  got.each([&](int64_t r, int64_t c) {
    const double x = got.get(r, c), y = want.get(r, c);
    if (x == y || (std::isnan(x) && std::isnan(y))) return;
    const double error = std::abs(x - y);
    if (error <= bound.rtol * std::abs(y) + bound.atol * largest) return;
    if (++faults <= 5)
      ADD_FAILURE() << what << " at " << r << ", " << c << ": " << x << ", not " << y;
  });
  EXPECT_EQ(faults, 0) << what;
}

inline void expect_near(Matrix& got, Matrix& want, const std::string& what = "") {
  expect_near(got, want, tolerance(want.dtype()), what);
}

// ||got - want|| <= bound ||want||, and no NaN where the reference has none. Rows that neither
// wrote are NaN on both sides.
inline void expect_near_in_norm(Matrix& got, Matrix& want, double bound, const char* what) {
  double apart = 0, size = 0;
  int64_t strays = 0;
  want.each([&](int64_t r, int64_t c) {
    const double g = got.get(r, c), w = want.get(r, c);
    strays += std::isnan(g) != std::isnan(w);
    if (std::isnan(g) || std::isnan(w)) return;
    apart += (g - w) * (g - w), size += w * w;
  });
  EXPECT_EQ(strays, 0) << what;
  EXPECT_LE(std::sqrt(apart), bound * std::sqrt(size)) << what;
}

// Calls the CPU function of an op; or, twice, the CUDA one, and waits (replay_gate.h):
//   run(backend, args, activation_cpu, TROUPE_CUDA_PATH(activation_cuda));
template <class Args>
void run(Backend backend, const Args& args,
         std::type_identity_t<void (*)(const Args&, const Pool&)> cpu,
         [[maybe_unused]] std::type_identity_t<void (*)(const Args&, cudaStream_t)> cuda) {
  if (backend != Backend::kCuda) return cpu(args, pool(backend));
#ifdef TROUPE_CUDA
  replay([&] { cuda(args, /*stream=*/nullptr); }, /*busy=*/true);
#endif
}

// The same for a kernel whose CPU path is ATen's: its reference stands in for it.
template <class Args>
void run_reference(
    Backend backend, const Args& args, std::type_identity_t<void (*)(const Args&)> ref,
    [[maybe_unused]] std::type_identity_t<void (*)(const Args&, cudaStream_t)> cuda) {
  if (backend != Backend::kCuda) return ref(args);
#ifdef TROUPE_CUDA
  replay([&] { cuda(args, /*stream=*/nullptr); }, /*busy=*/true);
#endif
}

inline std::string backend_name(const ::testing::TestParamInfo<Backend>& info) {
  return name(info.param);
}

// A build without CUDA has no such function to name.
#ifdef TROUPE_CUDA
#define TROUPE_CUDA_PATH(function) function
#else
#define TROUPE_CUDA_PATH(function) nullptr
#endif

}  // namespace troupe::testing
