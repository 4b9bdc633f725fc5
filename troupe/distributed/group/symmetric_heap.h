// Transfers between ranks through memory that all of them reach: what a dispatcher uses where rows
// can go by plain loads, without a collective.
//
//   SymmetricHeap& heap = group.heap(device);
//   heap.reserve(bytes);                            // every rank, with the same number
//   std::shared_ptr<Transfer> t = heap.begin(Collective::kAllToAll, bytes);
//   ... writes to t->own() ...
//   t->publish();                                   // the others may read it
//   t->await();                                     // all have published
//   ... reads t->of(w) ...
//   t.reset();                                      // this rank has read all it wants
//
// Every rank begins the same transfers in the same order. Each takes the next of kSlots slots in
// turn, and begin() waits until every rank has read what the slot held before: so no barrier is
// needed, and up to kSlots transfers may be open at once. A rank that would wait for itself gets
// E9001.
//
// Each wait ends: with E6001 as soon as the missing rank's process is seen to have ended or its
// heap is gone, and after the group's timeout. A transfer says what it is: where a rank awaits
// another kind, number of bytes or `contents` than one has published, that is an E6001 of both.
//
// A slot's transfers are numbered by a word beside the flags, which begin() advances where the
// memory is. So what was enqueued can be captured in a CUDA graph and replayed: slots stay those of
// the capture, and numbers go on. Every rank captures the same transfers, each from begin() to its
// end, and replays in the same order as the others, among other calls too. Of replays no host call
// throws: check_device() is to be called, or gave_up() read, before what they computed is used.
//
// On GPUs memory is the devices', all of this but agree() and reserve() is enqueued on the current
// stream, and nothing waits for a device. A wait there that gives up lets the stream continue with
// what is in memory; the next call of begin() or agree() throws. What was computed since is not
// to be used before gave_up() was read. A thread looks after the peers' processes meanwhile, so a
// dead one ends the device's wait too.
#pragma once

#include <c10/core/Device.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "troupe/distributed/group/process_group.h"
#include "troupe/kernels/peer_flags/peer_flags.h"

namespace troupe {

class PeerMemory;

class SymmetricHeap {
 public:
  static constexpr int64_t kSlots = 3;

  // ProcessGroup::heap() makes it. Collective.
  SymmetricHeap(ProcessGroup& group, const c10::Device& device);
  ~SymmetricHeap();
  SymmetricHeap(const SymmetricHeap&) = delete;
  SymmetricHeap& operator=(const SymmetricHeap&) = delete;

  // All-gathers numbers between the hosts, in microseconds: what each host knows, such as its
  // number of tokens.
  using Numbers = std::array<int64_t, 6>;
  std::vector<Numbers> agree(const Numbers& own);

  // Makes room for transfers of `bytes` per rank; only grows. Collective where it does.
  void reserve(int64_t bytes);
  int64_t bytes() const;  // reserved by this rank, of all slots

  // f64 scalar on the device: 1 where a wait that was enqueued before has timed out, else 0;
  // made on the current stream. On CPUs a wait that times out throws.
  at::Tensor gave_up() const;
  void check_device() const;  // throws E6001 where a wait on the device has given up

  class Transfer {
   public:
    ~Transfer();
    Transfer(const Transfer&) = delete;
    Transfer& operator=(const Transfer&) = delete;

    uint8_t* own() const { return of_rank(heap_.group_.rank()); }
    const uint8_t* of(int64_t w) const { return of_rank(w); }
    void publish();
    void await();  // once or more

   private:
    friend class SymmetricHeap;
    struct Memory;
    struct Identity {
      uint64_t number;  // of those that this rank has begun, for messages; and its slot
      uint32_t mark;    // of kind, bytes and contents
    };
    Transfer(SymmetricHeap& heap, std::shared_ptr<Memory> memory, const Identity& identity,
             const Operation& operation);
    uint8_t* of_rank(int64_t w) const;

    SymmetricHeap& heap_;
    std::shared_ptr<Memory> memory_;  // one that has been outgrown lives until its last transfer
    Identity identity_;
    Operation operation_;
    SignalFlags read_;  // for the end, which may come after the group's
    c10::Device device_;
    bool published_ = false, arrived_ = false;
  };
  // `contents`: a number for what the bytes are; equal on every rank.
  std::shared_ptr<Transfer> begin(Collective what, int64_t bytes, uint64_t contents = 0);

 private:
  struct Control;
  // A peer's process; 0: it is this one. `descriptor`: a pidfd; -1: the system has none.
  struct Watched {
    int process = 0, descriptor = -1;
    bool has_ended() const;
  };
  Control& control(int64_t w) const;
  struct OnDevice;
  // Waits for flags of all ranks, [w]; `what` is for the message.
  void wait(const AwaitFlags& flags, const std::string& what);
  void wait_on_host(const AwaitFlags& flags, const std::string& what);
  // `missing` as AwaitFlags has it.
  [[noreturn]] void lost(const std::string& what, int32_t missing, std::string why) const;
  std::string why_gone(int64_t w) const;  // empty: it is there, as far as can be seen

  ProcessGroup& group_;
  c10::Device device_;
  std::shared_ptr<PeerMemory> control_;
  std::vector<Watched> watched_;  // [w]
  std::shared_ptr<Transfer::Memory> memory_;
  std::vector<std::shared_ptr<Transfer::Memory>> outgrown_;  // of GPUs: peers may still read it
  std::unique_ptr<OnDevice> on_device_;                      // null on CPUs
  uint64_t agreed_ = 0;
};
using Transfer = SymmetricHeap::Transfer;

}  // namespace troupe
