// The wheel's ProcessGroupGloo.hpp names five headers of Gloo that the wheel leaves out. These
// declare what it names; the code is in libtorch_cpu. Nothing here is ever made or called by us.
#pragma once

#include <chrono>

namespace gloo {
class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};
}  // namespace gloo
