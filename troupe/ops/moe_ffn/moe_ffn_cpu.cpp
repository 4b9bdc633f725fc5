#include "troupe/ops/moe_ffn/moe_ffn_cpu.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/kernels/activation/activation.h"
#include "troupe/ops/support/blas.h"
#include "troupe/ops/support/run.h"
#include "troupe/ops/support/tasks.h"

namespace troupe {
namespace {

// Rows of a task, or of a weight whose gradient a task computes.
constexpr int64_t kBlockRows = 512, kFewRows = 128;

struct Block {
  int64_t expert, begin, end;
  int64_t rows() const { return end - begin; }
};

// The fewer rows are left, the fewer a block has: all workers end at about the same time. A row's
// result does not depend on its block.
template <class T>
std::vector<Block> row_blocks(const FfnProblem<T>& p) {
  std::vector<Block> blocks;
  int64_t left = std::accumulate(p.counts, p.counts + p.experts, int64_t{0});
  for (int64_t e = 0; e < p.experts; ++e) {
    const int64_t end = p.expert_offset[e] + p.counts[e];
    for (int64_t r = p.expert_offset[e]; r < end; ++r) {
      TROUPE_CHECK(p.row_src[r] >= 0 && p.row_slot[r] >= 0,
                   "moe_ffn: each row that the plan counts must have a token and a slot; row", r,
                   "has", p.row_src[r], "and", p.row_slot[r]);
    }
    for (int64_t r = p.expert_offset[e]; r < end;) {
      const int64_t fair = std::clamp(left / (4 * task_workers()), kFewRows, kBlockRows);
      blocks.push_back({e, r, std::min(r + fair, end)});
      left -= blocks.back().rows();
      r = blocks.back().end;
    }
  }
  return blocks;
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

template <class T>
MutRef write_view(T* data, int64_t rows, int64_t cols) {
  return {data, dtype_of<T>, rows, cols, cols};
}

template <class T>
MatRef read_view(const T* data, int64_t rows, int64_t cols) {
  return {data, dtype_of<T>, rows, cols, cols};
}

// To the type of x. H: so that backward computes A from the bits that are kept. Rows of Y and dX:
// so that a sum of rows does not depend on where they were made (ranks send them in this type).
template <class T>
void round_to(Dtype dtype, int64_t n, T* x) {
  if (dtype == dtype_of<T>) return;
  dispatch_float(dtype, [&]<class Stored>() {
    for (int64_t i = 0; i < n; ++i) {
      x[i] = static_cast<float>(static_cast<Stored>(static_cast<float>(x[i])));
    }
  });
}

// One expert's weight of a product, out [columns] by in [rows]: as stored, or its transpose.
template <class T>
struct Weight {
  Weight(const T* all, int64_t expert, int64_t out, int64_t in, bool in_by_out)
      : data(all + expert * out * in), ld(in_by_out ? out : in), columns(in_by_out) {}
  Operand<T> forward() const { return {data, ld, !columns}; }  // y = x W^T
  Operand<T> backward() const { return {data, ld, columns}; }  // dx = dy W

  const T* data;
  int64_t ld;
  bool columns;
};

// What makes H's columns [first, first + n): one tensor for all of them, or the gate's and the
// up's.
template <class T>
struct UpPart {
  const T* w;
  int64_t first, n;
};
template <class T>
std::vector<UpPart<T>> up_parts(const FfnProblem<T>& p) {
  if (p.up == nullptr) return {{p.w1, 0, p.hidden_columns()}};
  return {{p.w1, 0, p.hidden}, {p.up, p.hidden, p.hidden}};
}

// g0 u0 g1 u1 ... to g0 g1 ... u0 u1 ..., a row at a time, and back; `row` is scratch.
template <class T>
void to_halves(int64_t rows, int64_t F, T* h, T* row) {
  for (int64_t i = 0; i < rows; ++i, h += 2 * F) {
    std::copy_n(h, 2 * F, row);
    for (int64_t f = 0; f < F; ++f) h[f] = row[2 * f], h[F + f] = row[2 * f + 1];
  }
}
template <class T>
void to_turns(int64_t rows, int64_t F, T* h, T* row) {
  for (int64_t i = 0; i < rows; ++i, h += 2 * F) {
    std::copy_n(h, 2 * F, row);
    for (int64_t f = 0; f < F; ++f) h[2 * f] = row[f], h[2 * f + 1] = row[F + f];
  }
}

template <class T>
void up_block(const FfnProblem<T>& p, const Block& b, T* hidden, T* scratch, T* row) {
  const int64_t G = p.hidden_columns(), m = b.rows(), D = p.width;
  T* h = hidden + b.begin * G;
  const Operand<T> x{p.x, D, false, p.row_src + b.begin};
  for (const UpPart<T>& part : up_parts(p)) {
    const Weight<T> w(part.w, b.expert, part.n, D, p.up_columns);
    gemm<T>({m, part.n, D, x, w.forward(), h + part.first, G}, scratch);
  }
  if (p.b1 != nullptr) add_bias<T>(p.b1 + b.expert * G, m, G, nullptr, h);
  if (p.interleaved) to_halves(m, p.hidden, h, row);
  round_to(p.stored, m * G, h);
}

}  // namespace

template <class T>
void moe_ffn_forward_cpu(const FfnProblem<T>& p, T* hidden, T* rows_D) {
  const std::vector<Block> blocks = row_blocks(p);
  const int64_t G = p.hidden_columns(), D = p.width, F = p.hidden;
  WorkerScratch<T> scratch(kGemmScratch + kBlockRows * (F + 1) + G);
  run_tasks(static_cast<int64_t>(blocks.size()), [&](int64_t i, int64_t worker) {
    const Block& b = blocks[i];
    T* products = scratch.of(worker);
    T* act = products + kGemmScratch;
    T* scores = act + kBlockRows * F;
    up_block(p, b, hidden, products, scores + kBlockRows);
    if (rows_D == nullptr) return;
    scores_of(p, b, scores);
    activation_cpu({.h = read_view(hidden + b.begin * G, b.rows(), G),
                    .u = write_view(act, b.rows(), F),
                    .score = read_view(scores, b.rows(), 1),
                    .kind = p.kind},
                   serial);
    T* y = rows_D + b.begin * D;
    const Weight<T> w2(p.w2, b.expert, D, F, p.down_columns);
    gemm<T>({b.rows(), D, F, {act, F}, w2.forward(), y, D}, products);
    if (p.b2 != nullptr) add_bias<T>(p.b2 + b.expert * D, b.rows(), D, scores, y);
    round_to(p.stored, b.rows() * D, y);
  });
}

template <class T>
void sum_rows_cpu(const FfnProblem<T>& p, const T* rows, T* sums) {
  torch_pool()(p.tokens, 16, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      T* to = sums + t * p.width;
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

  int64_t scratch_size() const {
    return kGemmScratch + kBlockRows * (p_.hidden + 2) + p_.hidden_columns();
  }

  void run(const Block& b, T* memory) const {
    const int64_t m = b.rows(), D = p_.width, F = p_.hidden, G = p_.hidden_columns();
    T* grad_act = memory + kGemmScratch;
    T* scores = grad_act + kBlockRows * F;
    T* grad_scores = scores + kBlockRows;
    const Operand<T> grad_y{grad_out_, D, false, p_.row_src + b.begin};
    const Weight<T> w2(p_.w2, b.expert, D, F, p_.down_columns);
    gemm<T>({m, F, D, grad_y, w2.backward(), grad_act, F}, memory);
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
    store_score_gradients(b, grad_scores);
    if (p_.interleaved) to_turns(m, F, grad_h, grad_scores + kBlockRows);  // as W1's outputs are
    if (scratch_.rows_D == nullptr) return;
    T* grad_x = scratch_.rows_D + b.begin * D;
    for (const UpPart<T>& part : up_parts(p_)) {
      const Weight<T> w(part.w, b.expert, part.n, D, p_.up_columns);
      const Operand<T> grad{grad_h + part.first, G};
      gemm<T>({m, D, part.n, grad, w.backward(), grad_x, D, part.first > 0}, memory);
    }
    round_to(p_.stored, m * D, grad_x);
  }

 private:
  void store_score_gradients(const Block& b, const T* grad_scores) const {
    if (out_.weights == nullptr) return;
    const int64_t D = p_.width;
    for (int64_t i = 0; i < b.rows(); ++i) {
      const int64_t slot = p_.row_slot[b.begin + i];
      const T* grad_y = grad_out_ + p_.row_src[b.begin + i] * D;
      const T bias = p_.b2 == nullptr ? T(0) : row_product(grad_y, p_.b2 + b.expert * D, D);
      out_.weights[slot] = grad_scores[i] + bias;
    }
  }

  const FfnProblem<T>& p_;
  const T* hidden_;
  const T* grad_out_;
  const FfnScratch<T>& scratch_;
  const FfnGradients<T>& out_;
};

// A weight gradient's task: rows [first, first + n) of a weight, all rows of its expert, in order.
//   dW1_e = dH_e^T x[row_src]      dW2_e = dOut[row_src]^T A_e
// A weight that is stored in by out has its gradient's transpose there: the factors change places.
enum class WeightKind { kW1, kUp, kW2 };
struct WeightTask {
  int64_t expert, first, n;
  WeightKind kind;
};

template <class T>
class WeightsBackward {
 public:
  WeightsBackward(const FfnProblem<T>& p, const T* grad_out, const FfnScratch<T>& scratch,
                  const FfnGradients<T>& out)
      : p_(p), grad_out_(grad_out), scratch_(scratch), out_(out) {}

  void add_tasks(int64_t e, std::vector<WeightTask>& all) const {
    for (const WeightKind kind : {WeightKind::kW1, WeightKind::kUp, WeightKind::kW2}) {
      if (gradient_of(kind) == nullptr) continue;
      const auto [a, b] = factors(kind, e);
      for (int64_t r = 0; r < a.columns; r += kBlockRows) {
        all.push_back({e, r, std::min(kBlockRows, a.columns - r), kind});
      }
    }
  }

  // An expert without rows too: its gradient is written as zero (E2).
  void run(const WeightTask& t, T* products) const {
    const auto [a, b] = factors(t.kind, t.expert);
    T* to = gradient_of(t.kind) + (t.expert * a.columns + t.first) * b.columns;
    const Operand<T> left{a.rows.data + t.first, a.rows.ld, true, a.rows.rows};
    gemm<T>({t.n, b.columns, p_.counts[t.expert], left, b.rows, to, b.columns}, products);
  }

  // Rows of an expert, of which the weight's gradient is a^T b.
  struct Factor {
    Operand<T> rows;
    int64_t columns;
  };
  std::pair<Factor, Factor> factors(WeightKind kind, int64_t e) const {
    const int64_t D = p_.width, F = p_.hidden, G = p_.hidden_columns();
    const int64_t begin = p_.expert_offset[e];
    const int32_t* source = p_.row_src + begin;
    if (kind == WeightKind::kW2) {
      const Factor grad_y{{grad_out_, D, false, source}, D};
      const Factor act{{scratch_.act + begin * F, F}, F};
      return p_.down_columns ? std::pair(act, grad_y) : std::pair(grad_y, act);
    }
    const int64_t first = kind == WeightKind::kUp ? F : 0;
    const Factor x{{p_.x, D, false, source}, D};
    const Factor grad_h{{scratch_.grad_hidden + begin * G + first, G}, p_.up == nullptr ? G : F};
    return p_.up_columns ? std::pair(x, grad_h) : std::pair(grad_h, x);
  }

  T* gradient_of(WeightKind kind) const {
    return kind == WeightKind::kW1 ? out_.w1 : kind == WeightKind::kUp ? out_.up : out_.w2;
  }

  void bias_gradients(int64_t e) const {
    const int64_t D = p_.width, G = p_.hidden_columns();
    if (out_.b1 != nullptr) std::fill_n(out_.b1 + e * G, G, T(0));
    if (out_.b2 != nullptr) std::fill_n(out_.b2 + e * D, D, T(0));
    for (int64_t i = 0; i < p_.counts[e]; ++i) {
      const int64_t r = p_.expert_offset[e] + i, slot = p_.row_slot[r];
      if (out_.b1 != nullptr) {  // dH is in the order of W1's outputs
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

// Counts what is still to be done before a task may begin.
class Countdown {
 public:
  void add() { ++left_; }
  void done() {
    if (--left_ == 0) left_.notify_all();
  }
  void wait() const {
    for (int64_t left = left_; left > 0; left = left_) left_.wait(left);
  }

 private:
  std::atomic<int64_t> left_ = 0;
};

struct CountdownGuard {  // also when a task throws: nobody waits forever
  explicit CountdownGuard(Countdown& to) : countdown(to) {}
  ~CountdownGuard() { countdown.done(); }
  CountdownGuard(const CountdownGuard&) = delete;
  CountdownGuard& operator=(const CountdownGuard&) = delete;
  Countdown& countdown;
};

// All tasks of backward, in the order in which they are handed out: the weights of an expert right
// after the next expert's rows. So dH and A are read while they are in the last cache, and whoever
// waits for rows waits for tasks that others already have in hand.
template <class T>
struct TaskOrder {
  struct Task {
    bool is_weight;
    size_t index;
  };

  TaskOrder(const FfnProblem<T>& p, const WeightsBackward<T>& gradients) : blocks(row_blocks(p)) {
    size_t next = 0;
    for (int64_t e = 0; e <= p.experts; ++e) {
      for (; next < blocks.size() && blocks[next].expert == e; ++next)
        tasks.push_back({false, next});
      if (e > 0) gradients.add_tasks(e - 1, weights);
      while (tasks.size() < next + weights.size()) tasks.push_back({true, tasks.size() - next});
    }
  }

  std::vector<Block> blocks;
  std::vector<WeightTask> weights;
  std::vector<Task> tasks;
};

}  // namespace

template <class T>
void moe_ffn_backward_cpu(const FfnProblem<T>& p, const T* hidden, const T* grad_out,
                          const FfnScratch<T>& scratch, const FfnGradients<T>& out) {
  if (out.weights != nullptr) std::fill_n(out.weights, p.tokens * p.choices, T(0));
  const RowsBackward<T> rows(p, hidden, grad_out, scratch, out);
  const WeightsBackward<T> weights(p, grad_out, scratch, out);
  const TaskOrder<T> order(p, weights);
  std::vector<Countdown> missing(p.experts);
  for (const Block& b : order.blocks) missing[b.expert].add();
  WorkerScratch<T> memory(rows.scratch_size());
  run_tasks(static_cast<int64_t>(order.tasks.size()), [&](int64_t i, int64_t worker) {
    const auto [is_weight, index] = order.tasks[i];
    if (is_weight) {
      const WeightTask& task = order.weights[index];
      missing[task.expert].wait();
      weights.run(task, memory.of(worker));
    } else {
      const CountdownGuard done(missing[order.blocks[index].expert]);
      rows.run(order.blocks[index], memory.of(worker));
    }
  });
  if (out.b1 != nullptr || out.b2 != nullptr) {
    run_tasks(p.experts, [&](int64_t e, int64_t) { weights.bias_gradients(e); });
  }
}

template <class T>
void moe_ffn_rows_backward_cpu(const FfnProblem<T>& p, const T* hidden, const T* grad_out,
                               const FfnScratch<T>& scratch, const FfnGradients<T>& out) {
  if (out.weights != nullptr) std::fill_n(out.weights, p.tokens * p.choices, T(0));
  const RowsBackward<T> rows(p, hidden, grad_out, scratch, out);
  const std::vector<Block> blocks = row_blocks(p);
  WorkerScratch<T> memory(rows.scratch_size());
  run_tasks(static_cast<int64_t>(blocks.size()),
            [&](int64_t i, int64_t worker) { rows.run(blocks[i], memory.of(worker)); });
}

template <class T>
void moe_ffn_weights_backward_cpu(const FfnProblem<T>& p, const T* grad_out,
                                  const FfnScratch<T>& scratch, const FfnGradients<T>& out) {
  const WeightsBackward<T> weights(p, grad_out, scratch, out);
  std::vector<WeightTask> tasks;
  for (int64_t e = 0; e < p.experts; ++e) weights.add_tasks(e, tasks);
  WorkerScratch<T> memory(kGemmScratch);
  run_tasks(static_cast<int64_t>(tasks.size()),
            [&](int64_t i, int64_t worker) { weights.run(tasks[i], memory.of(worker)); });
  if (out.b1 == nullptr && out.b2 == nullptr) return;
  run_tasks(p.experts, [&](int64_t e, int64_t) { weights.bias_gradients(e); });
}

#define TROUPE_INSTANTIATE(T)                                                               \
  template void moe_ffn_forward_cpu<T>(const FfnProblem<T>&, T*, T*);                       \
  template void sum_rows_cpu<T>(const FfnProblem<T>&, const T*, T*);                        \
  template void moe_ffn_backward_cpu<T>(const FfnProblem<T>&, const T*, const T*,           \
                                        const FfnScratch<T>&, const FfnGradients<T>&);      \
  template void moe_ffn_rows_backward_cpu<T>(const FfnProblem<T>&, const T*, const T*,      \
                                             const FfnScratch<T>&, const FfnGradients<T>&); \
  template void moe_ffn_weights_backward_cpu<T>(const FfnProblem<T>&, const T*,             \
                                                const FfnScratch<T>&, const FfnGradients<T>&);
TROUPE_INSTANTIATE(float)
TROUPE_INSTANTIATE(double)
#undef TROUPE_INSTANTIATE

}  // namespace troupe
