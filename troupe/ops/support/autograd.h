// Gradients of our own operators, without autograd's headers (10 s of compile time a file): one
// Node serves all operators, and an operator gives it a function.
//
//   at::Tensor twice(const at::Tensor& x) {
//     static const auto op = raw_op<decltype(twice_device)>("troupe::twice");
//     at::Tensor y = op(x);                       // define.h: below autograd, so no graph yet
//     record({.name = "twice", .inputs = {x}, .outputs = {y}, .saved = {},
//             .backward = [](const Gradients& g) -> TensorList { return {g.outputs[0] * 2}; }});
//     return y;
//   }
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <vector>

namespace troupe {

using TensorList = std::vector<at::Tensor>;

// What a backward function gets.
struct Gradients {
  TensorList outputs;       // one for each recorded output; zeros where nothing depends on it
  TensorList saved;         // in the order of Record::saved; undefined where that was undefined
  std::vector<bool> needs;  // for each recorded input: is its gradient wanted (rule X8)
  // Nobody reads the graph's own tensors in `saved` again: they may be overwritten.
  bool last = false;
};

// A saved tensor as the optional argument that it was.
inline std::optional<at::Tensor> given(const at::Tensor& saved) {
  return saved.defined() ? std::optional(saved) : std::nullopt;
}

// Returns one tensor for each recorded input, undefined where not needed or not differentiable.
using BackwardFn = std::function<TensorList(const Gradients&)>;

// The first output once more, the same bits, from Record::saved.
using AgainFn = std::function<at::Tensor(const TensorList& saved)>;

struct Record {
  const char* name;    // shown as the gradient function's name
  TensorList inputs;   // those with a gradient; undefined ones are allowed
  TensorList outputs;  // the differentiable results, which must not be views of inputs
  TensorList saved;    // inputs, outputs or others that backward reads
  BackwardFn backward;
  // With it, records that save the first output keep none of its memory: it is made again when the
  // first of their backwards asks for it, and dropped before this one's.
  AgainFn again = {};
};

// Does nothing where gradients are off or no input wants one. Under create_graph
// the gradients are marked: differentiating them again is an error, not a wrong number.
void record(Record r);

// Is there an input that wants a gradient now? Lets an operator skip work that only backward needs.
bool wants_grad(const TensorList& inputs);

}  // namespace troupe
