// Faults on demand, for tests of what survives them: TROUPE_FAULT=point[#n][@rank][:step]=action,
// several joined by ";". At the n-th time (any, if not said) that the rank's process comes to the
// point, in that step, the action happens.
//   TROUPE_FAULT='fs.op#7=kill;save.shard@1=sleep:3000;optim:5=nan'
// Actions: kill (SIGKILL), stop (SIGSTOP), exit:N, sleep:MS, throw; enospc, eio, short (half of a
// write), flip, nan, inf are the caller's to do.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/core/file/publish.h"

namespace troupe {

enum class FaultAction {
  kNone,
  kKill,
  kStop,
  kExit,
  kSleep,
  kThrow,
  kEnospc,
  kEio,
  kShort,
  kFlip,
  kNan,
  kInf
};

// Passed down by reference; empty, it costs a comparison a point. Any thread may ask.
class Faults {
 public:
  Faults() = default;
  // Throws E2009 for text that does not read.
  explicit Faults(std::string_view text, int rank = 0);
  static Faults from_environment(int rank);  // TROUPE_FAULT

  // Does what is asked for here; returns what the caller must do itself, else kNone. `step` < 0: no
  // step is known, and a fault with a step does not happen.
  FaultAction at(std::string_view point, int64_t step = -1) const {
    return rules_.empty() ? FaultAction::kNone : hit(point, step);
  }
  bool empty() const { return rules_.empty(); }

 private:
  struct Rule {
    std::string point;
    int64_t nth = 0;    // 0: each time
    int64_t step = -1;  // -1: any
    FaultAction action = FaultAction::kNone;
    int64_t argument = 0;
    std::shared_ptr<std::atomic<int64_t>> count = std::make_shared<std::atomic<int64_t>>(0);
  };
  FaultAction hit(std::string_view point, int64_t step) const;

  std::vector<Rule> rules_;  // of this rank
};

// A disk with the faults of the point "fs.op", which counts every operation.
class FaultyFs : public Fs {
 public:
  FaultyFs(Fs& fs, const Faults& faults) : fs_(fs), faults_(faults) {}
  int open(const std::string& path, int flags) override;
  ssize_t write(int fd, const void* data, size_t size) override;
  int fsync(int fd) override;
  int close(int fd) override;
  int rename(const std::string& from, const std::string& to) override;
  int rename_new(const std::string& from, const std::string& to) override;
  int exchange(const std::string& a, const std::string& b) override;
  int unlink(const std::string& path) override;
  int mkdir(const std::string& path) override;
  int rmdir(const std::string& path) override;

 private:
  bool fails();

  Fs& fs_;
  const Faults& faults_;
};

}  // namespace troupe
