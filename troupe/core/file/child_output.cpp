#include "troupe/core/file/child_output.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "troupe/core/check.h"

extern char** environ;

namespace troupe {
namespace {

constexpr size_t kKept = 4096;  // bytes of the standard error

std::array<int, 2> make_pipe() {
  std::array<int, 2> ends{-1, -1};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    fail(Code::kFileFailed, "a pipe", "cannot be made:", std::strerror(errno));
  }
  return ends;
}

// Of which a write to a child that has ended is an error, and no signal for the whole program.
std::array<int, 2> make_socket() {
  std::array<int, 2> ends{-1, -1};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    fail(Code::kFileFailed, "a socket", "cannot be made:", std::strerror(errno));
  }
  return ends;
}

void close_end(int& end) {
  if (end >= 0) ::close(std::exchange(end, -1));
}

std::string last_line(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

}  // namespace

ChildOutput::ChildOutput(const std::vector<std::string>& words, ChildInput input) {
  std::array<int, 2> out = make_pipe(), errors = make_pipe();
  constexpr int kRoom = 1 << 20;
  ::fcntl(out[0], F_SETPIPE_SZ, kRoom);  // refused: 64 KiB serve as well
  ::fcntl(errors[0], F_SETFL, O_NONBLOCK);
  std::array<int, 2> in{-1, -1};
  if (input == ChildInput::kSent) in = make_socket();
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (input == ChildInput::kSent) {
    posix_spawn_file_actions_adddup2(&actions, in[1], STDIN_FILENO);
  } else {
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  }
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, errors[1], STDERR_FILENO);
  std::vector<char*> arguments;
  // exec's interface has no const; it does not write there.
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  spawn_error_ = ::posix_spawnp(&pid_, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close_end(in[1]);
  close_end(out[1]);
  close_end(errors[1]);
  in_ = in[0];
  out_ = out[0];
  errors_ = errors[0];
  if (spawn_error_ != 0) pid_ = -1;
}

ChildOutput::~ChildOutput() {
  close_end(in_);
  close_end(out_);
  if (pid_ >= 0 && !ended_) {
    ::kill(pid_, SIGKILL);
    wait();
  }
  close_end(errors_);
}

void ChildOutput::drain_errors() {
  std::array<char, 1024> block{};
  for (ssize_t count; (count = ::read(errors_, block.data(), block.size())) > 0;) {
    said_.append(block.data(), static_cast<size_t>(count));
    if (said_.size() > kKept) said_.erase(0, said_.size() - kKept);
  }
}

void ChildOutput::read_some() {
  std::array<char, 1 << 16> block;
  const ssize_t count = ::read(out_, block.data(), block.size());
  if (count > 0) {
    kept_.append(block.data(), static_cast<size_t>(count));
  } else if (count == 0 || errno != EINTR) {
    close_end(out_);
  }
}

// Waits until there is output, or room for what is to be sent, and moves some of it. A child that
// writes much to its standard error waits until somebody reads it.
void ChildOutput::exchange(std::string_view* unsent) {
  std::array<pollfd, 3> ready{pollfd{out_, POLLIN, 0},
                              pollfd{errors_over_ ? -1 : errors_, POLLIN, 0},
                              pollfd{unsent ? in_ : -1, POLLOUT, 0}};
  if (::poll(ready.data(), ready.size(), -1) < 0) {
    if (errno == EINTR) return;
    close_end(in_);
    return close_end(out_);
  }
  if (ready[1].revents & POLLIN) {
    drain_errors();
  } else if (ready[1].revents != 0) {
    errors_over_ = true;
  }
  if (ready[0].revents != 0) read_some();
  if (ready[2].revents == 0) return;
  const ssize_t count = ::send(in_, unsent->data(), unsent->size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (count >= 0) {
    unsent->remove_prefix(static_cast<size_t>(count));
  } else if (errno != EINTR && errno != EAGAIN) {
    close_end(in_);
  }
}

bool ChildOutput::send(std::string_view text) {
  while (!text.empty() && in_ >= 0) exchange(&text);
  return text.empty();
}

std::string ChildOutput::take(size_t bytes) {
  std::string out = kept_.substr(taken_, bytes);
  taken_ += out.size();
  if (taken_ >= kept_.size() / 2) {  // so that each byte moves at most once
    kept_.erase(0, taken_);
    taken_ = 0;
  }
  return out;
}

size_t ChildOutput::read(std::span<char> out) {
  while (kept() < out.size() && out_ >= 0) exchange(nullptr);
  const std::string some = take(out.size());
  std::ranges::copy(some, out.begin());
  return some.size();
}

std::optional<std::string> ChildOutput::line() {
  for (size_t from = taken_;;) {
    const size_t end = kept_.find('\n', from);
    if (end != std::string::npos) {
      std::string out = take(end + 1 - taken_);
      out.pop_back();
      return out;
    }
    if (out_ < 0) return std::nullopt;
    from = kept_.size();
    exchange(nullptr);
  }
}

std::string ChildOutput::rest() {
  std::string out;
  std::array<char, 4096> block{};
  while (const size_t count = read(block)) out.append(block.data(), count);
  return out;
}

ChildEnd ChildOutput::wait() {
  if (spawn_error_ != 0) return {.never_began = true, .said = std::strerror(spawn_error_)};
  if (!ended_) {
    close_end(in_);
    close_end(out_);
    while (::waitpid(pid_, &status_, 0) < 0 && errno == EINTR) {
    }
    ended_ = true;
    drain_errors();
  }
  const bool ok = WIFEXITED(status_) && WEXITSTATUS(status_) == 0;
  std::string said = last_line(said_);
  if (WIFSIGNALED(status_)) said = "signal " + std::to_string(WTERMSIG(status_)) + ' ' + said;
  return {.ok = ok, .said = ok ? "" : said.empty() ? "it said nothing" : said};
}

}  // namespace troupe
