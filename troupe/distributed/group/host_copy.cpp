#include "troupe/distributed/group/host_copy.h"

#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

namespace troupe {

struct HostCopy::Event {
  c10::Event event;
};

HostCopy::HostCopy(const at::Tensor& x) : copy_(x) {
  if (x.is_cpu()) return;
  copy_ = at::empty(x.sizes(), x.options().device(at::kCPU).pinned_memory(true));
  copy_.copy_(x, /*non_blocking=*/true);
  event_ = std::make_shared<Event>(Event{c10::Event(x.device().type())});
  event_->event.record(c10::impl::VirtualGuardImpl(x.device().type()).getStream(x.device()));
}

at::Tensor HostCopy::read() {
  if (const auto event = std::exchange(event_, nullptr)) event->event.synchronize();
  return copy_;
}

}  // namespace troupe
