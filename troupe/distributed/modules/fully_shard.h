// Any module of LibTorch, its parameters cut over the ranks of a group (FSDP). A unit is a module
// whose parameters are gathered together; units stand in each other, inner ones are made first:
//
//   struct ModelImpl : torch::nn::Module {
//     explicit ModelImpl(std::shared_ptr<troupe::ProcessGroup> group)
//         : block(troupe::fully_shard(register_module("block", Block(64)), group)),
//           head(register_module("head", torch::nn::Linear(64, 10))) {}
//     at::Tensor forward(const at::Tensor& x) { return head(block(x)); }
//     troupe::Sharded<BlockImpl> block;
//     torch::nn::Linear head;
//   };
//   auto model = troupe::fully_shard(std::make_shared<ModelImpl>(group), group);
//   torch::optim::AdamW optimizer(model.parameters());   // of this rank's parts
//   loss(model(x)).backward();
//   optimizer.step();
//
// A call of a Sharded calls the module's forward: before it, the unit's parameters are gathered;
// after it they have no memory, until the backward comes to what the call returned. When it has
// left the unit's calls, the unit's gradients are reduced to the parts, as means over the N ranks,
//   part.grad += sum_r (gradient of rank r in this part / N),
// with zeros for a rank whose backward did not come to a parameter; where none did, part.grad
// stays as it is. It is there when backward() returns. Outside of its calls a unit holds 1 / N
// of its parameters, of their gradients and so of an optimizer's state; a unit around others is
// whole while these compute. All units in each other are sharded over one group.
//
// The unit's parameters of a type lie in one row, each at a multiple of 64 bytes, with zeros at the
// end; rank r has the r-th of N equal ranges. The part of a parameter is what of it is in this
// range: one-dimensional, and empty on some ranks. An optimizer must go element by element (SGD,
// Adam, AdamW, RMSprop, Adagrad); clip_grad_norm() is here, because a norm of parts is not a
// rank's alone.
//
// Construction makes parameters and buffers those of rank 0. What a forward returns: a tensor, or a
// tuple, pair, vector or optional of such. All that a loss is made of is returned and not kept
// aside, and no result shares memory with a parameter (refused). What a backward needs of a trained
// parameter it gets through autograd, not through detach(). The module's own tensors must not be
// read, moved or given gradients from outside. Values may not change between a forward and its
// backward: refused where PyTorch counts the write, which it does not where LibTorch's SGD steps,
// through data(). create_graph is refused. A unit may be called several times before its backward,
// and under torch::NoGradGuard. A parameter that two modules share belongs to a unit that has both;
// else it is refused.
//
// Every rank makes the same calls of units and backwards, in the same order, and each backward
// comes to a result of a unit of the group on every rank. All else may differ: which parameters a
// call uses, which results a loss is made of. Before a backward the ranks agree on the calls that
// it comes to on any of them, and all gather and reduce for these; E2010 where they called other
// units. A lost rank is E6001, thrown by the call or by backward(). A reduction is waited for
// before the backward goes on. In a group of one the module stays as it is, and parameters() are
// its own. A Sharded is a handle: its copies are one unit, which lives as long as they or a unit
// around it.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "troupe/distributed/group/process_group.h"

namespace troupe {

struct ShardedCall;
struct ShardedUnit;

struct ShardOptions {
  // False: whole from a forward that autograd records to the end of its backward, which saves a
  // gather; then the unit holds its whole parameters in between.
  bool reshard_after_forward = true;
};

class ShardedModule {
 public:
  ShardedModule() = default;  // none: assign one before its use

  // This rank's part of each parameter of the module, of inner units too, under the module's names
  // and in its order.
  std::vector<std::pair<std::string, at::Tensor>> named_parameters() const;
  std::vector<at::Tensor> parameters() const;

  // Scales the parts' gradients by min(1, max_norm / (norm + 1e-6)) and returns norm, the L2 norm
  // of all gradients over the ranks, as torch::nn::utils::clip_grad_norm_ does. Collective.
  double clip_grad_norm(double max_norm) const;

  // Copies whole values, of parameters and buffers, to or from `whole` on rank 0 of the group: a
  // module with the same names that is not sharded, which torch::save and torch::load take.
  // Other ranks give null. One unit is whole at a time. Collective; E4005 on every rank where names
  // or sizes differ.
  void copy_to(torch::nn::Module* whole) const;
  void copy_from(torch::nn::Module* whole) const;

 protected:
  ShardedModule(const std::shared_ptr<torch::nn::Module>& module,
                std::shared_ptr<ProcessGroup> group, const ShardOptions& options);

  // While one lives, the unit's parameters are whole.
  class Call {
   public:
    explicit Call(const ShardedModule& module);
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    ~Call();
    void returns(const at::Tensor& y) const;
    template <class T>
    void returns(const std::vector<T>& all) const {
      for (const T& y : all) returns(y);
    }
    template <class T>
    void returns(const std::optional<T>& y) const {
      if (y) returns(*y);
    }
    template <class A, class B>
    void returns(const std::pair<A, B>& both) const {
      returns(both.first);
      returns(both.second);
    }
    template <class... T>
    void returns(const std::tuple<T...>& all) const {
      std::apply([this](const T&... y) { (returns(y), ...); }, all);
    }

   private:
    std::shared_ptr<ShardedUnit> unit_;
    std::shared_ptr<ShardedCall> call_;
  };

 private:
  enum class Direction { kTo, kFrom };
  void copy(torch::nn::Module* whole, Direction direction) const;

  std::shared_ptr<ShardedUnit> unit_;
};

template <class M>
class Sharded : public ShardedModule {
 public:
  Sharded() = default;
  Sharded(std::shared_ptr<M> module, std::shared_ptr<ProcessGroup> group,
          const ShardOptions& options)
      : ShardedModule(module, std::move(group), options), module_(std::move(module)) {}

  template <class... Args>
  auto forward(Args&&... args) const {
    const Call call(*this);
    auto y = module_->forward(std::forward<Args>(args)...);
    call.returns(y);
    return y;
  }
  template <class... Args>
  auto operator()(Args&&... args) const {
    return forward(std::forward<Args>(args)...);
  }
  M* operator->() const { return module_.get(); }
  M& operator*() const { return *module_; }

 private:
  std::shared_ptr<M> module_;
};

// Collective: every rank of the group makes the same units in the same order. E2010 where their
// modules differ.
template <class M>
Sharded<M> fully_shard(std::shared_ptr<M> module, std::shared_ptr<ProcessGroup> group,
                       const ShardOptions& options = {}) {
  return Sharded<M>(std::move(module), std::move(group), options);
}
template <class M>
Sharded<M> fully_shard(const torch::nn::ModuleHolder<M>& module,
                       std::shared_ptr<ProcessGroup> group, const ShardOptions& options = {}) {
  return Sharded<M>(module.ptr(), std::move(group), options);
}

}  // namespace troupe
