#include "troupe/ops/gated_delta.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/linalg_solve_triangular.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "troupe/core/check.h"
#include "troupe/ops/support/autograd.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

// Where tokens stand in chunks. Step s holds the s-th chunks of all documents that have so many,
// those with most chunks first, so that the documents of a step are the first ones of the step
// before.
class DeltaChunks {
 public:
  explicit DeltaChunks(const std::vector<int64_t>& lengths)
      : order_(lengths.size()),
        size_(lengths.empty() ? 1
                              : std::clamp<int64_t>(std::ranges::max(lengths), 1, kDeltaChunk)) {
    std::iota(order_.begin(), order_.end(), 0);
    std::ranges::stable_sort(order_, [&](int64_t a, int64_t b) { return lengths[a] > lengths[b]; });
    std::vector<int64_t> begin(lengths.size());
    std::exclusive_scan(lengths.begin(), lengths.end(), begin.begin(), int64_t{0});
    places_.resize(std::accumulate(lengths.begin(), lengths.end(), size_t{0}));
    for (int64_t from = 0; !order_.empty() && from < lengths[order_[0]]; from += size_) {
      int64_t documents = 0;
      for (const int64_t d : order_) {
        if (lengths[d] <= from) break;
        const int64_t n = std::min(size_, lengths[d] - from), at = (count_ + documents) * size_;
        const auto first = places_.begin() + begin[d] + from;
        std::iota(first, first + n, at);
        ++documents;
      }
      steps_.push_back({count_, documents});
      count_ += documents;
    }
  }

  struct Step {
    int64_t first, documents;  // its chunks, one a document
  };
  const std::vector<Step>& steps() const { return steps_; }
  const std::vector<int64_t>& order() const { return order_; }
  int64_t count() const { return count_; }
  int64_t size() const { return size_; }
  at::Tensor places(c10::Device device) const { return at::tensor(places_, at::kLong).to(device); }
  at::Tensor documents(c10::Device device) const {
    return at::tensor(order_, at::kLong).to(device);
  }

 private:
  std::vector<int64_t> order_, places_;
  int64_t size_, count_ = 0;
  std::vector<Step> steps_;
};

// x [T, h, ..] to [chunks, h, place, ..], zeros where a chunk is not full.
at::Tensor to_chunks(const at::Tensor& x, const at::Tensor& places, const DeltaChunks& chunks) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[0] = chunks.count() * chunks.size();
  const at::Tensor flat = at::zeros(sizes, x.options().dtype(wide_type(x)));
  flat.index_copy_(0, places, x.to(flat.scalar_type()));
  return flat.unflatten(0, {chunks.count(), chunks.size()}).transpose(1, 2).contiguous();
}
at::Tensor from_chunks(const at::Tensor& x, const at::Tensor& places) {
  return x.transpose(1, 2).flatten(0, 1).index_select(0, places);
}

at::Tensor transposed(const at::Tensor& x) {
  return x.transpose(-1, -2);
}
at::Tensor row_sums(const at::Tensor& x) {
  return x.sum(-1);
}

// Rows divided by their lengths, and what by.
struct UnitRows {
  UnitRows(const at::Tensor& x, double eps)
      : inverse(at::rsqrt((x * x).sum(-1, true) + eps)), rows(x * inverse) {}

  at::Tensor backward(const at::Tensor& grad) const {
    return inverse * (grad - rows * (rows * grad).sum(-1, true));
  }

  at::Tensor inverse, rows;
};

// What a chunk is made of without its state; [chunks, H, ..] but for the two with G heads.
struct ChunkParts {
  UnitRows unit_q, unit_k;
  at::Tensor v, beta;                             // [.., C, e], [.., C]
  at::Tensor q = {}, k = {};                      // [.., C, d]
  at::Tensor since_start = {}, left = {};         // exp(c), exp(c_last - c): [.., C, 1]
  at::Tensor kept = {};                           // exp(c_last): [.., 1, 1]
  at::Tensor decay = {}, m = {}, a = {}, p = {};  // [.., C, C]: exp(c_i - c_j), A / beta, A, P
  at::Tensor u = {}, w = {};                      // [.., C, e], [.., C, d]
};

at::Tensor pair_decay(const at::Tensor& c) {
  const int64_t C = c.size(-1);
  const at::Tensor later = at::ones({C, C}, c.options().dtype(at::kBool)).triu(1);
  const at::Tensor between = c.unsqueeze(-1) - c.unsqueeze(-2);
  return at::exp(between.masked_fill(later, -std::numeric_limits<double>::infinity()));
}

ChunkParts parts_of(const GatedDeltaInputs& in, const at::Tensor& places, const DeltaChunks& chunks,
                    double eps) {
  const auto chunked = [&](const at::Tensor& x) { return to_chunks(x, places, chunks); };
  const int64_t d = in.q_TGd.size(2), copies = in.v_THe.size(1) / in.q_TGd.size(1);
  ChunkParts out{.unit_q = UnitRows(chunked(in.q_TGd), eps),
                 .unit_k = UnitRows(chunked(in.k_TGd), eps),
                 .v = chunked(in.v_THe),
                 .beta = chunked(in.beta_TH)};
  out.q = (out.unit_q.rows / std::sqrt(static_cast<double>(d))).repeat_interleave(copies, 1);
  out.k = out.unit_k.rows.repeat_interleave(copies, 1);
  const at::Tensor c = chunked(in.g_TH).cumsum(-1), last = c.narrow(-1, chunks.size() - 1, 1);
  out.since_start = at::exp(c).unsqueeze(-1);
  out.left = at::exp(last - c).unsqueeze(-1);
  out.kept = at::exp(last).unsqueeze(-1);
  out.decay = pair_decay(c);
  out.m = (at::matmul(out.k, transposed(out.k)) * out.decay).tril(-1);
  out.a = out.m * out.beta.unsqueeze(-1);
  out.p = at::matmul(out.q, transposed(out.k)) * out.decay;
  const at::Tensor beta = out.beta.unsqueeze(-1);
  const at::Tensor right = at::cat({out.v * beta, out.k * (beta * out.since_start)}, -1);
  const at::Tensor solved = at::linalg_solve_triangular(out.a, right, /*upper=*/false,
                                                        /*left=*/true, /*unitriangular=*/true);
  out.u = solved.narrow(-1, 0, out.v.size(-1));
  out.w = solved.narrow(-1, out.v.size(-1), d);
  return out;
}

// The states before all chunks, and behind each document's last in the order of `state`, which is
// overwritten.
at::Tensor states_before(const ChunkParts& x, const DeltaChunks& chunks, const at::Tensor& state) {
  std::vector<int64_t> sizes = state.sizes().vec();
  sizes[0] = chunks.count();
  at::Tensor out = at::empty(sizes, state.options());
  const at::Tensor keys = x.k * x.left;
  for (const auto [first, n] : chunks.steps()) {
    const auto part = [&, first = first, n = n](const at::Tensor& all) {
      return all.narrow(0, first, n);
    };
    const at::Tensor s = state.narrow(0, 0, n);
    part(out).copy_(s);
    const at::Tensor fresh = part(x.u) - at::matmul(part(x.w), s);
    s.mul_(part(x.kept)).add_(at::matmul(transposed(part(keys)), fresh));
  }
  return out;
}

struct ChunkGradients {
  at::Tensor fresh;  // of N
  at::Tensor after;  // of the state behind each chunk
};
ChunkGradients through_states(const ChunkParts& x, const DeltaChunks& chunks,
                              const at::Tensor& grad_o, const at::Tensor& before) {
  ChunkGradients out{at::matmul(transposed(x.p), grad_o), at::empty_like(before)};
  const at::Tensor keys = x.k * x.left, queries = x.q * x.since_start;
  std::vector<int64_t> sizes = before.sizes().vec();
  sizes[0] = static_cast<int64_t>(chunks.order().size());
  const at::Tensor state = at::zeros(sizes, before.options());
  for (size_t i = chunks.steps().size(); i-- > 0;) {
    const auto [first, n] = chunks.steps()[i];
    const auto part = [&, first = first, n = n](const at::Tensor& all) {
      return all.narrow(0, first, n);
    };
    const at::Tensor s = state.narrow(0, 0, n);
    part(out.after).copy_(s);
    const at::Tensor fresh = part(out.fresh).add_(at::matmul(part(keys), s));
    s.mul_(part(x.kept))
        .add_(at::matmul(transposed(part(queries)), part(grad_o)))
        .sub_(at::matmul(transposed(part(x.w)), fresh));
  }
  return out;
}

// Sums over the heads that share a key head.
at::Tensor of_key_heads(const at::Tensor& grad, int64_t heads) {
  return grad.unflatten(1, {heads, -1}).sum(2);
}

struct DeltaGradients {
  at::Tensor q, k, v, g, beta;  // [chunks, heads, ..]
};
DeltaGradients chunk_backward(const ChunkParts& x, const DeltaChunks& chunks,
                              const at::Tensor& grad_o, const at::Tensor& before) {
  const int64_t e = x.v.size(-1), d = x.k.size(-1), G = x.unit_k.rows.size(1);
  const at::Tensor fresh = x.u - at::matmul(x.w, before);
  const auto [grad_fresh, after] = through_states(x, chunks, grad_o, before);
  const at::Tensor grad_p = at::matmul(grad_o, transposed(fresh));
  const at::Tensor grad_queries = at::matmul(grad_o, transposed(before));  // of exp(c) q
  const at::Tensor grad_keys = at::matmul(fresh, transposed(after));       // of exp(c_last - c) k
  const at::Tensor grad_solved =
      at::cat({grad_fresh, -at::matmul(grad_fresh, transposed(before))}, -1);
  const at::Tensor grad_right = at::linalg_solve_triangular(
      transposed(x.a), grad_solved, /*upper=*/true, /*left=*/true, /*unitriangular=*/true);
  const at::Tensor grad_a = -at::matmul(grad_right, transposed(at::cat({x.u, x.w}, -1))).tril(-1);
  const at::Tensor grad_bv = grad_right.narrow(-1, 0, e), grad_bk = grad_right.narrow(-1, e, d);
  const at::Tensor beta = x.beta.unsqueeze(-1), weight = beta * x.since_start;
  const at::Tensor grad_qk = grad_p * x.decay, grad_kk = grad_a * beta * x.decay;
  const at::Tensor q = at::matmul(grad_qk, x.k) + x.since_start * grad_queries;
  const at::Tensor k = at::matmul(transposed(grad_qk), x.q) +
                       at::matmul(grad_kk + transposed(grad_kk), x.k) + weight * grad_bk +
                       x.left * grad_keys;
  const at::Tensor read = row_sums(grad_bk * x.k) * x.since_start.squeeze(-1);
  const at::Tensor pairs = grad_p * x.p + grad_a * x.a;  // of c_i - c_j
  const at::Tensor written = row_sums(grad_keys * x.k) * x.left.squeeze(-1);
  const at::Tensor c = row_sums(pairs) - pairs.sum(-2) + read * x.beta +
                       row_sums(grad_queries * x.q) * x.since_start.squeeze(-1) - written;
  const at::Tensor kept = (before * after).sum({-2, -1}) * x.kept.flatten(1);
  c.select(-1, c.size(-1) - 1).add_(row_sums(written) + kept);
  const double scale = 1 / std::sqrt(static_cast<double>(d));
  return {x.unit_q.backward(of_key_heads(q, G) * scale), x.unit_k.backward(of_key_heads(k, G)),
          beta * grad_bv, c.flip(-1).cumsum(-1).flip(-1),
          row_sums(grad_a * x.m) + row_sums(grad_bv * x.v) + read};
}

TensorList delta_backward(const Gradients& g, const DeltaChunks& chunks, double eps) {
  const at::NoGradGuard no_grad;
  const GatedDeltaInputs in{g.saved[0], g.saved[1], g.saved[2], g.saved[3], g.saved[4]};
  const at::Tensor places = chunks.places(in.q_TGd.device());
  const ChunkParts parts = parts_of(in, places, chunks, eps);
  const DeltaGradients grads =
      chunk_backward(parts, chunks, to_chunks(g.outputs[0], places, chunks), g.saved[5]);
  const auto back = [&](const at::Tensor& grad, const at::Tensor& like) {
    return from_chunks(grad, places).to(like.scalar_type());
  };
  return {back(grads.q, in.q_TGd), back(grads.k, in.k_TGd), back(grads.v, in.v_THe),
          back(grads.g, in.g_TH), back(grads.beta, in.beta_TH)};
}

void check_delta(const GatedDeltaInputs& in, const GatedDeltaOptions& o) {
  const auto& [q, k, v, g, beta] = in;
  TROUPE_CHECK(q.dim() == 3 && k.sizes() == q.sizes(),
               "gated_delta: q and k must be [T, G, d]; they are", q.sizes(), "and", k.sizes());
  TROUPE_CHECK(
      v.dim() == 3 && v.size(0) == q.size(0) && q.size(1) > 0 && v.size(1) % q.size(1) == 0,
      "gated_delta: v must be [T, H, e], H a multiple of the key heads; q is", q.sizes(),
      "and v is", v.sizes());
  for (const at::Tensor* x : {&g, &beta}) {
    TROUPE_CHECK(x->dim() == 2 && x->size(0) == v.size(0) && x->size(1) == v.size(1),
                 "gated_delta: g and beta must be [T, H]; v is", v.sizes(), "and one of them",
                 x->sizes());
  }
  const int64_t tokens = std::accumulate(o.lengths.begin(), o.lengths.end(), int64_t{0});
  TROUPE_CHECK(
      tokens == q.size(0) && std::ranges::all_of(o.lengths, [](int64_t n) { return n >= 0; }),
      "gated_delta: the documents have", tokens, "tokens, and q has", q.size(0));
  if (!o.state.defined()) return;
  const std::vector<int64_t> sizes = {std::ssize(o.lengths), v.size(1), q.size(2), v.size(2)};
  TROUPE_CHECK(
      o.state.sizes() == sizes && o.state.scalar_type() == wide_type(v) && !o.state.requires_grad(),
      "gated_delta: state must be", at::IntArrayRef(sizes), wide_type(v),
      "without a gradient; it is", o.state.sizes(), o.state.scalar_type());
}

at::Tensor first_state(const GatedDeltaInputs& in, const GatedDeltaOptions& o,
                       const at::Tensor& documents) {
  if (o.state.defined()) return o.state.index_select(0, documents);
  return at::zeros({std::ssize(o.lengths), in.v_THe.size(1), in.q_TGd.size(2), in.v_THe.size(2)},
                   in.v_THe.options().dtype(wide_type(in.v_THe)).requires_grad(false));
}

}  // namespace

GatedDeltaResult gated_delta(const GatedDeltaInputs& in, const GatedDeltaOptions& o) {
  check_delta(in, o);
  const DeltaChunks chunks(o.lengths);
  GatedDeltaResult out;
  at::Tensor before;
  {
    const at::NoGradGuard no_grad;
    const c10::Device device = in.q_TGd.device();
    const at::Tensor places = chunks.places(device), documents = chunks.documents(device);
    const ChunkParts x = parts_of(in, places, chunks, o.eps);
    const at::Tensor state = first_state(in, o, documents);
    before = states_before(x, chunks, state);
    const at::Tensor fresh = x.u - at::matmul(x.w, before);
    const at::Tensor made = at::matmul(x.q * x.since_start, before) + at::matmul(x.p, fresh);
    out.o_THe = from_chunks(made, places).to(in.v_THe.scalar_type());
    out.state = at::empty_like(state).index_copy_(0, documents, state);
  }
  record({.name = "gated_delta",
          .inputs = {in.q_TGd, in.k_TGd, in.v_THe, in.g_TH, in.beta_TH},
          .outputs = {out.o_THe},
          .saved = {in.q_TGd, in.k_TGd, in.v_THe, in.g_TH, in.beta_TH, before},
          .backward = [chunks, eps = o.eps](const Gradients& g) {
            return delta_backward(g, chunks, eps);
          }});
  return out;
}

GatedDeltaResult gated_delta_ref(const GatedDeltaInputs& in, const GatedDeltaOptions& o) {
  check_delta(in, o);
  const auto plain = [](const at::Tensor& x) {
    return x.detach().cpu().to(at::kDouble).contiguous();
  };
  const int64_t G = in.q_TGd.size(1), H = in.v_THe.size(1), d = in.q_TGd.size(2);
  const auto unit = [&](const at::Tensor& x) { return UnitRows(plain(x), o.eps).rows; };
  const at::Tensor q = unit(in.q_TGd) / std::sqrt(static_cast<double>(d)), k = unit(in.k_TGd);
  const at::Tensor v = plain(in.v_THe), g = plain(in.g_TH), beta = plain(in.beta_TH);
  const int64_t e = v.size(2);
  at::Tensor out = at::zeros_like(v);
  at::Tensor states = o.state.defined() ? plain(o.state).clone()
                                        : at::zeros({std::ssize(o.lengths), H, d, e}, at::kDouble);
  int64_t t = 0;
  for (int64_t document = 0; document < std::ssize(o.lengths); ++document) {
    const int64_t end = t + o.lengths[document];
    for (; t < end; ++t) {
      for (int64_t h = 0; h < H; ++h) {
        const at::Tensor key = k[t][h / (H / G)], s = states[document][h];
        s.mul_(std::exp(g[t][h].item<double>()));
        const at::Tensor delta = (v[t][h] - at::matmul(s.t(), key)) * beta[t][h];
        s.add_(key.unsqueeze(1) * delta.unsqueeze(0));
        out[t][h].copy_(at::matmul(s.t(), q[t][h / (H / G)]));
      }
    }
  }
  return {out, states};
}

}  // namespace troupe
