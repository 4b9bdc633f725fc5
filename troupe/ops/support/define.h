// How an operator enters PyTorch's dispatcher. Included by ops/*.cpp alone (it costs 9 s).
//
// An operator `x` has up to three functions:
//   x_device   tensors in, tensors out, on CPU and CUDA; calls run()
//   x_meta     the same sizes and types without data, so that torch.compile and export can trace
//   x          calls raw_op("troupe::x") and records the gradient: the C++ API, and what PyTorch
//              calls where gradients are on
// and one line in its file's registration, so that there is no list of files:
//   TORCH_LIBRARY_FRAGMENT(troupe, m) {
//     define(m, "x(Tensor x, int n) -> Tensor", x_device, x_meta, x);
//   }
// An operator without a gradient leaves the last one out.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <string>

namespace troupe {

template <class Function>
class RawOp;

template <class Out, class... In>
class RawOp<Out(In...)> {
 public:
  explicit RawOp(const char* name)
      : handle_(c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Out(In...)>()) {}

  Out operator()(In... in) const {
    const at::AutoDispatchBelowADInplaceOrView below;
    return handle_.call(std::forward<In>(in)...);
  }

 private:
  c10::TypedOperatorHandle<Out(In...)> handle_;
};

// Calls the operator below autograd, through the dispatcher, so that tracing sees it.
template <class Function>
RawOp<Function> raw_op(const char* name) {
  return RawOp<Function>(name);
}

template <class Function>
void define(torch::Library& m, const char* schema, Function* device, Function* meta,
            Function* with_grad = nullptr) {
  const std::string text(schema), name = text.substr(0, text.find('('));
  m.def(schema);
  m.impl(name.c_str(), torch::dispatch(c10::DispatchKey::CPU, device));
  m.impl(name.c_str(), torch::dispatch(c10::DispatchKey::CUDA, device));
  m.impl(name.c_str(), torch::dispatch(c10::DispatchKey::Meta, meta));
  if (with_grad != nullptr) {
    m.impl(name.c_str(), torch::dispatch(c10::DispatchKey::Autograd, with_grad));
  }
}

}  // namespace troupe
