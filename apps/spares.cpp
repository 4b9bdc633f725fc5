#include "apps/spares.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <tuple>
#include <utility>

#include "apps/spare.h"
#include "troupe/core/check.h"
#include "troupe/core/file/file.h"

namespace troupe {
namespace {

using std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr int kMostSoonEnds = 3;
constexpr auto kSoon = 60s;  // a spare that is ready lives for longer, unless somebody ends it

void close_pipe(int& descriptor) {
  if (descriptor >= 0) ::close(descriptor);
  descriptor = -1;
}

// {read end, write end}. A process that this one starts inherits neither, unless it is given one.
std::pair<int, int> open_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) fail_file(Code::kFileFailed, "spares", "open a pipe", errno);
  return {ends[0], ends[1]};
}

bool tells(int pipe, const std::string& text) {
  return ::write(pipe, text.data(), text.size()) == std::ssize(text);
}

}  // namespace

Spares::Spares(std::vector<std::string> words, int count, Log log)
    : words_(std::move(words)), spares_(static_cast<size_t>(count)), log_(std::move(log)) {}

bool Spares::missing() const {
  return soon_ended_ < kMostSoonEnds &&
         std::ranges::any_of(spares_, [](const Spare& s) { return s.pid < 0; });
}

// What the system refuses costs the spare, not the run.
void Spares::start_one(Spare& spare, const Variables& environment) const {
  int reads = -1, writes = -1;
  try {
    std::tie(reads, writes) = open_pipe();
    Variables own = environment;
    own.emplace_back(kSpareVariable, std::to_string(reads));
    const pid_t pid = start_process(words_, own, reads);
    spare = {.pid = pid, .pipe = std::exchange(writes, -1), .begin = steady_clock::now()};
  } catch (const Error& error) {
    log_.warning(std::string("no spares any more: ") + error.what());
  }
  close_pipe(reads);
  close_pipe(writes);
}

void Spares::fill(const std::vector<Variables>& environments) {
  const size_t count = std::min(spares_.size(), environments.size());
  for (size_t rank = 0; rank < count; ++rank) {
    if (spares_[rank].pid < 0) start_one(spares_[rank], environments[rank]);
    if (spares_[rank].pid < 0) return void(soon_ended_ = kMostSoonEnds);
  }
}

void Spares::tell_end(size_t rank, int status, bool soon) {
  std::string out = "the spare of rank " + std::to_string(rank);
  if (WIFSIGNALED(status)) {
    out.append(" was ended by SIG").append(::sigabbrev_np(WTERMSIG(status)));
  } else {
    out.append(" ended with ").append(std::to_string(WEXITSTATUS(status)));
  }
  soon_ended_ = soon ? soon_ended_ + 1 : 0;
  const bool more = soon_ended_ < kMostSoonEnds;
  log_.warning(out + (more ? ": another is started"
                           : ", the third in a row soon after its start: no more are started"));
}

void Spares::reap() {
  for (size_t rank = 0; rank < spares_.size(); ++rank) {
    Spare& spare = spares_[rank];
    int status = 0;
    if (spare.pid < 0 || ::waitpid(spare.pid, &status, WNOHANG) != spare.pid) continue;
    close_pipe(spare.pipe);
    spare.pid = -1;
    tell_end(rank, status, steady_clock::now() - spare.begin < kSoon);
  }
}

std::vector<pid_t> Spares::take(int attempt) {
  reap();
  std::vector<pid_t> out;
  for (Spare& spare : spares_) {
    const bool fit = spare.pid > 0 && !is_stopped(spare.pid);
    if (!fit || !tells(spare.pipe, std::to_string(attempt))) {
      end_one(spare);
      out.push_back(-1);
      continue;
    }
    close_pipe(spare.pipe);
    out.push_back(std::exchange(spare.pid, -1));
  }
  return out;
}

void Spares::end_one(Spare& spare) {
  if (spare.pid < 0) return;
  close_pipe(spare.pipe);
  ::kill(spare.pid, SIGKILL);
  ::waitpid(spare.pid, nullptr, 0);
  spare.pid = -1;
}

void Spares::end() {
  for (Spare& spare : spares_) {
    if (spare.pid > 0) ::kill(spare.pid, SIGKILL);  // all at once, before one is waited for
  }
  for (Spare& spare : spares_) end_one(spare);
}

}  // namespace troupe
