#include "troupe/distributed/modules/module_values.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/module.h>

#include <set>
#include <sstream>

#include "troupe/core/check.h"
#include "troupe/core/file/hash.h"
#include "troupe/distributed/group/rank_list.h"

namespace troupe {
namespace {

std::string text_of_module(const torch::nn::Module& module) {
  std::ostringstream out;
  const auto add = [&](const auto& named) {
    for (const auto& item : named) {
      const at::Tensor& x = item.value();
      out << item.key() << ' ' << x.sizes() << ' ' << x.scalar_type() << ' ' << x.requires_grad()
          << '\n';
    }
  };
  add(module.named_parameters());
  add(module.named_buffers());
  return out.str();
}

}  // namespace

c10::Device device_of_module(const torch::nn::Module& module) {
  const std::vector<at::Tensor> parameters = module.parameters();
  return parameters.empty() ? c10::Device(c10::kCPU) : parameters.front().device();
}

std::vector<std::pair<std::string, at::Tensor>> parameters_of(const torch::nn::Module& module) {
  std::vector<std::pair<std::string, at::Tensor>> out;
  std::set<const void*> seen;
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& x = item.value();
    TROUPE_CHECK(x.layout() == at::kStrided && at::isFloatingType(x.scalar_type()), "parameter",
                 item.key(), "is", x.layout(), x.scalar_type(),
                 "and must be dense and of a floating type");
    if (!seen.insert(x.unsafeGetTensorImpl()).second) continue;
    TROUPE_CHECK(out.empty() || x.device() == out.front().second.device(), "parameter", item.key(),
                 "is on", x.device(), "and", out.front().first, "on", out.front().second.device());
    out.emplace_back(item.key(), x);
  }
  return out;
}

void require_dense_gradient(const at::Tensor& grad, const std::string& name) {
  TROUPE_CHECK(grad.layout() == at::kStrided, "the gradient of", name, "is", grad.layout(),
               "and must be dense");
}

std::vector<int64_t> ranks_unlike_first(int64_t value, const c10::Device& device,
                                        ProcessGroup& group) {
  const auto options = at::TensorOptions(at::kLong).device(device);
  const at::Tensor all = at::empty({group.size()}, options);
  group.all_gather({all}, {at::full({1}, value, options)}).wait();
  const at::Tensor values = all.cpu();
  const int64_t* const of_rank = values.const_data_ptr<int64_t>();
  std::vector<int64_t> out;
  for (int64_t r = 1; r < group.size(); ++r) {
    if (of_rank[r] != of_rank[0]) out.push_back(group.ranks()[static_cast<size_t>(r)]);
  }
  return out;
}

void require_same_module(const torch::nn::Module& module, ProcessGroup& group) {
  if (group.size() == 1) return;
  const auto hash = static_cast<int64_t>(hash64(text_of_module(module)));
  const std::vector<int64_t> others = ranks_unlike_first(hash, device_of_module(module), group);
  if (others.empty()) return;
  fail(Code::kRanksDiffer, "module",
       "names, sizes, types or requires_grad of its tensors on rank(s) " + rank_list(others) +
           " are not those of rank " + std::to_string(group.ranks().front()) +
           "; build the same module on every rank");
}

void broadcast_values(const std::vector<at::Tensor>& tensors, ProcessGroup& group) {
  if (group.size() == 1) return;
  const at::NoGradGuard no_grad;
  for (const at::Tensor& x : tensors) {
    if (x.numel() == 0) continue;
    // As bytes: not every backend has every type.
    const at::Tensor values = x.detach().clone(at::MemoryFormat::Contiguous).view({-1});
    group.broadcast(values.view(at::kByte), 0).wait();
    x.detach().copy_(values.view(x.sizes()));
  }
}

std::vector<bool> set_on_any_rank(const std::vector<bool>& flags, const c10::Device& device,
                                  ProcessGroup& group) {
  const auto n = static_cast<int64_t>(flags.size());
  at::Tensor counts = at::zeros({n}, at::kInt);
  for (int64_t i = 0; i < n; ++i) {
    counts.mutable_data_ptr<int32_t>()[i] = flags[static_cast<size_t>(i)] ? 1 : 0;
  }
  counts = counts.to(device);
  group.all_reduce({counts}).wait();
  counts = counts.cpu();
  std::vector<bool> out;
  for (int64_t i = 0; i < n; ++i) out.push_back(counts.const_data_ptr<int32_t>()[i] > 0);
  return out;
}

}  // namespace troupe
