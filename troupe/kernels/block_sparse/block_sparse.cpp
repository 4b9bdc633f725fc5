// The contract, and the reference: S is written out dense, and multiplied by the book.
#include "troupe/kernels/block_sparse/block_sparse.h"

#include <limits>
#include <vector>

namespace troupe {
namespace {

// The device adds up to a tile's size to 32-bit rows and columns.
constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max() - 1024;

template <class T>
double wide(T v) {
  return static_cast<Wide<T>>(v);
}
template <class T>
T rounded(double v) {
  return static_cast<T>(static_cast<Wide<T>>(v));
}

struct Size {
  int64_t rows, cols;
};

Size size_of(const DenseOperand& x) {
  if (x.transpose) return {x.matrix.cols, x.matrix.rows};
  return {x.matrix.rows, x.matrix.cols};
}

void check_topology(const BlockTopology& t) {
  TROUPE_CHECK(t.block > 0, "block", t.block);
  TROUPE_CHECK(0 <= t.rows && t.rows <= kMaxInt && t.rows % t.block == 0, "rows", t.rows,
               "in blocks of", t.block);
  TROUPE_CHECK(0 <= t.cols && t.cols <= kMaxInt && t.cols % t.block == 0, "cols", t.cols,
               "in blocks of", t.block);
  TROUPE_CHECK(0 <= t.blocks && t.blocks <= kMaxInt, "blocks", t.blocks);
  TROUPE_CHECK(t.row_offsets != nullptr && t.col_offsets != nullptr);
  TROUPE_CHECK(t.blocks == 0 || (t.col_indices != nullptr && t.row_indices != nullptr &&
                                 t.block_order != nullptr),
               "a topology of", t.blocks, "blocks lacks indices");
}

template <class View>
void check_values(const BlockTopology& t, const View& x, Dtype dtype) {
  TROUPE_CHECK(x.rows == t.blocks * t.block && x.cols == t.block && x.ld == t.block, "values are",
               x.rows, "x", x.cols, "with leading dimension", x.ld, "for", t.blocks, "blocks of",
               t.block);
  TROUPE_CHECK(x.data != nullptr || t.blocks == 0, "values are null");
  TROUPE_CHECK(x.dtype == dtype, "values are", name(x.dtype), "the dense operand", name(dtype));
}

template <class View>
void check_dense(const char* what, const View& x, Dtype dtype) {
  TROUPE_CHECK(0 <= x.rows && x.rows <= kMaxInt && 0 <= x.cols && x.cols <= kMaxInt, what, "is",
               x.rows, "x", x.cols);
  TROUPE_CHECK(x.ld >= x.cols && x.ld <= kMaxInt, what, "has", x.cols, "columns, leading dimension",
               x.ld);
  TROUPE_CHECK(x.data != nullptr || x.rows * x.cols == 0, what, "is null");
  TROUPE_CHECK(x.dtype == dtype, what, "is", name(x.dtype), "not", name(dtype));
}

Size sparse_size(const BlockTopology& t, bool transpose) {
  return transpose ? Size{t.cols, t.rows} : Size{t.rows, t.cols};
}

// What a formula reads: element (i, j) of a dense operand, or of S written out.
template <class T>
double at(const DenseOperand& x, int64_t i, int64_t j) {
  const auto m = x.matrix.as<T>();
  return wide(x.transpose ? m(j, i) : m(i, j));
}

// op(S) with its zeros, and which of its elements are stored: a zero that is stored meets a NaN of
// the other operand, one that is not does not.
struct WrittenOut {
  int64_t cols;
  bool transpose;
  std::vector<double> values;
  std::vector<char> stored;

  // Adds op(S)[i, j] other(), if there is such an element.
  template <class Other>
  void add_product(double& sum, int64_t i, int64_t j, Other&& other) const {
    const int64_t at = transpose ? j * cols + i : i * cols + j;
    if (stored[at]) sum += values[at] * other();
  }
};

template <class T>
WrittenOut write_out(const BlockTopology& t, const MatRef& values, bool transpose) {
  WrittenOut s{t.cols, transpose, std::vector<double>(t.rows * t.cols),
               std::vector<char>(t.rows * t.cols)};
  const auto v = values.as<T>();
  for (int64_t row = 0; row < t.rows; ++row) {
    for (int64_t p = t.row_offsets[row / t.block]; p < t.row_offsets[row / t.block + 1]; ++p) {
      for (int64_t c = 0; c < t.block; ++c) {
        const int64_t at = row * t.cols + t.col_indices[p] * t.block + c;
        s.values[at] = wide(v(p * t.block + row % t.block, c));
        s.stored[at] = 1;
      }
    }
  }
  return s;
}

}  // namespace

void validate(const BlockSdd& x) {
  check_topology(x.topology);
  const Dtype dtype = x.a.matrix.dtype;
  check_dense("a", x.a.matrix, dtype);
  check_dense("b", x.b.matrix, dtype);
  check_values(x.topology, x.c, dtype);
  const Size a = size_of(x.a), b = size_of(x.b);
  TROUPE_CHECK(
      a.rows == x.topology.rows && b.cols == x.topology.cols && a.cols == b.rows && a.cols > 0,
      "op(a) is", a.rows, "x", a.cols, "op(b)", b.rows, "x", b.cols, "for a matrix of",
      x.topology.rows, "x", x.topology.cols);
}

void validate(const BlockDsd& x) {
  check_topology(x.topology);
  const Dtype dtype = x.b.matrix.dtype;
  check_dense("b", x.b.matrix, dtype);
  check_dense("c", x.c, dtype);
  check_values(x.topology, x.a, dtype);
  const Size s = sparse_size(x.topology, x.transpose_a), b = size_of(x.b);
  TROUPE_CHECK(s.cols == b.rows && x.c.rows == s.rows && x.c.cols == b.cols && b.cols > 0,
               "op(S) is", s.rows, "x", s.cols, "op(b)", b.rows, "x", b.cols, "c", x.c.rows, "x",
               x.c.cols);
}

void validate(const BlockDds& x) {
  check_topology(x.topology);
  const Dtype dtype = x.a.matrix.dtype;
  check_dense("a", x.a.matrix, dtype);
  check_dense("c", x.c, dtype);
  check_values(x.topology, x.b, dtype);
  const Size s = sparse_size(x.topology, x.transpose_b), a = size_of(x.a);
  TROUPE_CHECK(a.cols == s.rows && x.c.rows == a.rows && x.c.cols == s.cols && a.rows > 0,
               "op(a) is", a.rows, "x", a.cols, "op(S)", s.rows, "x", s.cols, "c", x.c.rows, "x",
               x.c.cols);
}

int64_t flops(const BlockSdd& x, int64_t true_blocks) {
  return 2 * true_blocks * x.topology.block * x.topology.block * size_of(x.a).cols;
}
int64_t flops(const BlockDsd& x, int64_t true_blocks) {
  return 2 * true_blocks * x.topology.block * x.topology.block * x.c.cols;
}
int64_t flops(const BlockDds& x, int64_t true_blocks) {
  return 2 * true_blocks * x.topology.block * x.topology.block * x.c.rows;
}

void block_sdd_ref(const BlockSdd& x) {
  validate(x);
  const BlockTopology& t = x.topology;
  dispatch_float64(x.c.dtype, [&]<class T>() {
    for (int64_t row = 0; row < t.rows; ++row) {
      for (int64_t p = t.row_offsets[row / t.block]; p < t.row_offsets[row / t.block + 1]; ++p) {
        for (int64_t c = 0; c < t.block; ++c) {
          double sum = 0;
          for (int64_t k = 0; k < size_of(x.a).cols; ++k) {
            sum += at<T>(x.a, row, k) * at<T>(x.b, k, t.col_indices[p] * t.block + c);
          }
          x.c.as<T>()(p * t.block + row % t.block, c) = rounded<T>(sum);
        }
      }
    }
  });
}

void block_dsd_ref(const BlockDsd& x) {
  validate(x);
  dispatch_float64(x.c.dtype, [&]<class T>() {
    const WrittenOut s = write_out<T>(x.topology, x.a, x.transpose_a);
    for (int64_t i = 0; i < x.c.rows; ++i) {
      for (int64_t n = 0; n < x.c.cols; ++n) {
        double sum = 0;
        for (int64_t k = 0; k < size_of(x.b).rows; ++k) {
          s.add_product(sum, i, k, [&] { return at<T>(x.b, k, n); });
        }
        x.c.as<T>()(i, n) = rounded<T>(sum);
      }
    }
  });
}

void block_dds_ref(const BlockDds& x) {
  validate(x);
  dispatch_float64(x.c.dtype, [&]<class T>() {
    const WrittenOut s = write_out<T>(x.topology, x.b, x.transpose_b);
    for (int64_t m = 0; m < x.c.rows; ++m) {
      for (int64_t j = 0; j < x.c.cols; ++j) {
        double sum = 0;
        for (int64_t k = 0; k < size_of(x.a).cols; ++k) {
          s.add_product(sum, k, j, [&] { return at<T>(x.a, m, k); });
        }
        x.c.as<T>()(m, j) = rounded<T>(sum);
      }
    }
  });
}

}  // namespace troupe
