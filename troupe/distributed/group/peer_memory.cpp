#include "troupe/distributed/group/peer_memory.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <string>

#include "troupe/core/check.h"
#include "troupe/core/file/hash.h"
#include "troupe/distributed/group/process_group.h"
#include "troupe/distributed/status/process.h"
#include "troupe/ops/support/cuda_plugin.h"

namespace troupe {
namespace {

constexpr int64_t kHead = 4096;     // holds the block's own number, so that nothing else is taken
constexpr int64_t kElsewhere = -1;  // in place of an errno: the peer is on another machine
constexpr int64_t kOtherFile = -2;  // what was opened is not the peer's block

// Equal for processes that see each other by their ids.
int64_t this_machine() {
  return static_cast<int64_t>(hash64(this_process().machine));
}

int64_t random_number() {
  std::random_device device;
  return static_cast<int64_t>(uint64_t{device()} << 32 | device());
}

// What a rank tells of its block, in this order.
enum HandleField : size_t { kMachine, kProcess, kDescriptor, kNumber, kHandleFields };

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

std::string reason(int64_t error) {
  if (error == kElsewhere) return "they are on different machines or in different containers";
  if (error == kOtherFile) return "its process has another file there";
  return std::strerror(static_cast<int>(error));
}

class HostPeerMemory : public PeerMemory {
 public:
  HostPeerMemory(ProcessGroup& group, const c10::Device& device, int64_t bytes)
      : bytes_(kHead + bytes) {
    const Descriptor file(::memfd_create("troupe rank memory", MFD_CLOEXEC));
    if (file.get() < 0 || ::ftruncate(file.get(), bytes_) != 0) {
      fail(Code::kFileFailed, "shared memory", bytes_, "bytes:", std::strerror(errno));
    }
    const int64_t number = random_number();
    uint8_t* const own = map(file.get());
    if (own == nullptr) {
      fail(Code::kFileFailed, "shared memory", bytes_, "bytes:", std::strerror(errno));
    }
    std::memcpy(own, &number, sizeof number);
    own_ = own + kHead;
    const auto all =
        gather_numbers(group, device, {this_machine(), ::getpid(), file.get(), number});
    // The first that this rank cannot map, and why.
    NotMapped failed;
    for (size_t w = 0; w < all.size(); ++w) {
      const bool own_rank = all[w] == all[static_cast<size_t>(group.rank())];
      const int64_t error = own_rank ? 0 : open_peer(all[w], all[0][kMachine]);
      if (own_rank) of_.push_back(own_);
      if (error != 0 && failed.peer < 0) failed = {static_cast<int64_t>(w), error};
    }
    // After this every rank has opened what it needs, and the file may be closed.
    try {
      require_mapped(group, device, failed, "shared memory", reason);
    } catch (...) {
      unmap();
      throw;
    }
  }
  ~HostPeerMemory() override { unmap(); }
  HostPeerMemory(const HostPeerMemory&) = delete;
  HostPeerMemory& operator=(const HostPeerMemory&) = delete;

 private:
  uint8_t* map(int fd) const {
    void* const at =
        ::mmap(nullptr, static_cast<size_t>(bytes_), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return at == MAP_FAILED ? nullptr : static_cast<uint8_t*>(at);
  }

  // 0, or why not. Nothing is written to before its number has been compared.
  int64_t open_peer(const std::vector<int64_t>& record, int64_t machine) {
    if (record[kMachine] != machine || machine != this_machine()) return kElsewhere;
    const std::string path =
        "/proc/" + std::to_string(record[kProcess]) + "/fd/" + std::to_string(record[kDescriptor]);
    const Descriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (file.get() < 0) return errno;
    struct stat is = {};
    int64_t number = 0;
    if (::fstat(file.get(), &is) != 0) return errno;
    if (!S_ISREG(is.st_mode) || is.st_size != bytes_ ||
        ::pread(file.get(), &number, sizeof number, 0) != ssize_t{sizeof number} ||
        number != record[kNumber]) {
      return kOtherFile;
    }
    uint8_t* const at = map(file.get());
    if (at == nullptr) return errno;
    of_.push_back(at + kHead);
    return 0;
  }

  void unmap() {
    for (uint8_t* const at : of_) {
      if (at != own_) ::munmap(at - kHead, static_cast<size_t>(bytes_));
    }
    if (own_ != nullptr) ::munmap(own_ - kHead, static_cast<size_t>(bytes_));
    of_.clear();
    own_ = nullptr;
  }

  int64_t bytes_;
};

}  // namespace

std::shared_ptr<PeerMemory> host_peer_memory(ProcessGroup& group, const c10::Device& device,
                                             int64_t bytes) {
  return std::make_shared<HostPeerMemory>(group, device, bytes);
}

std::shared_ptr<PeerMemory> device_peer_memory(ProcessGroup& group, const c10::Device& device,
                                               int64_t bytes) {
  auto make = reinterpret_cast<MakeDeviceMemory>(cuda_plugin_symbol(kMakeDeviceMemory));
  return std::shared_ptr<PeerMemory>(make(group, device, bytes));
}

void require_mapped(ProcessGroup& group, const c10::Device& device, const NotMapped& failed,
                    const std::string& what, std::string (*reason)(int64_t)) {
  const auto failures = gather_numbers(group, device, {failed.peer, failed.why});
  for (size_t w = 0; w < failures.size(); ++w) {
    if (failures[w][0] < 0) continue;
    const auto& ranks = group.ranks();
    fail(Code::kBadValue, what + " of " + group.description(), "rank", ranks[w],
         "cannot map that of rank",
         std::to_string(ranks[static_cast<size_t>(failures[w][0])]) + ": " +
             reason(failures[w][1]) +
             ". parallel.dispatcher: symmetric needs ranks of one machine and one user whose "
             "devices reach each other; use auto");
  }
}

std::vector<std::vector<int64_t>> gather_numbers(ProcessGroup& group, const c10::Device& device,
                                                 const std::vector<int64_t>& own) {
  const at::Tensor mine = at::tensor(own, at::kLong).unsqueeze(0).to(device);
  const at::Tensor all = at::empty({group.size(), mine.size(1)}, mine.options());
  group.all_gather({all}, {mine}).wait();
  const at::Tensor host = all.cpu();
  std::vector<std::vector<int64_t>> out;
  for (int64_t w = 0; w < group.size(); ++w) {
    const auto* const row = host.const_data_ptr<int64_t>() + w * mine.size(1);
    out.emplace_back(row, row + mine.size(1));
  }
  return out;
}

}  // namespace troupe
