#include "troupe/ops/support/late.h"

#include <ATen/core/grad_mode.h>

#include <utility>

namespace troupe {
namespace {

// One for each thread, as the mode of gradients is.
std::shared_ptr<LateQueue>& late_queue() {
  thread_local std::shared_ptr<LateQueue> queue;
  return queue;
}

}  // namespace

void LateQueue::run(const Add& add) {
  const at::NoGradGuard no_grad;
  for (Task& task : tasks_) std::exchange(task, nullptr)(add);
  tasks_.clear();
}

LateScope::LateScope(std::shared_ptr<LateQueue> queue)
    : before_(std::exchange(late_queue(), std::move(queue))) {}

LateScope::~LateScope() {
  late_queue() = std::move(before_);
}

const std::shared_ptr<LateQueue>& LateScope::current() {
  return late_queue();
}

}  // namespace troupe
