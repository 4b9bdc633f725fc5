// How an operator enters PyTorch's dispatcher. Included by ops/*.cpp alone (it costs 9 s).
//
// An operator `x` has up to three functions of its arguments (op_args.h):
//   x_device   tensors in, tensors out, on CPU and CUDA; calls run()
//   x_meta     the same sizes and types without data, so that torch.compile and export can trace
//   x_op       calls raw_op<decltype(x_device)>() and records the gradient: what PyTorch calls where
//              gradients are on
// and one line in its file's registration, so that there is no list of files:
//   TORCH_LIBRARY_FRAGMENT(troupe, m) { define<x_device, x_meta, x_op>(m); }
// An operator without a gradient leaves the last one out; one that is made of other operators has
// one function, define_whole<x_op>(m). An operator of a few tensors may do without a struct:
//   define(m, "x(Tensor x, int n) -> Tensor", x_device, x_meta, x);
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <string>
#include <tuple>
#include <utility>

#include "troupe/core/check.h"
#include "troupe/ops/support/op_args.h"

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

namespace detail {

template <class Function>
struct OpFunction;
template <class Out, class Args>
struct OpFunction<Out(const Args&)> {
  using In = Args;
  template <class... T>
  static RawOp<Out(T...)> find(Types<T...>) {
    return RawOp<Out(T...)>((std::string("troupe::") + Args::kName).c_str());
  }
  using Raw = decltype(find(OpParameters<Args>()));
};

// kFunction as the dispatcher calls it.
template <auto kFunction, class Args, class Parameters>
struct Unpacked;
template <auto kFunction, class Args, class... T>
struct Unpacked<kFunction, Args, Types<T...>> {
  static auto call(T... in) { return kFunction(args_of<Args>(std::forward<T>(in)...)); }
};

template <auto kFunction>
using ArgsOf = typename OpFunction<std::remove_pointer_t<decltype(kFunction)>>::In;

template <auto kFunction>
constexpr auto unpacked() {
  using Args = ArgsOf<kFunction>;
  return &Unpacked<kFunction, Args, OpParameters<Args>>::call;
}

template <class Args>
std::string checked_schema() {
  TROUPE_CHECK(
      in_member_order<Args>(),
      std::string(Args::kName) + ": visit() must name the arguments in the order of the members");
  return schema_text<Args>();
}

}  // namespace detail

// The same of a function of an arguments' struct.
template <class Function>
class ArgsOp {
 public:
  using In = typename detail::OpFunction<Function>::In;

  auto operator()(const In& args) const {
    return std::apply([&](const auto&... each) { return raw_(each.value...); }, args_tuple(args));
  }

 private:
  typename detail::OpFunction<Function>::Raw raw_ =
      detail::OpFunction<Function>::find(OpParameters<In>());
};
template <class Function>
ArgsOp<Function> raw_op() {
  return {};
}

template <auto kDevice, auto kMeta>
void define(torch::Library& m) {
  const std::string schema = detail::checked_schema<detail::ArgsOf<kDevice>>();
  define(m, schema.c_str(), detail::unpacked<kDevice>(), detail::unpacked<kMeta>());
}
template <auto kDevice, auto kMeta, auto kWithGrad>
void define(torch::Library& m) {
  const std::string schema = detail::checked_schema<detail::ArgsOf<kDevice>>();
  define(m, schema.c_str(), detail::unpacked<kDevice>(), detail::unpacked<kMeta>(),
         detail::unpacked<kWithGrad>());
}
// Of other operators, which have the gradients.
template <auto kFunction>
void define_whole(torch::Library& m) {
  const std::string schema = detail::checked_schema<detail::ArgsOf<kFunction>>();
  m.def(schema.c_str(), detail::unpacked<kFunction>());
}

}  // namespace troupe
