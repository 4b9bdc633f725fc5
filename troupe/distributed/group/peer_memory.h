// A block of memory of each rank of a group, mapped by all of them: rank w's is at of(w), and plain
// loads and stores reach it. It begins as zeros and lives until the last rank has let go of it.
//
// On CPUs it is shared memory of the ranks' processes (or threads) of one machine, without a name
// that a crash could leave behind: peers open it through the process that has it, so they must be
// of the same user and see each other's processes. On GPUs it is memory of each rank's device that
// peers open by its CUDA IPC handle: GPUs that reach each other (NVLink, or PCIe within a root), or
// one GPU that several processes share.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace troupe {

class ProcessGroup;

class PeerMemory {
 public:
  virtual ~PeerMemory() = default;
  uint8_t* of(int64_t w) const { return of_[static_cast<size_t>(w)]; }
  // True also for a peer that is played by this rank (echo_backend.h): its memory is this rank's.
  bool is_own(int64_t w) const { return of(w) == own_; }

 protected:
  std::vector<uint8_t*> of_;
  uint8_t* own_ = nullptr;
};

// Collective: every rank of the group asks for the same number of bytes. Where one cannot map
// another's memory, every rank throws E2005 with both ranks and the reason.
std::shared_ptr<PeerMemory> host_peer_memory(ProcessGroup& group, const c10::Device& device,
                                             int64_t bytes);

// The same in memory of each rank's GPU; in libtroupe_cuda.so, by this name (device_memory.cpp).
using MakeDeviceMemory = PeerMemory* (*)(ProcessGroup& group, const c10::Device& device,
                                         int64_t bytes);
inline constexpr const char* kMakeDeviceMemory = "troupe_make_device_memory";
std::shared_ptr<PeerMemory> device_peer_memory(ProcessGroup& group, const c10::Device& device,
                                               int64_t bytes);

// After all have tried to map each other's block: throws on every rank where one could not.
// `failed`: the first peer whose block this rank cannot map, or -1; `why` is a number that
// `reason` explains.
struct NotMapped {
  int64_t peer = -1, why = 0;
};
void require_mapped(ProcessGroup& group, const c10::Device& device, const NotMapped& failed,
                    const std::string& what, std::string (*reason)(int64_t));

// All-gathers numbers through the group; on GPUs it waits for the device. For setting up.
std::vector<std::vector<int64_t>> gather_numbers(ProcessGroup& group, const c10::Device& device,
                                                 const std::vector<int64_t>& own);

}  // namespace troupe
