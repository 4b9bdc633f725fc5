// Copies between a device and host memory beside computation: each lane is a stream of its own. On
// a CPU all copies are made at the call.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>

namespace troupe {

using CopyMark = std::optional<c10::Event>;  // when copies have ended; none: they have

class CopyLane {
 public:
  explicit CopyLane(const c10::Device& device) : device_(device) {
    if (device.is_cpu()) return;
    impl_.emplace(device.type());
    stream_ = impl_->getStreamFromGlobalPool(device, /*isHighPriority=*/false);
  }

  // Copies that f issues run behind what the current stream has been given so far, and behind
  // `after`, of any lane.
  template <class F>
  CopyMark run(F&& f, const CopyMark& after = {}) {
    if (!stream_) {
      f();
      return {};
    }
    c10::Event before(device_.type()), ended(device_.type());
    before.record(impl_->getStream(device_));
    before.block(*stream_);
    if (after) after->block(*stream_);
    const c10::StreamGuard guard(*stream_);
    f();
    ended.record(*stream_);
    return ended;
  }

  // What the current stream is given from now on waits for the copies.
  void wait(const CopyMark& mark) const {
    if (mark) mark->block(impl_->getStream(device_));
  }

  // The host waits for all that the lane was given.
  void finish() const {
    if (stream_) impl_->synchronizeStream(*stream_);
  }

 private:
  c10::Device device_;
  std::optional<c10::impl::VirtualGuardImpl> impl_;
  std::optional<c10::Stream> stream_;
};

}  // namespace troupe
