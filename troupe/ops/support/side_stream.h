// A second stream of a device, for work that can run beside what the current stream does next.
//
// Memory that the work writes is allocated before it begins, on the stream that is current then,
// and goes back to the allocator behind it: SideWork makes that stream wait, at the latest where it
// ends itself. So the allocator's order is the device's, and no block needs record_stream, whose
// blocks a CUDA graph's pool would not give out again before the capture ends.
//
// A capture of the current stream takes the work in as a branch; wait() joins it.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <functional>
#include <memory>
#include <optional>

namespace troupe {

// What a side stream had to do when this was made. Destroy it before the memory that it writes.
class SideWork {
 public:
  SideWork(const c10::Stream& home, const c10::Stream& side);
  SideWork(const SideWork&) = delete;
  SideWork& operator=(const SideWork&) = delete;
  ~SideWork();  // `home` waits, if it has not yet

  void wait();  // the current stream does what comes next behind it; the host does not wait

 private:
  c10::Stream home_;
  c10::Event done_;
  bool home_waits_ = false;
};

// Takes a stream from PyTorch's pool at its first use, of the lowest priority, and keeps it. For
// one device, and for one thread at a time.
class SideStream {
 public:
  // Runs f with this as the device's current stream, behind all that the stream that was current
  // has to do.
  std::shared_ptr<SideWork> run(const c10::Device& device, const std::function<void()>& f);

 private:
  std::optional<c10::Stream> stream_;
};

}  // namespace troupe
