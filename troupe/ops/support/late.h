// Gradients of parameters that are put off: a backward makes those of activations at once, and
// those of parameters when they are asked for (the halves I and W of a schedule).
//
//   auto late = std::make_shared<LateQueue>();
//   { const LateScope scope(late); y = layer.forward(x); }
//   torch::autograd::grad({y}, {x});      // dx; the weights' gradients come out undefined
//   late->run(add);                       // add(parameter, its gradient), in the backward's order
//
// Outside of a scope nothing changes. The gradients of both halves are the bits of the whole, as
// the same function makes them; it runs twice, and `needs` says what is wanted (rule X8).
// Between the halves the queue holds what that function saved and the gradients of its outputs.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace troupe {

class LateQueue {
 public:
  using Add = std::function<void(const at::Tensor& parameter, const at::Tensor& gradient)>;
  using Task = std::function<void(const Add& add)>;

  void push(Task task) { tasks_.push_back(std::move(task)); }
  // Runs what was pushed, in that order, and drops each task's tensors behind it. No gradients are
  // recorded.
  void run(const Add& add);
  bool empty() const { return tasks_.empty(); }

 private:
  std::vector<Task> tasks_;
};

// While it lives, what this thread records with record_late() (record_late.h) goes to the queue; an
// undefined queue: to none. Scopes nest.
class LateScope {
 public:
  explicit LateScope(std::shared_ptr<LateQueue> queue);
  ~LateScope();
  LateScope(const LateScope&) = delete;
  LateScope& operator=(const LateScope&) = delete;

  static const std::shared_ptr<LateQueue>& current();

 private:
  std::shared_ptr<LateQueue> before_;
};

}  // namespace troupe
