#include "troupe/ops/moe_ffn_cpu.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "troupe/kernels/activation/activation.h"
#include "troupe/ops/blas.h"
#include "troupe/ops/run.h"
#include "troupe/ops/tasks.h"

namespace troupe {
namespace {

constexpr int64_t kBlockRows = 512;  // rows of a task: what BLAS packs of a weight serves them all
constexpr int64_t kBlockColumns = 256;  // columns of a weight gradient's task
constexpr int64_t kGatherRows = 2048;   // rows that a weight gradient gathers at a time

struct Block {
  int64_t expert, begin, end;
  int64_t rows() const { return end - begin; }
};

template <class T>
std::vector<Block> row_blocks(const FfnProblem<T>& p) {
  std::vector<Block> blocks;
  for (int64_t e = 0; e < p.experts; ++e) {
    const int64_t end = p.expert_offset[e] + p.counts[e];
    for (int64_t r = p.expert_offset[e]; r < end; r += kBlockRows) {
      blocks.push_back({e, r, std::min(r + kBlockRows, end)});
    }
  }
  return blocks;
}

// One block of memory a worker, reused for all its tasks.
template <class T>
class WorkerScratch {
 public:
  explicit WorkerScratch(int64_t each) : each_(each), memory_(new T[task_workers() * each]) {}
  T* of(int64_t worker) { return memory_.get() + worker * each_; }

 private:
  int64_t each_;
  std::unique_ptr<T[]> memory_;
};

// Rows [begin, begin + rows) of the packed order, columns [first, first + n).
struct Part {
  int64_t begin, rows, first, n;
};

// to[i, :] = from[row_src[begin + i], first : first + n]
template <class T>
void gather(const FfnProblem<T>& p, const T* from, const Part& part, T* to) {
  const auto& [begin, rows, first, n] = part;
  for (int64_t i = 0; i < rows; ++i, to += n) {
    std::memcpy(to, from + p.row_src[begin + i] * p.width + first, n * sizeof(T));
  }
}

template <class T>
void scores_of(const FfnProblem<T>& p, const Block& b, T* scores) {
  for (int64_t i = 0; i < b.rows(); ++i) {
    scores[i] = p.weights[p.row_slot[b.begin + i]];
  }
}

// rows[i, :] += (scale ? scale[i] : 1) * bias
template <class T>
void add_bias(const T* bias, int64_t rows, int64_t n, const T* scale, T* to) {
  for (int64_t i = 0; i < rows; ++i, to += n) {
    const T s = scale != nullptr ? scale[i] : T(1);
    for (int64_t j = 0; j < n; ++j) to[j] += s * bias[j];
  }
}

// out[t, :] = sum over k, in order, of rows[slot_row[t, k], :]
template <class T>
void combine_rows(const FfnProblem<T>& p, int64_t tokens, const T* rows, T* out) {
  torch_pool()(tokens, 16, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      T* to = out + t * p.width;
      bool first = true;
      for (int64_t k = 0; k < p.choices; ++k) {
        const int64_t r = p.slot_row[t * p.choices + k];
        if (r < 0) continue;
        const T* from = rows + r * p.width;
        if (first) {
          std::memcpy(to, from, p.width * sizeof(T));
        } else {
          for (int64_t d = 0; d < p.width; ++d) to[d] += from[d];
        }
        first = false;
      }
      if (first) std::fill_n(to, p.width, T(0));
    }
  });
}

template <class T>
MutRef write_view(T* data, int64_t rows, int64_t cols) {
  return {data, dtype_of<T>, rows, cols, cols};
}

template <class T>
MatRef read_view(const T* data, int64_t rows, int64_t cols) {
  return {data, dtype_of<T>, rows, cols, cols};
}

// To the type in which H is kept, so that backward computes A from the same bits.
template <class T>
void round_to(Dtype dtype, int64_t n, T* x) {
  if (dtype == dtype_of<T>) return;
  dispatch_float(dtype, [&]<class Stored>() {
    for (int64_t i = 0; i < n; ++i) {
      x[i] = static_cast<float>(static_cast<Stored>(static_cast<float>(x[i])));
    }
  });
}

template <class T>
void up_block(const FfnProblem<T>& p, const Block& b, T* x_block, T* hidden) {
  const int64_t G = p.hidden_columns(), m = b.rows();
  gather(p, p.x, {b.begin, m, 0, p.width}, x_block);
  T* h = hidden + b.begin * G;
  gemm<T>(
      {m, G, p.width, {x_block, p.width}, {p.w1 + b.expert * G * p.width, p.width, true}, 0, h, G});
  if (p.b1 != nullptr) add_bias<T>(p.b1 + b.expert * G, m, G, nullptr, h);
  round_to(p.stored, m * G, h);
}

}  // namespace

template <class T>
void moe_ffn_forward_cpu(const FfnProblem<T>& p, T* hidden, T* rows_D, T* out) {
  const std::vector<Block> blocks = row_blocks(p);
  const int64_t G = p.hidden_columns(), D = p.width, F = p.hidden;
  WorkerScratch<T> scratch(kBlockRows * (D + F + 1));
  run_tasks(static_cast<int64_t>(blocks.size()), [&](int64_t i, int64_t worker) {
    const Block& b = blocks[i];
    T* x_block = scratch.of(worker);
    T* act = x_block + kBlockRows * D;
    T* scores = act + kBlockRows * F;
    up_block(p, b, x_block, hidden);
    if (out == nullptr) return;
    scores_of(p, b, scores);
    activation_cpu({.h = read_view(hidden + b.begin * G, b.rows(), G),
                    .u = write_view(act, b.rows(), F),
                    .score = read_view(scores, b.rows(), 1),
                    .kind = p.kind},
                   serial);
    T* y = rows_D + b.begin * D;
    gemm<T>({b.rows(), D, F, {act, F}, {p.w2 + b.expert * D * F, F, true}, 0, y, D});
    if (p.b2 != nullptr) add_bias<T>(p.b2 + b.expert * D, b.rows(), D, scores, y);
  });
  if (out != nullptr) combine_rows(p, p.tokens, rows_D, out);
}

namespace {

template <class T>
T row_product(const T* a, const T* b, int64_t n) {
  T sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// Everything that a block of rows needs alone: dH, A, the scores' gradient, the rows of dX.
template <class T>
class RowsBackward {
 public:
  RowsBackward(const FfnProblem<T>& p, const T* hidden, const T* grad_out,
               const FfnScratch<T>& scratch, const FfnGradients<T>& out)
      : p_(p), hidden_(hidden), grad_out_(grad_out), scratch_(scratch), out_(out) {}

  int64_t scratch_size() const { return kBlockRows * (p_.width + p_.hidden + 2); }

  void run(const Block& b, T* memory) const {
    const int64_t m = b.rows(), D = p_.width, F = p_.hidden, G = p_.hidden_columns();
    T* grad_y = memory;
    T* grad_act = grad_y + kBlockRows * D;
    T* scores = grad_act + kBlockRows * F;
    T* grad_scores = scores + kBlockRows;
    gather(p_, grad_out_, {b.begin, m, 0, D}, grad_y);
    gemm<T>({m, F, D, {grad_y, D}, {p_.w2 + b.expert * D * F, F}, 0, grad_act, F});
    scores_of(p_, b, scores);
    T* grad_h = scratch_.grad_hidden + b.begin * G;
    activation_backward_cpu({.h = read_view(hidden_ + b.begin * G, m, G),
                             .grad_u = read_view(grad_act, m, F),
                             .grad_h = write_view(grad_h, m, G),
                             .score = read_view(scores, m, 1),
                             .grad_score = write_view(grad_scores, m, 1),
                             .u = write_view(scratch_.act + b.begin * F, m, F),
                             .kind = p_.kind},
                            serial);
    store_score_gradients(b, grad_y, grad_scores);
    if (out_.x == nullptr) return;
    gemm<T>(
        {m, D, G, {grad_h, G}, {p_.w1 + b.expert * G * D, D}, 0, scratch_.rows_D + b.begin * D, D});
  }

 private:
  void store_score_gradients(const Block& b, const T* grad_y, const T* grad_scores) const {
    if (out_.weights == nullptr) return;
    const int64_t D = p_.width;
    for (int64_t i = 0; i < b.rows(); ++i) {
      const int64_t slot = p_.row_slot[b.begin + i];
      const T bias = p_.b2 == nullptr ? T(0) : row_product(grad_y + i * D, p_.b2 + b.expert * D, D);
      out_.weights[slot] = grad_scores[i] + bias;
    }
  }

  const FfnProblem<T>& p_;
  const T* hidden_;
  const T* grad_out_;
  const FfnScratch<T>& scratch_;
  const FfnGradients<T>& out_;
};

// A weight gradient's task: columns [first, first + n) of D, all rows of one expert, in fixed
// order.
//   dW1_e[:, cols] = dH_e^T x[row_src, cols]      dW2_e[cols, :] = dOut[row_src, cols]^T A_e
struct WeightTask {
  int64_t expert, first, n;
  bool of_w1;
};

template <class T>
class WeightsBackward {
 public:
  WeightsBackward(const FfnProblem<T>& p, const T* grad_out, const FfnScratch<T>& scratch,
                  const FfnGradients<T>& out)
      : p_(p), grad_out_(grad_out), scratch_(scratch), out_(out) {}

  int64_t scratch_size() const { return kGatherRows * kBlockColumns; }

  std::vector<WeightTask> tasks() const {
    std::vector<WeightTask> all;
    for (int64_t e = 0; e < p_.experts; ++e) {
      for (int64_t d = 0; d < p_.width; d += kBlockColumns) {
        const int64_t n = std::min(kBlockColumns, p_.width - d);
        if (out_.w1 != nullptr) all.push_back({e, d, n, true});
        if (out_.w2 != nullptr) all.push_back({e, d, n, false});
      }
    }
    return all;
  }

  void run(const WeightTask& t, T* gathered) const {
    const int64_t D = p_.width, F = p_.hidden, G = p_.hidden_columns();
    T* to = t.of_w1 ? out_.w1 + t.expert * G * D + t.first : out_.w2 + (t.expert * D + t.first) * F;
    const int64_t begin = p_.expert_offset[t.expert], end = begin + p_.counts[t.expert];
    int64_t r = begin;
    do {  // Once even without rows: the gradient of an expert without tokens is written as zero
          // (E2).
      const int64_t rows = std::min(kGatherRows, end - r);
      const T beta = r == begin ? T(0) : T(1);
      gather(p_, t.of_w1 ? p_.x : grad_out_, {r, rows, t.first, t.n}, gathered);
      if (t.of_w1) {
        gemm<T>(
            {G, t.n, rows, {scratch_.grad_hidden + r * G, G, true}, {gathered, t.n}, beta, to, D});
      } else {
        gemm<T>({t.n, F, rows, {gathered, t.n, true}, {scratch_.act + r * F, F}, beta, to, F});
      }
      r += rows;
    } while (r < end);
  }

  void bias_gradients(int64_t e) const {
    const int64_t D = p_.width, G = p_.hidden_columns();
    if (out_.b1 != nullptr) std::fill_n(out_.b1 + e * G, G, T(0));
    if (out_.b2 != nullptr) std::fill_n(out_.b2 + e * D, D, T(0));
    for (int64_t i = 0; i < p_.counts[e]; ++i) {
      const int64_t r = p_.expert_offset[e] + i, slot = p_.row_slot[r];
      if (out_.b1 != nullptr) {
        add_bias<T>(scratch_.grad_hidden + r * G, 1, G, nullptr, out_.b1 + e * G);
      }
      if (out_.b2 != nullptr) {
        add_bias<T>(grad_out_ + p_.row_src[r] * D, 1, D, p_.weights + slot, out_.b2 + e * D);
      }
    }
  }

 private:
  const FfnProblem<T>& p_;
  const T* grad_out_;
  const FfnScratch<T>& scratch_;
  const FfnGradients<T>& out_;
};

}  // namespace

template <class T>
void moe_ffn_backward_cpu(const FfnProblem<T>& p, const T* hidden, const T* grad_out,
                          const FfnScratch<T>& scratch, const FfnGradients<T>& out) {
  const std::vector<Block> blocks = row_blocks(p);
  const RowsBackward<T> rows(p, hidden, grad_out, scratch, out);
  if (out.weights != nullptr) std::fill_n(out.weights, p.tokens * p.choices, T(0));
  WorkerScratch<T> row_scratch(rows.scratch_size());
  run_tasks(static_cast<int64_t>(blocks.size()),
            [&](int64_t i, int64_t worker) { rows.run(blocks[i], row_scratch.of(worker)); });

  const WeightsBackward<T> weights(p, grad_out, scratch, out);
  const std::vector<WeightTask> tasks = weights.tasks();
  WorkerScratch<T> gathered(weights.scratch_size());
  run_tasks(static_cast<int64_t>(tasks.size()),
            [&](int64_t i, int64_t worker) { weights.run(tasks[i], gathered.of(worker)); });
  if (out.b1 != nullptr || out.b2 != nullptr) {
    run_tasks(p.experts, [&](int64_t e, int64_t) { weights.bias_gradients(e); });
  }
  if (out.x != nullptr) combine_rows(p, p.tokens, scratch.rows_D, out.x);
}

#define TROUPE_INSTANTIATE(T)                                                     \
  template void moe_ffn_forward_cpu<T>(const FfnProblem<T>&, T*, T*, T*);         \
  template void moe_ffn_backward_cpu<T>(const FfnProblem<T>&, const T*, const T*, \
                                        const FfnScratch<T>&, const FfnGradients<T>&);
TROUPE_INSTANTIATE(float)
TROUPE_INSTANTIATE(double)
#undef TROUPE_INSTANTIATE

}  // namespace troupe
