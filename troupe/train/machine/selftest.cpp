#include "troupe/train/machine/selftest.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "troupe/nn/moe/moe_layer.h"
#include "troupe/ops/adamw.h"
#include "troupe/ops/attention/attention.h"
#include "troupe/ops/cross_entropy.h"
#include "troupe/ops/norm.h"

namespace troupe {
namespace {

using Tensors = std::vector<at::Tensor>;

// Fixed pseudorandom numbers, without PyTorch's generator.
at::Tensor numbers(at::IntArrayRef sizes, double phase, const at::TensorOptions& options) {
  int64_t count = 1;
  for (const int64_t n : sizes) count *= n;
  const at::Tensor i = at::arange(count, at::kDouble);
  return (i * 12.9898 + phase).sin().mul(43.7585).frac().mul(2).reshape(sizes).to(options);
}

double error_between(const at::Tensor& got, const at::Tensor& want) {
  const at::Tensor a = got.detach().to(at::kCPU, at::kDouble).reshape({-1});
  const at::Tensor b = want.detach().to(at::kCPU, at::kDouble).reshape({-1});
  if (a.numel() != b.numel()) return std::numeric_limits<double>::infinity();
  const double size = std::max(b.abs().max().item<double>(), 1e-12);
  return (a - b).abs().max().item<double>() / size;
}

double error_between(const Tensors& got, const Tensors& want) {
  double worst = got.size() == want.size() ? 0 : std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
    const double error = error_between(got[i], want[i]);
    worst = std::isnan(error) ? error : std::max(worst, error);
  }
  return worst;
}

constexpr int64_t kWidth = 48, kTokens = 96;

MoeLayer moe_layer(ExpertsImpl impl, const at::TensorOptions& options) {
  MoeConfig config;
  config.experts = 8;
  config.ffn.hidden = 40;
  config.ffn.impl = impl;
  config.ffn.init.std = 0.3;
  MoeShape shape = MoeShape::alone(kWidth);
  shape.layers = 2;
  MoeLayer layer(config, shape);
  for_each_param(layer, "moe", [&](const std::string& name, Param& p) {
    p.allocate(options);
    initialize(p, name, 1);
  });
  return layer;
}

// The result of a layer, then the gradients of its input and its parameters.
Tensors layer_and_gradients(MoeLayer& layer, const at::TensorOptions& options) {
  const at::Tensor x = numbers({kTokens, kWidth}, 0.5, options).requires_grad_();
  const at::Tensor y = layer.forward(x, {}, {.training = true}).y;
  (y * numbers(y.sizes(), 0.25, options)).sum().backward();
  Tensors out = {y.detach(), x.grad()};
  for_each_param(layer, "", [&](const std::string&, Param& p) {
    if (p.value.grad().defined()) out.push_back(p.value.grad());
  });
  return out;
}

double experts_error(const c10::Device& device) {
  const at::TensorOptions f32 = at::TensorOptions(device).dtype(at::kFloat);
  const at::TensorOptions f64 = at::TensorOptions(at::kCPU).dtype(at::kDouble);
  MoeLayer fused = moe_layer(ExpertsImpl::kGrouped, f32), loop = moe_layer(ExpertsImpl::kLoop, f64);
  return error_between(layer_and_gradients(fused, f32), layer_and_gradients(loop, f64));
}

// The directional derivative of the layer with respect to its parameters and its input: by
// backward, and by the difference of two forwards.
double slope_error(const c10::Device& /*device*/) {
  const at::TensorOptions f64 = at::TensorOptions(at::kCPU).dtype(at::kDouble);
  MoeLayer layer = moe_layer(ExpertsImpl::kGrouped, f64);
  const Tensors result = layer_and_gradients(layer, f64);
  at::Tensor x = numbers({kTokens, kWidth}, 0.5, f64);
  Tensors moved = {x}, along;
  for_each_param(layer, "", [&](const std::string&, Param& p) {
    if (p.value.grad().defined()) moved.push_back(p.value);
  });
  double predicted = 0;
  for (size_t i = 0; i < moved.size(); ++i) {
    along.push_back(numbers(moved[i].sizes(), 3.0 + static_cast<double>(i), f64));
    predicted += (along[i] * result[i + 1]).sum().item<double>();
  }
  const at::NoGradGuard no_grad;
  constexpr double kStep = 1e-6;
  const auto value_at = [&](double step) {
    for (size_t i = 0; i < moved.size(); ++i) moved[i].add_(along[i], step);
    const at::Tensor y = layer.forward(x, {}, {.training = true}).y;
    return (y * numbers(y.sizes(), 0.25, f64)).sum().item<double>();
  };
  const double high = value_at(kStep), low = value_at(-2 * kStep);
  const double seen = (high - low) / (2 * kStep);
  return std::abs(seen - predicted) / std::max(std::abs(predicted), 1.0);
}

double attention_error(const c10::Device& device) {
  const int64_t T = 70, H = 4, d = 16;
  const at::TensorOptions f32 = at::TensorOptions(device).dtype(at::kFloat);
  const at::TensorOptions f64 = at::TensorOptions(at::kCPU).dtype(at::kDouble);
  const auto run = [&](const at::TensorOptions& options, bool plain) {
    Tensors qkv;
    for (int i = 0; i < 3; ++i) qkv.push_back(numbers({T, H, d}, i, options).requires_grad_());
    at::Tensor y;
    if (plain) {
      const at::Tensor scores =
          at::matmul(qkv[0].transpose(0, 1), qkv[1].permute({1, 2, 0})) * 0.25;
      const at::Tensor i = at::arange(T);
      const at::Tensor hidden = i.unsqueeze(0) > i.unsqueeze(1);
      y = at::matmul(at::softmax(scores.masked_fill(hidden, -INFINITY), -1), qkv[2].transpose(0, 1))
              .transpose(0, 1);
    } else {
      y = attention(qkv[0], qkv[1], qkv[2], {.scale = 0.25, .lengths = {T}});
    }
    (y * numbers(y.sizes(), 0.25, options)).sum().backward();
    return Tensors{y, qkv[0].grad(), qkv[1].grad(), qkv[2].grad()};
  };
  return error_between(run(f32, false), run(f64, true));
}

double loss_error(const c10::Device& device) {
  const int64_t T = 65, V = 500;
  const auto run = [&](const at::TensorOptions& options, bool plain) {
    const at::Tensor x = numbers({T, kWidth}, 1, options).requires_grad_();
    const at::Tensor w = numbers({V, kWidth}, 2, options).requires_grad_();
    const at::Tensor target = (at::arange(T) * 37 % V).to(options.device());
    at::Tensor loss;
    if (plain) {
      const at::Tensor p = at::log_softmax(at::matmul(x, w.t()), -1);
      loss = -p.gather(1, target.unsqueeze(1)).sum();
    } else {
      loss = linear_cross_entropy(x, w, target, {}, 32).first;
    }
    loss.backward();
    return Tensors{loss, x.grad(), w.grad()};
  };
  return error_between(run(at::TensorOptions(device).dtype(at::kFloat), false),
                       run(at::TensorOptions(at::kCPU).dtype(at::kDouble), true));
}

double norm_error(const c10::Device& device) {
  const auto run = [&](const at::TensorOptions& options, bool plain) {
    const at::Tensor x = numbers({kTokens, kWidth}, 1, options).requires_grad_();
    const at::Tensor w = numbers({kWidth}, 2, options).requires_grad_();
    const at::Tensor y =
        plain ? x * (x.square().mean(-1, /*keepdim=*/true) + 1e-5).rsqrt() * w : norm(x, w, {}, {});
    (y * numbers(y.sizes(), 0.25, options)).sum().backward();
    return Tensors{y, x.grad(), w.grad()};
  };
  return error_between(run(at::TensorOptions(device).dtype(at::kFloat), false),
                       run(at::TensorOptions(at::kCPU).dtype(at::kDouble), true));
}

// p 1, g 0.5, lr 0.1, decay 0.1: 1 - 0.1 (1 + 0.1) = 0.89.
double adamw_error(const c10::Device& device) {
  const at::TensorOptions f32 = at::TensorOptions(device).dtype(at::kFloat);
  const AdamWTensors state{
      .param = at::ones({7}, f32), .m = at::zeros({7}, f32), .v = at::zeros({7}, f32)};
  const at::NoGradGuard no_grad;
  adamw_(state, at::full({7}, 0.5, f32), std::nullopt, 1, {.lr = 0.1, .weight_decay = 0.1});
  return error_between(state.param, at::full({7}, 0.89, at::kDouble));
}

// The same bits from one thread and from all.
double threads_error(const c10::Device& device) {
  const at::TensorOptions f32 = at::TensorOptions(device).dtype(at::kFloat);
  MoeLayer layer = moe_layer(ExpertsImpl::kGrouped, f32);
  const auto run = [&] {
    for_each_param(layer, "", [](const std::string&, Param& p) { p.value.mutable_grad().reset(); });
    return layer_and_gradients(layer, f32);
  };
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const Tensors alone = run();
  at::set_num_threads(std::max(threads, 3));
  const Tensors together = run();
  at::set_num_threads(threads);
  return error_between(together, alone);
}

struct Case {
  const char* name;
  double (*error)(const c10::Device& device);
  double limit;
};
constexpr Case kCases[] = {
    {"norm, forward and backward", norm_error, 1e-5},
    {"attention, forward and backward", attention_error, 1e-4},
    {"cross-entropy, forward and backward", loss_error, 1e-4},
    {"experts, fused against one by one", experts_error, 1e-4},
    {"slope of an MoE layer against its gradient", slope_error, 1e-6},
    {"same bits with any number of threads", threads_error, 0},
    {"AdamW by hand", adamw_error, 1e-6},
};

}  // namespace

std::vector<SelfCheck> selftest(const c10::Device& device,
                                const std::function<void(const SelfCheck&)>& report) {
  std::vector<SelfCheck> out;
  for (const Case& c : kCases) {
    SelfCheck check{.name = c.name, .limit = c.limit};
    try {
      check.error = c.error(device);
    } catch (const std::exception& error) {
      check.error = std::numeric_limits<double>::quiet_NaN();
      check.name += std::string(": ") + error.what();
    }
    out.push_back(check);
    if (report) report(out.back());
  }
  return out;
}

}  // namespace troupe
