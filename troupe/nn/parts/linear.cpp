#include "troupe/nn/parts/linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "troupe/core/check.h"
#include "troupe/nn/parts/kept_matrix.h"
#include "troupe/nn/parts/linear_product.h"
#include "troupe/ops/support/record_late.h"

namespace troupe {
namespace {

// Row ranges of one gradient, a view for each part.
TensorList parts_of(const at::Tensor& whole, const std::vector<int64_t>& rows) {
  TensorList out;
  int64_t from = 0;
  for (const int64_t n : rows) {
    out.push_back(whole.narrow(0, from, n));
    from += n;
  }
  return out;
}

// [sum n_i, D]: a view if the parts are contiguous in memory, as a ParamStore allocates them; else
// a copy.
at::Tensor joined(const TensorList& parts) {
  int64_t rows = 0;
  bool adjacent = true;
  for (const at::Tensor& part : parts) {
    adjacent = adjacent && part.is_contiguous() && part.storage().is_alias_of(parts[0].storage()) &&
               part.storage_offset() == parts[0].storage_offset() + rows * parts[0].size(1);
    rows += part.size(0);
  }
  if (!adjacent) return at::cat(parts);
  return at::as_strided(parts[0], {rows, parts[0].size(1)}, {parts[0].size(1), 1});
}

struct Wanted {
  bool of_x, of_w;
};
using ProductGradients =
    std::function<LinearGrads(const at::Tensor& dy, const TensorList& saved, Wanted)>;

// A product of the joined weight, and its two gradients from what was saved.
struct Product {
  at::Tensor y;
  TensorList saved;
  ProductGradients gradients;
};

Product in_own_type(const at::Tensor& x, const TensorList& weights, const at::Tensor& bias) {
  TensorList saved = {x};
  saved.insert(saved.end(), weights.begin(), weights.end());
  return {at::linear(x, joined(weights), bias), std::move(saved),
          [](const at::Tensor& dy, const TensorList& s, Wanted wanted) -> LinearGrads {
            LinearGrads out;
            if (wanted.of_x) out.x = at::mm(dy, joined(TensorList(s.begin() + 1, s.end())));
            if (wanted.of_w) out.w = at::mm(dy.t(), s[0]);
            return out;
          }};
}

Product in_fp8(const at::Tensor& x, const TensorList& weights, const at::Tensor& bias,
               const Fp8Linear& fp8, bool keep) {
  LinearFp8Forward f = linear_fp8_forward(x, joined(weights), fp8, keep);
  return {bias.defined() ? f.y + bias : f.y, std::move(f.saved),
          [fp8](const at::Tensor& dy, const TensorList& s, Wanted wanted) {
            return linear_fp8_backward(dy, s, fp8, wanted.of_x, wanted.of_w);
          }};
}

// Is a gradient wanted of one of the `count` inputs from `from` on?
bool wants_any(const std::vector<bool>& needs, size_t from, size_t count) {
  const auto first = needs.begin() + static_cast<int64_t>(from);
  const auto last = first + static_cast<int64_t>(count);
  return std::find(first, last, true) != last;
}

// Gradients of x, of each part's weight, and of each part's bias where there are biases.
TensorList gradients_of_parts(const Gradients& g, const std::vector<int64_t>& rows, bool biased,
                              const ProductGradients& gradients) {
  const at::Tensor& dy = g.outputs[0];
  const size_t n = rows.size();
  const LinearGrads whole = gradients(dy, g.saved, {g.needs[0], wants_any(g.needs, 1, n)});
  TensorList out = {whole.x};
  const auto append = [&](const at::Tensor& joint) {  // undefined: none of the parts
    const TensorList parts = joint.defined() ? parts_of(joint, rows) : TensorList(n);
    out.insert(out.end(), parts.begin(), parts.end());
  };
  append(whole.w);
  if (biased) append(wants_any(g.needs, 1 + n, n) ? dy.sum(0) : at::Tensor());
  for (size_t i = 0; i < out.size(); ++i) {
    if (!g.needs[i]) out[i] = at::Tensor();
  }
  return out;
}

at::Tensor with_adapters(const at::Tensor& y, const at::Tensor& x,
                         const std::vector<const Linear*>& parts, const Context& context) {
  TensorList deltas;
  for (const Linear* part : parts) {
    if (part->lora) deltas.push_back(part->lora->delta(x, context));
  }
  if (deltas.empty()) return y;
  TROUPE_CHECK(deltas.size() == parts.size(), "adapters of", deltas.size(), "of", parts.size(),
               "products");
  return y + (deltas.size() == 1 ? deltas[0] : at::cat(deltas, 1));
}

at::Tensor with_magnitudes(const at::Tensor& y, const at::Tensor& x,
                           const std::vector<const Linear*>& parts, const JoinedOptions& options) {
  TensorList out;
  int64_t from = 0;
  for (const Linear* part : parts) {
    TROUPE_CHECK(part->lora, "a part of a joined product has no adapter");
    const int64_t rows = part->lora->b.value.size(0);
    const at::Tensor bias = part->bias && options.biased ? part->bias->value : at::Tensor();
    out.push_back(part->lora->beside(KeptMatrix(part->weight), x, y.narrow(1, from, rows), bias,
                                     options.context));
    from += rows;
  }
  return out.size() == 1 ? out[0] : at::cat(out, 1);
}

at::Tensor adapted(const at::Tensor& y, const at::Tensor& x,
                   const std::vector<const Linear*>& parts, const JoinedOptions& options) {
  const bool magnitudes = parts[0]->lora && parts[0]->lora->m;
  return magnitudes ? with_magnitudes(y, x, parts, options)
                    : with_adapters(y, x, parts, options.context);
}

at::Tensor joined_in_few_bits(const at::Tensor& x, const std::vector<const Linear*>& parts,
                              const JoinedOptions& options) {
  TROUPE_CHECK(!options.fp8, "weights in few bits have no products with 8-bit operands");
  TensorList products;
  for (const Linear* part : parts) {
    TROUPE_CHECK(part->weight.low_bit, "some weights of a joined product are in few bits");
    products.push_back(part->product(x, options.biased));
  }
  return products.size() == 1 ? products[0] : at::cat(products, 1);
}

}  // namespace

Linear::Linear(const LinearShape& s) : weight(Param::of({s.out, s.in}, s.init)) {
  weight.keep_in(s.low_bit);
  if (s.bias) bias = Param::of({s.out}, {.kind = Init::kZero}, Group::kNoDecay);
  if (s.lora.on()) lora.emplace(s.lora, s.out, s.in, s.place);
}

at::Tensor Linear::forward(const at::Tensor& x, const Context& context) const {
  at::Tensor y = product(x);
  if (!lora) return y;
  return lora->beside(KeptMatrix(weight), x, y, bias ? bias->value : at::Tensor(), context);
}

at::Tensor Linear::product(const at::Tensor& x, bool biased) const {
  return KeptMatrix(weight).linear(x, bias && biased ? bias->value : at::Tensor());
}

at::Tensor linear_product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  if (LateScope::current() == nullptr) return at::linear(x, weight, bias);
  at::Tensor y;
  {
    const at::NoGradGuard no_grad;
    y = at::linear(x, weight, bias);
  }
  record_late({.name = "linear",
               .inputs = {x, weight, bias},
               .outputs = {y},
               .saved = {x, weight},
               .backward = [](const Gradients& g) -> TensorList {
                 const at::Tensor &in = g.saved[0], &w = g.saved[1];
                 const at::Tensor dy_TN = g.outputs[0].reshape({-1, w.size(0)});
                 TensorList out(3);
                 if (g.needs[0]) out[0] = at::mm(dy_TN, w).view(in.sizes());
                 if (g.needs[1]) out[1] = at::mm(dy_TN.t(), in.reshape({-1, w.size(1)}));
                 if (g.needs[2]) out[2] = dy_TN.sum(0);
                 return out;
               }},
              1);
  return y;
}

at::Tensor joined_linear(const at::Tensor& x_TD, const std::vector<const Linear*>& parts,
                         const JoinedOptions& options) {
  if (parts.at(0)->weight.low_bit) {
    return adapted(joined_in_few_bits(x_TD, parts, options), x_TD, parts, options);
  }
  TensorList weights, biases, inputs = {x_TD};
  std::vector<int64_t> rows;
  for (const Linear* part : parts) {
    weights.push_back(part->weight.value);
    rows.push_back(part->weight.value.size(0));
    if (part->bias && options.biased) biases.push_back(part->bias->value);
  }
  TROUPE_CHECK(biases.empty() || biases.size() == parts.size(), "biases of", biases.size(), "of",
               parts.size(), "products");
  inputs.insert(inputs.end(), weights.begin(), weights.end());
  inputs.insert(inputs.end(), biases.begin(), biases.end());
  const bool keep = wants_grad(inputs);
  const Product p = [&] {
    const at::NoGradGuard no_grad;
    const at::Tensor bias = biases.empty() ? at::Tensor() : at::cat(biases);
    if (!options.fp8) return in_own_type(x_TD, weights, bias);
    return in_fp8(x_TD, weights, bias, *options.fp8, keep);
  }();
  record_late({.name = "joined_linear",
               .inputs = std::move(inputs),
               .outputs = {p.y},
               .saved = p.saved,
               .backward =
                   [rows, gradients = p.gradients, biased = !biases.empty()](const Gradients& g) {
                     return gradients_of_parts(g, rows, biased, gradients);
                   }},
              1, {.name = "joined_linear_weights", .order = options.weights_order});
  return adapted(p.y, x_TD, parts, options);
}

}  // namespace troupe
