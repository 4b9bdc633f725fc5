#include "troupe/ops/support/side_stream.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <exception>

#include "troupe/core/check.h"

namespace troupe {

SideWork::SideWork(const c10::Stream& home, const c10::Stream& side)
    : home_(home), done_(side.device_type()) {
  done_.record(side);
}

SideWork::~SideWork() {
  if (home_waits_) return;
  try {
    done_.block(home_);
  } catch (const std::exception&) {  // a device that fails here fails the next call as well
  }
}

void SideWork::wait() {
  const c10::impl::VirtualGuardImpl impl(home_.device_type());
  const c10::Stream current = impl.getStream(home_.device());
  if (current == home_ && home_waits_) return;
  done_.block(current);
  if (current == home_) home_waits_ = true;
}

std::shared_ptr<SideWork> SideStream::run(const c10::Device& device,
                                          const std::function<void()>& f) {
  const c10::impl::VirtualGuardImpl impl(device.type());
  if (!stream_) stream_ = impl.getStreamFromGlobalPool(device, /*isHighPriority=*/false);
  TROUPE_CHECK(stream_->device() == device, "a side stream of", stream_->device().str(),
               "was given work of", device.str());
  const c10::Stream home = impl.getStream(device);
  c10::Event before(device.type());
  before.record(home);
  before.block(*stream_);
  try {
    const c10::StreamGuard guard(*stream_);
    f();
  } catch (...) {
    const SideWork begun(home, *stream_);  // joins what f had launched
    throw;
  }
  return std::make_shared<SideWork>(home, *stream_);
}

}  // namespace troupe
