#include "troupe/core/file/fault.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "troupe/core/check.h"
#include "troupe/core/text/text.h"

namespace troupe {
namespace {

constexpr auto kActions =
    std::array{Named{"kill", FaultAction::kKill},   Named{"stop", FaultAction::kStop},
               Named{"exit", FaultAction::kExit},   Named{"sleep", FaultAction::kSleep},
               Named{"throw", FaultAction::kThrow}, Named{"enospc", FaultAction::kEnospc},
               Named{"eio", FaultAction::kEio},     Named{"short", FaultAction::kShort},
               Named{"flip", FaultAction::kFlip},   Named{"nan", FaultAction::kNan},
               Named{"inf", FaultAction::kInf}};

[[noreturn]] void refuse(std::string_view rule, const char* why) {
  fail(Code::kBadFaultPoint, "TROUPE_FAULT", std::string(rule) + ':', why,
       "(point[#n][@rank][:step]=action)");
}

bool takes_argument(FaultAction action) {
  return action == FaultAction::kExit || action == FaultAction::kSleep;
}

// Cuts "a:b" into "a" and "b"; the mark is looked for from the right.
std::string_view cut(std::string_view& text, char mark) {
  const size_t at = text.rfind(mark);
  if (at == std::string_view::npos) return {};
  const std::string_view rest = text.substr(at + 1);
  text = text.substr(0, at);
  return rest.empty() ? std::string_view("?") : rest;  // "?" reads as no number
}

}  // namespace

Faults::Faults(std::string_view text, int rank) {
  while (!text.empty()) {
    const size_t end = std::min(text.find(';'), text.size());
    const std::string_view rule = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (rule.empty()) continue;
    const size_t equals = rule.find('=');
    if (equals == std::string_view::npos) refuse(rule, "no action is named");
    std::string_view head = rule.substr(0, equals), action = rule.substr(equals + 1);
    const std::string_view argument = cut(action, ':');
    Rule out;
    for (const auto& [name, value] : kActions) {
      if (name == action) out.action = value;
    }
    if (out.action == FaultAction::kNone) refuse(rule, "there is no such action");
    if (takes_argument(out.action) ? !from_text(argument, out.argument) : !argument.empty()) {
      refuse(rule, "exit and sleep take one number, the others none");
    }
    int64_t of_rank = rank;
    const std::string_view step = cut(head, ':'), at_rank = cut(head, '@'), nth = cut(head, '#');
    if (!step.empty() && !from_text(step, out.step)) refuse(rule, "the step is not a number");
    if (!at_rank.empty() && !from_text(at_rank, of_rank)) refuse(rule, "the rank is not a number");
    if (!nth.empty() && (!from_text(nth, out.nth) || out.nth < 1)) refuse(rule, "n counts from 1");
    if (head.empty()) refuse(rule, "no point is named");
    out.point = head;
    if (of_rank == rank) rules_.push_back(out);
  }
}

Faults Faults::from_environment(int rank) {
  const char* const text = std::getenv("TROUPE_FAULT");
  return text == nullptr ? Faults() : Faults(text, rank);
}

FaultAction Faults::hit(std::string_view point, int64_t step) const {
  for (const Rule& rule : rules_) {
    if (rule.point != point || (rule.step >= 0 && rule.step != step)) continue;
    if (const int64_t n = ++*rule.count; rule.nth > 0 && rule.nth != n) continue;
    switch (rule.action) {
      case FaultAction::kKill: ::raise(SIGKILL); break;
      case FaultAction::kStop: ::raise(SIGSTOP); break;
      case FaultAction::kExit: ::_exit(static_cast<int>(rule.argument)); break;
      case FaultAction::kSleep:
        std::this_thread::sleep_for(std::chrono::milliseconds(rule.argument));
        break;
      case FaultAction::kThrow: throw Error("TROUPE_FAULT: thrown at " + rule.point);
      default: return rule.action;
    }
  }
  return FaultAction::kNone;
}

bool FaultyFs::fails() {
  switch (faults_.at("fs.op")) {
    case FaultAction::kEnospc: return errno = ENOSPC, true;
    case FaultAction::kEio: return errno = EIO, true;
    default: return false;
  }
}

int FaultyFs::open(const std::string& path, int flags) {
  return fails() ? -1 : fs_.open(path, flags);
}
ssize_t FaultyFs::write(int fd, const void* data, size_t size) {
  switch (faults_.at("fs.op")) {
    case FaultAction::kEnospc: return errno = ENOSPC, -1;
    case FaultAction::kEio: return errno = EIO, -1;
    case FaultAction::kShort: return fs_.write(fd, data, (size + 1) / 2);
    default: return fs_.write(fd, data, size);
  }
}
int FaultyFs::fsync(int fd) {
  return fails() ? -1 : fs_.fsync(fd);
}
int FaultyFs::close(int fd) {
  const bool failed = fails();
  const int status = fs_.close(fd);  // Linux frees the descriptor even where close fails.
  return failed ? (errno = EIO, -1) : status;
}
int FaultyFs::rename(const std::string& from, const std::string& to) {
  return fails() ? -1 : fs_.rename(from, to);
}
int FaultyFs::rename_new(const std::string& from, const std::string& to) {
  return fails() ? -1 : fs_.rename_new(from, to);
}
int FaultyFs::exchange(const std::string& a, const std::string& b) {
  return fails() ? -1 : fs_.exchange(a, b);
}
int FaultyFs::unlink(const std::string& path) {
  return fails() ? -1 : fs_.unlink(path);
}
int FaultyFs::mkdir(const std::string& path) {
  return fails() ? -1 : fs_.mkdir(path);
}
int FaultyFs::rmdir(const std::string& path) {
  return fails() ? -1 : fs_.rmdir(path);
}

}  // namespace troupe
