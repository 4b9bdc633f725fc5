#include "troupe/distributed/group/symmetric_heap.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ge.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <stop_token>
#include <thread>
#include <utility>

#include "troupe/core/check.h"
#include "troupe/core/file/hash.h"
#include "troupe/core/number/round.h"
#include "troupe/distributed/group/peer_memory.h"
#include "troupe/distributed/status/process.h"
#include "troupe/ops/support/run.h"

namespace troupe {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kPage = 4096;
// Between two looks at whether a peer is still there.
constexpr int64_t kLook = 50'000'000;
constexpr std::chrono::seconds kLeaveTime{2};

// The first page of a rank's memory: words that others write, [slot][rank that wrote it].
struct Flags {
  struct Published {
    uint32_t number, mark;  // of the transfer in this slot
  } arrived[SymmetricHeap::kSlots][kMostPeers];
  uint32_t read[SymmetricHeap::kSlots][kMostPeers];  // the number of the transfer read
  uint32_t begun[SymmetricHeap::kSlots];             // by the rank whose memory this is
};
static_assert(sizeof(Flags) <= kPage);

Flags& flags_of(const PeerMemory& memory, int64_t w) {
  return *reinterpret_cast<Flags*>(memory.of(w));
}

}  // namespace

// What hosts tell each other, in each rank's memory; a rank writes to its own alone.
struct SymmetricHeap::Control {
  uint32_t left;  // the rank's heap is gone
  struct NumberSlots {
    uint32_t number;
    Numbers numbers;
  } slots[2];  // the next but one is written after all have read this one
};

struct SymmetricHeap::Transfer::Memory {
  std::shared_ptr<PeerMemory> peers;
  int64_t slot_bytes = 0;
  uint64_t begun = 0;
  std::array<bool, kSlots> open = {};  // by this rank

  static size_t slot(uint64_t number) { return static_cast<size_t>(number % kSlots); }
};

// Words that a GPU and this process both see, and who looks after the peers while the GPU waits.
struct SymmetricHeap::OnDevice {
  explicit OnDevice(SymmetricHeap& of)
      : heap(of),
        words(at::empty({2}, at::TensorOptions().dtype(at::kInt).pinned_memory(true))),
        watch([this](const std::stop_token& end) { look(end); }) {
    words[0].fill_(0);
    words[1].fill_(-1);
  }
  const uint32_t* stop_word() const {
    return reinterpret_cast<const uint32_t*>(words.const_data_ptr<int32_t>());
  }
  int32_t* missing_word() const { return words.mutable_data_ptr<int32_t>() + 1; }
  int32_t missing() const {
    return std::atomic_ref(*missing_word()).load(std::memory_order_acquire);
  }
  void look(const std::stop_token& end) const {
    while (!end.stop_requested()) {
      for (int64_t w = 0; w < heap.group_.size(); ++w) {
        if (heap.why_gone(w).empty()) continue;
        stop();
      }
      if (Clock::now() > leaves.load()) stop();
      std::this_thread::sleep_for(std::chrono::nanoseconds(kLook));
    }
  }
  void stop() const {
    std::atomic_ref(*words.mutable_data_ptr<int32_t>()).store(1, std::memory_order_release);
  }
  // What was enqueued is done, except for waits for peers that do not come soon; nothing is thrown.
  void finish() {
    leaves = Clock::now() + kLeaveTime;
    try {
      c10::impl::VirtualGuardImpl(heap.device_.type()).synchronizeDevice(heap.device_.index());
    } catch (const std::exception&) {  // it failed: its next call says so
    }
    watch.request_stop();
    watch.join();
  }

  SymmetricHeap& heap;
  at::Tensor words;  // int32, pinned: whether waits shall stop, and the rank that did not come
  std::atomic<Clock::time_point> leaves = Clock::time_point::max();
  std::jthread watch;
};

SymmetricHeap::SymmetricHeap(ProcessGroup& group, const c10::Device& device)
    : group_(group), device_(device) {
  if (group.size() > kMostPeers) {
    fail(Code::kBadValue, "parallel.dispatcher", "symmetric joins up to", kMostPeers,
         "ranks of a machine; there are", group.size());
  }
  control_ = host_peer_memory(group, device, sizeof(Control));
  for (const auto& record : gather_numbers(group, device, {int64_t{::getpid()}})) {
    const auto process = static_cast<int>(record[0]);
    const bool here = process == ::getpid();
    watched_.push_back(
        {.process = here ? 0 : process,
         .descriptor = here ? -1 : static_cast<int>(::syscall(SYS_pidfd_open, process, 0))});
  }
  if (!device.is_cpu()) on_device_ = std::make_unique<OnDevice>(*this);
}

SymmetricHeap::~SymmetricHeap() {
  if (on_device_) on_device_->finish();
  std::atomic_ref(control(group_.rank()).left).store(1, std::memory_order_release);
  // A GPU's memory must not go while a peer may read it.
  const Clock::time_point end = Clock::now() + kLeaveTime;
  const auto stays = [this](int64_t w) { return why_gone(w).empty(); };
  for (int64_t w = 0; on_device_ && w < group_.size(); ++w) {
    while (stays(w) && Clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  for (const Watched& peer : watched_) {
    if (peer.descriptor >= 0) ::close(peer.descriptor);
  }
}

// A pidfd tells of the very process; where the kernel has none, its number must do.
bool SymmetricHeap::Watched::has_ended() const {
  if (process == 0) return false;
  if (descriptor >= 0) {
    pollfd events{.fd = descriptor, .events = POLLIN, .revents = 0};
    return ::poll(&events, 1, 0) == 1;
  }
  return troupe::has_ended(process);
}

SymmetricHeap::Control& SymmetricHeap::control(int64_t w) const {
  return *reinterpret_cast<Control*>(control_->of(w));
}

std::string SymmetricHeap::why_gone(int64_t w) const {
  const std::string rank = "rank " + std::to_string(group_.ranks()[static_cast<size_t>(w)]);
  if (std::atomic_ref(control(w).left).load(std::memory_order_acquire) != 0) {
    return rank + " has left the group";
  }
  if (watched_[static_cast<size_t>(w)].has_ended()) return "the process of " + rank + " has ended";
  return "";
}

void SymmetricHeap::lost(const std::string& what, int32_t missing, std::string why) const {
  const std::string rank =
      "rank " + std::to_string(group_.ranks()[static_cast<size_t>(missing % kMostPeers)]);
  if (missing >= kMostPeers) {
    why = rank + " has another transfer there, or one of other sizes";
  } else if (why.empty()) {
    const auto limit = std::chrono::duration_cast<std::chrono::seconds>(group_.timeout());
    why = rank + " did not come within " + std::to_string(limit.count()) + " s";
  }
  fail(Code::kRankLost, what + " of " + group_.description() + " through shared memory", why);
}

at::Tensor SymmetricHeap::gave_up() const {
  const auto f64 = at::TensorOptions(at::kDouble).device(device_);
  if (!on_device_) return at::zeros({}, f64);
  return on_device_->words[1].to(device_, /*non_blocking=*/true).ge(0).to(at::kDouble);
}

void SymmetricHeap::check_device() const {
  if (!on_device_) return;
  const int32_t missing = on_device_->missing();
  if (missing >= 0) lost("a transfer", missing, why_gone(missing % kMostPeers));
}

void SymmetricHeap::wait(const AwaitFlags& flags, const std::string& what) {
  if (!on_device_) return wait_on_host(flags, what);
  AwaitFlags all = flags;
  all.limit_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(group_.timeout()).count();
  all.stop = on_device_->stop_word();
  all.missing = on_device_->missing_word();
  run(device_, all, await_flags_cpu, &CudaKernels::await_flags);
}

void SymmetricHeap::wait_on_host(const AwaitFlags& flags, const std::string& what) {
  const Waiting waiting(group_.pulse());
  const Clock::time_point end = Clock::now() + group_.timeout();
  while (true) {
    AwaitFlags some = flags;
    int32_t missing = -1;
    some.missing = &missing;
    some.limit_ns = std::clamp<int64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(end - Clock::now()).count(), 0, kLook);
    await_flags_cpu(some, serial);
    if (missing < 0) return;
    if (missing >= kMostPeers) lost(what, missing, "");
    std::string why = why_gone(missing);
    if (why.empty() && Clock::now() < end) continue;
    // What it did before it went counts.
    missing = -1;
    some.limit_ns = 0;
    await_flags_cpu(some, serial);
    if (missing < 0) return;
    lost(what, missing, std::move(why));
  }
}

std::vector<SymmetricHeap::Numbers> SymmetricHeap::agree(const Numbers& own) {
  const uint64_t number = ++agreed_;
  const auto at = static_cast<size_t>(number % 2);
  Control::NumberSlots& mine = control(group_.rank()).slots[at];
  mine.numbers = own;
  signal_flags_cpu({.count = 1, .flags = {&mine.number}, .value = static_cast<uint32_t>(number)},
                   serial);
  AwaitFlags all{.count = group_.size(), .want = static_cast<uint32_t>(number)};
  for (int64_t w = 0; w < group_.size(); ++w) {
    all.flags[static_cast<size_t>(w)] = &control(w).slots[at].number;
  }
  wait_on_host(all, "exchange of sizes");
  check_device();
  std::vector<Numbers> out;
  for (int64_t w = 0; w < group_.size(); ++w) out.push_back(control(w).slots[at].numbers);
  return out;
}

void SymmetricHeap::reserve(int64_t bytes) {
  if (memory_ && bytes <= memory_->slot_bytes) return;
  auto grown = std::make_shared<Transfer::Memory>();
  grown->slot_bytes = round_up(std::max<int64_t>(bytes, 1), kPage);
  const int64_t all = kPage + kSlots * grown->slot_bytes;
  grown->peers = on_device_ ? device_peer_memory(group_, device_, all)
                            : host_peer_memory(group_, device_, all);
  if (on_device_ && memory_) outgrown_.push_back(memory_);
  memory_ = std::move(grown);
}

int64_t SymmetricHeap::bytes() const {
  return memory_ ? kPage + kSlots * memory_->slot_bytes : 0;
}

std::shared_ptr<SymmetricHeap::Transfer> SymmetricHeap::begin(Collective what, int64_t bytes,
                                                              uint64_t contents) {
  TROUPE_CHECK(memory_ && bytes <= memory_->slot_bytes, "a transfer of", bytes, "bytes, and",
               memory_ ? memory_->slot_bytes : 0, "are reserved");
  Transfer::Memory& m = *memory_;
  const uint64_t number = m.begun + 1;
  const size_t slot = Transfer::Memory::slot(number);
  check_device();
  TROUPE_CHECK(!m.open[slot], "this rank has", kSlots, "transfers open and begins another");
  Flags& own = flags_of(*m.peers, group_.rank());
  AwaitFlags read{.count = group_.size(), .want_at = &own.begun[slot], .advance = &own.begun[slot]};
  for (int64_t w = 0; w < group_.size(); ++w) {
    read.flags[static_cast<size_t>(w)] = &own.read[slot][w];
  }
  wait(read, "what all have to read before transfer " + std::to_string(number));
  m.begun = number;
  m.open[slot] = true;
  const std::string said = std::to_string(static_cast<int>(what)) + ' ' + std::to_string(bytes) +
                           ' ' + std::to_string(contents);
  const Transfer::Identity identity{.number = number, .mark = static_cast<uint32_t>(hash64(said))};
  return std::shared_ptr<Transfer>(
      new Transfer(*this, memory_, identity, group_.count(what, bytes)));
}

namespace {

// Every rank's word for this one, of those in Flags; of a rank that this one plays, the word of
// that rank in its own. word(flags, writer) is that of a writer.
template <class Word>
SignalFlags to_all(const PeerMemory& memory, const ProcessGroup& group, size_t slot, Word&& word) {
  SignalFlags out{.count = group.size(), .value_at = &flags_of(memory, group.rank()).begun[slot]};
  for (int64_t w = 0; w < group.size(); ++w) {
    const int64_t writer = memory.is_own(w) ? w : group.rank();
    out.flags[static_cast<size_t>(w)] = word(flags_of(memory, w), writer);
  }
  return out;
}

void note(Pulse* pulse, Note event, const Operation& operation) {
  if (pulse != nullptr) pulse->note(event, operation);
}

}  // namespace

SymmetricHeap::Transfer::Transfer(SymmetricHeap& heap, std::shared_ptr<Memory> memory,
                                  const Identity& identity, const Operation& operation)
    : heap_(heap),
      memory_(std::move(memory)),
      identity_(identity),
      operation_(operation),
      read_(to_all(*memory_->peers, heap.group_, Memory::slot(identity.number),
                   [slot = Memory::slot(identity.number)](Flags& flags, int64_t writer) {
                     return &flags.read[slot][writer];
                   })),
      device_(heap.device_) {}

uint8_t* SymmetricHeap::Transfer::of_rank(int64_t w) const {
  return memory_->peers->of(w) + kPage +
         static_cast<int64_t>(Memory::slot(identity_.number)) * memory_->slot_bytes;
}

void SymmetricHeap::Transfer::publish() {
  TROUPE_CHECK(!std::exchange(published_, true), "a transfer is published once");
  note(heap_.group_.pulse(), Note::kIssue, operation_);
  const size_t slot = Memory::slot(identity_.number);
  SignalFlags all =
      to_all(*memory_->peers, heap_.group_, slot,
             [slot](Flags& flags, int64_t writer) { return &flags.arrived[slot][writer].number; });
  all.marked = true;
  all.mark = identity_.mark;
  run(device_, all, signal_flags_cpu, &CudaKernels::signal_flags);
}

void SymmetricHeap::Transfer::await() {
  if (std::exchange(arrived_, true)) return;
  const ProcessGroup& group = heap_.group_;
  const size_t slot = Memory::slot(identity_.number);
  const Flags& own = flags_of(*memory_->peers, group.rank());
  AwaitFlags all{
      .count = group.size(), .want_at = &own.begun[slot], .marked = true, .mark = identity_.mark};
  for (int64_t w = 0; w < group.size(); ++w) {
    all.flags[static_cast<size_t>(w)] = &own.arrived[slot][w].number;
  }
  note(group.pulse(), Note::kWait, operation_);
  heap_.wait(all, std::string(to_text(operation_.what)) + ' ' + std::to_string(identity_.number));
  note(group.pulse(), Note::kWaited, operation_);
}

// Also where this rank reads nothing: the others may go on.
SymmetricHeap::Transfer::~Transfer() {
  memory_->open[Memory::slot(identity_.number)] = false;
  try {
    run(device_, read_, signal_flags_cpu, &CudaKernels::signal_flags);
  } catch (const std::exception&) {  // of a device that has failed: its next call says so
  }
}

}  // namespace troupe
