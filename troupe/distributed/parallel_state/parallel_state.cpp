#include "troupe/distributed/parallel_state/parallel_state.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <utility>

namespace troupe {

ParallelState::ParallelState() : world_(std::make_shared<World>()), mesh_(1, {}) {}

ParallelState::ParallelState(std::shared_ptr<World> world, const MeshShape& shape)
    : world_(std::move(world)), mesh_(world_->size(), shape) {
  if (alone()) return;
  all_ = world_->all();
  host_ = world_->processors();
  host_->sum_of_few(at::ones({1}, at::kDouble));  // connects the tree of later sums
  stage_ = group(GroupKind::kStage);
  pipeline_ = group(GroupKind::kPipeline);
  if (stage_ranks() > 1) world_->pulse().set_stage(stage_rank(), stage_ranks());
}

bool ParallelState::first_of_microbatch() const {
  return alone() || mesh_.ranks_of(GroupKind::kMicrobatch, rank()).front() == rank();
}

std::shared_ptr<ProcessGroup> ParallelState::group(GroupKind kind, const std::string& channel,
                                                   const GroupOptions& how) const {
  return world_->group(mesh_.ranks_of(kind, rank()), channel, how);
}

ParallelState::Sum ParallelState::sum_over_all() const {
  if (alone()) return {};
  return [all = all_](const at::Tensor& x) { return all->all_reduced(x); };
}

ParallelState::Sum ParallelState::sum_over_stage() const {
  if (alone()) return {};
  return [stage = stage_](const at::Tensor& x) { return stage->all_reduced(x); };
}

// Ranks' values side by side: backends do not agree on the maximum of a NaN.
ParallelState::Sum ParallelState::max_over_stage() const {
  if (alone()) return {};
  return [stage = stage_](const at::Tensor& x) {
    const at::Tensor all = at::empty({stage->size() * x.numel()}, x.options());
    stage->all_gather({all}, {x.contiguous().view({-1})}).wait();
    return all.view({stage->size(), x.numel()}).amax(0).view(x.sizes());
  };
}

std::vector<double> ParallelState::all_reduce(std::vector<double> values) const {
  if (alone()) return values;
  const at::Tensor sum = host_->sum_of_few(at::tensor(values, at::kDouble));
  return {sum.const_data_ptr<double>(), sum.const_data_ptr<double>() + sum.numel()};
}

std::vector<double> ParallelState::all_reduce_stages(std::vector<double> values) const {
  if (stage_ranks() == 1) return values;
  const at::Tensor own = at::tensor(values, at::kDouble).to(world_->device());
  const at::Tensor sum = pipeline_->all_reduced(own).cpu();
  return {sum.const_data_ptr<double>(), sum.const_data_ptr<double>() + sum.numel()};
}

std::vector<std::string> ParallelState::all_gather_texts(const std::string& topic,
                                                         const std::string& mine,
                                                         Patience patience) const {
  return alone() ? std::vector{mine} : world_->all_gather_texts(topic, mine, patience);
}

void ParallelState::require_equal(const std::string& what, const std::string& text) const {
  if (!alone()) troupe::require_equal(*world_, what, text);
}

void ParallelState::require_equal(const std::string& what, const NamedValues& values) const {
  if (!alone()) require_equal_values(*world_, what, values);
}

void ParallelState::all_to_all(const AllToAllBytes& bytes) const {
  if (alone()) {
    std::ranges::copy(bytes.out, bytes.in.begin());
    return;
  }
  const at::Tensor out = at::empty({std::ssize(bytes.out)}, at::kByte);
  const at::Tensor in = at::empty({std::ssize(bytes.in)}, at::kByte);
  std::ranges::copy(bytes.out, static_cast<std::byte*>(out.mutable_data_ptr()));
  // Along the tree, whose connections stand: a rank that was lost before is noticed here, and not by
  // those that wait for a first connection with it.
  host_->sum_of_few(at::ones({1}, at::kDouble));
  host_->exchange(in, out, bytes.from, bytes.to);
  std::copy_n(static_cast<const std::byte*>(in.const_data_ptr()), in.numel(), bytes.in.begin());
}

}  // namespace troupe
