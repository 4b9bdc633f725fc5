#include "troupe/distributed/modules/distributed_data_parallel.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/div.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/distributed/modules/module_values.h"

namespace troupe {

struct DistributedDataParallel::Replica : std::enable_shared_from_this<Replica> {
  struct Gradient {
    std::string name;
    at::Tensor parameter;
    size_t bucket = 0;
    int64_t offset = 0;  // in its bucket
  };
  struct Bucket {
    at::TensorOptions options = {};
    std::vector<size_t> gradients = {};
    int64_t numel = 0;
    size_t missing = 0;   // gradients that this backward has not come to yet
    at::Tensor sum = {};  // [numel], from the start of the all-reduce to the end of the backward
    Pending pending = {};
  };
  class Hook;

  Replica(torch::nn::Module& the_module, std::shared_ptr<ProcessGroup> the_group)
      : module(the_module), group(std::move(the_group)) {}
  void fill_buckets(int64_t bucket_bytes);
  void attach();
  void detach();
  void on_gradient(size_t i);
  void begin_backward();
  void begin_bucket(Bucket& bucket);
  void end_backward();
  at::Tensor part(const Gradient& g) const {
    return buckets[g.bucket].sum.narrow(0, g.offset, g.parameter.numel()).view(g.parameter.sizes());
  }

  torch::nn::Module& module;
  std::shared_ptr<ProcessGroup> group;
  std::vector<Gradient> gradients;  // in reverse order of registration
  std::vector<Bucket> buckets;
  size_t begun = 0;        // buckets
  int64_t num_paused = 0;  // NoSync that live
  int task = -1;           // autograd's number of the backward that runs
  int64_t begun_before_end = 0;
};

class DistributedDataParallel::Replica::Hook : public torch::autograd::PostAccumulateGradHook {
 public:
  Hook(std::weak_ptr<Replica> replica, size_t gradient)
      : replica_(std::move(replica)), gradient_(gradient) {}
  void operator()(const at::Tensor&) override {
    if (const auto replica = replica_.lock()) replica->on_gradient(gradient_);
  }

 private:
  std::weak_ptr<Replica> replica_;
  size_t gradient_;
};

void DistributedDataParallel::Replica::fill_buckets(int64_t bucket_bytes) {
  auto all = parameters_of(module);
  std::reverse(all.begin(), all.end());
  for (auto& [name, parameter] : all) {
    if (!parameter.requires_grad()) continue;
    const at::TensorOptions options =
        at::TensorOptions(parameter.scalar_type()).device(parameter.device());
    const auto bytes = [&](const Bucket& b) {
      return b.numel * static_cast<int64_t>(parameter.element_size());
    };
    if (buckets.empty() || bytes(buckets.back()) >= bucket_bytes ||
        buckets.back().options.dtype() != options.dtype()) {
      buckets.push_back({.options = options});
    }
    Bucket& bucket = buckets.back();
    bucket.gradients.push_back(gradients.size());
    gradients.push_back({name, parameter, buckets.size() - 1, bucket.numel});
    bucket.numel += parameter.numel();
  }
}

void DistributedDataParallel::Replica::attach() {
  namespace impl = torch::autograd::impl;
  for (const Gradient& g : gradients) {
    TROUPE_CHECK(impl::post_acc_grad_hooks(g.parameter) == nullptr, "parameter", g.name,
                 "has a hook after its gradient already: it is sharded or a replica");
  }
  for (size_t i = 0; i < gradients.size(); ++i) {
    impl::set_post_acc_grad_hooks(gradients[i].parameter,
                                  std::make_unique<Hook>(weak_from_this(), i));
  }
}

void DistributedDataParallel::Replica::detach() {
  for (const Gradient& g : gradients) {
    torch::autograd::impl::set_post_acc_grad_hooks(g.parameter, nullptr);
  }
}

void DistributedDataParallel::Replica::on_gradient(size_t i) {
  if (num_paused > 0) return;
  TROUPE_CHECK(!at::GradMode::is_enabled(), "a backward with create_graph: gradients of replicas",
               "have no graph; parameter", gradients[i].name);
  begin_backward();
  --buckets[gradients[i].bucket].missing;
  // In order, so that all ranks' calls meet.
  while (begun < buckets.size() && buckets[begun].missing == 0) begin_bucket(buckets[begun]);
}

// At the first gradient of each backward. Also after one that threw, whose end never came.
void DistributedDataParallel::Replica::begin_backward() {
  const int now = torch::autograd::get_current_graph_task_id();
  if (now == task) return;
  task = now;
  begun = 0;
  for (Bucket& bucket : buckets) {
    bucket.missing = bucket.gradients.size();
    bucket.sum.reset();
    bucket.pending = {};
  }
  torch::autograd::Engine::get_default_engine().queue_callback(
      [self = shared_from_this()] { self->end_backward(); });
}

void DistributedDataParallel::Replica::begin_bucket(Bucket& bucket) {
  const at::NoGradGuard no_grad;
  const at::Tensor N = at::scalar_tensor(group->size(), at::kDouble);
  bucket.sum = at::zeros({bucket.numel}, bucket.options);
  for (const size_t i : bucket.gradients) {
    const at::Tensor& grad = gradients[i].parameter.grad();
    if (!grad.defined()) continue;
    require_dense_gradient(grad, gradients[i].name);
    at::Tensor share = part(gradients[i]);
    at::div_out(share, grad, N);  // before the sum, which could overflow
  }
  bucket.pending = group->all_reduce({bucket.sum});
  ++begun;
}

void DistributedDataParallel::Replica::end_backward() {
  const at::NoGradGuard no_grad;
  begun_before_end = static_cast<int64_t>(begun);
  while (begun < buckets.size()) begin_bucket(buckets[begun]);
  std::vector<bool> used;
  for (const Gradient& g : gradients) used.push_back(g.parameter.grad().defined());
  used = set_on_any_rank(used, gradients.front().parameter.device(), *group);
  for (Bucket& bucket : buckets) {
    bucket.pending.wait();
    for (const size_t i : bucket.gradients) {
      if (!used[i]) continue;
      at::Tensor& grad = gradients[i].parameter.mutable_grad();
      if (grad.defined()) {
        grad.copy_(part(gradients[i]));
      } else {
        grad = part(gradients[i]).clone();
      }
    }
    if (bucket.sum.is_cuda()) {
      // It was made on a gradient's stream, and is read on that of the caller of backward().
      const c10::impl::VirtualGuardImpl cuda(c10::kCUDA);
      bucket.sum.record_stream(cuda.getStream(bucket.sum.device()));
    }
    bucket.sum.reset();
  }
  task = -1;
}

DistributedDataParallel::DistributedDataParallel(torch::nn::Module& module,
                                                 std::shared_ptr<ProcessGroup> group,
                                                 const DataParallelOptions& options)
    : replica_(std::make_shared<Replica>(module, std::move(group))) {
  TROUPE_CHECK(options.bucket_bytes > 0, "bucket_bytes is", options.bucket_bytes,
               "and must be at least 1");
  if (replica_->group->size() == 1) return;
  replica_->fill_buckets(options.bucket_bytes);
  require_same_module(module, *replica_->group);
  replica_->attach();
  std::vector<at::Tensor> values;
  for (const auto& [name, parameter] : parameters_of(module)) values.push_back(parameter);
  broadcast_values(values, *replica_->group);
  broadcast_buffers();
}

DistributedDataParallel::~DistributedDataParallel() {
  if (replica_->group->size() > 1) replica_->detach();
}

void DistributedDataParallel::broadcast_buffers() {
  broadcast_values(replica_->module.buffers(), *replica_->group);
}

int64_t DistributedDataParallel::num_buckets() const {
  return static_cast<int64_t>(replica_->buckets.size());
}

int64_t DistributedDataParallel::buckets_begun() const {
  return replica_->task >= 0 ? static_cast<int64_t>(replica_->begun) : replica_->begun_before_end;
}

DistributedDataParallel::NoSync::NoSync(std::shared_ptr<Replica> replica)
    : replica_(std::move(replica)) {
  ++replica_->num_paused;
}

DistributedDataParallel::NoSync::~NoSync() {
  --replica_->num_paused;
}

}  // namespace troupe
