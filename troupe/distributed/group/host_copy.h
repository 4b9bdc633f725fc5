// An asynchronous copy of a small tensor to the host. On a GPU it goes to pinned memory on the
// current stream, and read() waits for this copy only.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

namespace troupe {

class HostCopy {
 public:
  HostCopy() = default;
  explicit HostCopy(const at::Tensor& x);
  at::Tensor read();  // on the CPU

 private:
  struct Event;
  std::shared_ptr<Event> event_;  // null: complete
  at::Tensor copy_;
};

}  // namespace troupe
