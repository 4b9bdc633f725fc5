// A small tensor on its way to the host: started now, read later. On a GPU it goes to pinned memory
// on the current stream, and read() waits for that copy alone.
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
  std::shared_ptr<Event> event_;  // none: it is there
  at::Tensor copy_;
};

}  // namespace troupe
