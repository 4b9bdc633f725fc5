#include "troupe/checkpoint/folder/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>
#include <filesystem>
#include <optional>
#include <random>
#include <set>
#include <string_view>
#include <system_error>

#include "troupe/core/check.h"
#include "troupe/core/file/file.h"
#include "troupe/core/file/hash.h"
#include "troupe/core/file/host_name.h"
#include "troupe/core/text/readable.h"

namespace troupe {
namespace {

namespace stdfs = std::filesystem;

std::string content(int fd) {
  std::array<char, 512> text{};
  const ssize_t n = ::pread(fd, text.data(), text.size() - 1, 0);
  std::string out(text.data(), n > 0 ? static_cast<size_t>(n) : 0);
  while (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

// Also by a link that leads nowhere.
bool is_taken(const std::string& path) {
  struct stat info {};
  return ::lstat(path.c_str(), &info) == 0;
}

struct CompleteStep {
  int64_t step;
  std::string folder;
  Manifest manifest;
};

std::vector<CompleteStep> complete_steps(const std::string& run) {
  std::vector<CompleteStep> out;
  for (const int64_t step : steps_in(run)) {
    try {
      std::string folder = folder_of(run, step);
      Manifest manifest = check_complete(folder);
      out.push_back({step, std::move(folder), std::move(manifest)});
    } catch (const Error&) {
      continue;
    }
  }
  return out;
}

bool is_bad(const std::string& run, int64_t step) {
  try {
    return read_manifest(folder_of(run, step)).bad;
  } catch (const Error&) {
    return false;
  }
}

// Of "step-001300.aside" and "step-001300.aside2": 1300.
std::optional<int64_t> step_set_aside(const std::string& name) {
  constexpr std::string_view kAside = ".aside";
  const size_t dot = name.find(kAside);
  if (dot == std::string::npos) return {};
  const std::string_view number = std::string_view(name).substr(dot + kAside.size());
  if (number.find_first_not_of("0123456789") != std::string_view::npos) return {};
  return step_of(name.substr(0, dot));
}

// Nothing: a link, or an incomplete folder.
std::optional<Manifest> manifest_of_folder(const std::string& folder) {
  std::error_code error;
  if (stdfs::is_symlink(folder, error)) return {};
  try {
    return check_complete(folder);
  } catch (const Error&) {
    return {};
  }
}

std::set<int64_t> kept(const std::vector<CompleteStep>& steps, const CheckpointConfig& config) {
  std::set<int64_t> out;
  int64_t good = 0, bad = 0;
  std::vector<const CompleteStep*> scored;
  for (auto it = steps.rbegin(); it != steps.rend(); ++it) {
    if (it->manifest.bad ? bad++ == 0 : good++ < config.keep || config.keep == 0) {
      out.insert(it->step);
    }
    if (it->manifest.bad) continue;
    if (config.keep_every > 0 && it->step % config.keep_every == 0) out.insert(it->step);
    if (it->manifest.score) scored.push_back(&*it);
  }
  // The newest of equal scores comes first.
  std::ranges::stable_sort(scored, {}, [](const CompleteStep* s) { return *s->manifest.score; });
  for (size_t i = 0; i < scored.size() && static_cast<int64_t>(i) < config.keep_best; ++i) {
    out.insert(scored[i]->step);
  }
  return out;
}

}  // namespace

void prepare_run_folder(Fs& fs, const std::string& run) {
  const auto refuse = [&](const std::string& what, int error) {
    fail(Code::kBadRunFolder, run,
         what + std::generic_category().message(error) + "; choose another checkpoint.dir");
  };
  if (run.empty()) fail(Code::kBadRunFolder, "checkpoint.dir", "is empty");
  stdfs::path path;
  for (const stdfs::path& part : stdfs::path(run)) {
    path /= part;
    std::error_code error;
    if (stdfs::is_directory(path, error)) continue;
    if (fs.mkdir(path) != 0 && errno != EEXIST) refuse("cannot make the folder: ", errno);
    if (!stdfs::is_directory(path, error)) refuse("cannot make the folder: ", ENOTDIR);
  }
  // Rights, a read-only disk and a full one show only when something is written.
  std::string probe;
  try {
    probe = make_staging_directory(fs, run + "/probe");
  } catch (const Error& e) {
    fail(Code::kBadRunFolder, run, "cannot be written:", e.what());
  }
  fs.rmdir(probe);
}

std::string why_not_writable(const std::string& run) {
  std::error_code error;
  stdfs::path at = run;
  while (!at.empty() && !stdfs::exists(stdfs::symlink_status(at, error))) {
    const stdfs::path above = at.parent_path();
    if (above == at) break;
    at = above;
  }
  if (at.empty()) at = ".";
  if (!stdfs::is_directory(at, error)) return at.string() + " is not a folder";
  if (::access(at.c_str(), W_OK | X_OK) == 0) return {};
  return at.string() + " cannot be written to: " + std::generic_category().message(errno);
}

RunLock::RunLock(const std::string& run) : path_(run + "/lock") {
  fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (fd_ < 0) fail_file(Code::kBadRunFolder, path_, "open", errno);
  const std::string owner = content(fd_);
  if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    struct stat info {};
    const int64_t age = ::fstat(fd_, &info) == 0 ? std::time(nullptr) - info.st_mtime : 0;
    ::close(fd_);
    if (error != EWOULDBLOCK) fail_file(Code::kBadRunFolder, path_, "lock", error);
    fail(Code::kFolderInUse, run, "is in use by", owner, "since", age, "s");
  }
  if (!owner.empty()) taken_over_ = "took over the run folder from " + owner + ", which has ended";
  const std::string mine = "process " + std::to_string(::getpid()) + " on " + host_name() + '\n';
  if (::ftruncate(fd_, 0) != 0 ||
      ::pwrite(fd_, mine.data(), mine.size(), 0) != static_cast<ssize_t>(mine.size())) {
    const int error = errno;
    ::close(fd_);
    const bool full = error == ENOSPC || error == EDQUOT;
    fail_file(full ? Code::kNoSpace : Code::kBadRunFolder, path_, "write", error);
  }
}

bool RunLock::is_in_place() const {
  struct stat held {
  }, named{};
  if (::fstat(fd_, &held) != 0) fail_file(Code::kFolderInUse, path_, "look at the lock", errno);
  const bool there = ::lstat(path_.c_str(), &named) == 0;
  if (there && named.st_dev == held.st_dev && named.st_ino == held.st_ino) return true;
  if (held.st_nlink == 0) return false;
  std::error_code unknown;
  const stdfs::path now = stdfs::read_symlink("/proc/self/fd/" + std::to_string(fd_), unknown);
  const std::string run = stdfs::path(path_).parent_path(), to = now.parent_path();
  fail(Code::kFolderInUse, run,
       "was moved" + (to.empty() ? "" : " to " + to) +
           " while this run wrote to it, and another run may take its name: the run stops. To go "
           "on from its newest step, set checkpoint.dir to the new place");
}

std::unique_ptr<RunLock> RunLock::if_free(const std::string& run) {
  try {
    return std::make_unique<RunLock>(run);
  } catch (const Error&) {
    return nullptr;
  }
}

RunLock::~RunLock() {
  // Emptied, so that the next run does not speak of taking over; not removed: another may have it
  // open already, and two locks would be held on two files of one name.
  if (::ftruncate(fd_, 0) != 0) errno = 0;
  ::close(fd_);
}

std::string space_warning(const std::string& run, int64_t bytes, int64_t keep) {
  const int64_t free = free_bytes(run), need = (std::max<int64_t>(keep, 1) + 1) * bytes;
  if (free < 0 || free >= need) return {};
  return run + ": " + std::to_string(std::max<int64_t>(keep, 1) + 1) + " checkpoints of " +
         readable_bytes(bytes) + " need " + readable_bytes(need) + ", and " + readable_bytes(free) +
         " are free; make room, lower checkpoint.keep, or choose another checkpoint.dir";
}

void publish_step(Fs& fs, const Faults& faults, const std::string& run, const std::string& staging,
                  const Manifest& manifest) {
  const std::string name = step_name(manifest.step), target = run + '/' + name;
  faults.at("save.publish", manifest.step);
  if (is_taken(target)) {
    replace_directory(fs, staging, target);
  } else {
    publish_directory(fs, staging, target);
  }
  faults.at("save.latest", manifest.step);
  if (!manifest.bad) publish_file(fs, run + "/latest", name + '\n');
}

std::vector<int64_t> prune(Fs& fs, const Faults& faults, const CheckpointConfig& config,
                           int64_t just_written,
                           const std::function<void(const std::string&)>& note) {
  faults.at("prune", just_written);
  // Then only a bad step can go, for a newer one: the manifests of all that are kept would be read
  // at each save for nothing (1.2 s at 800 steps).
  const bool all_stay = config.keep == 0 && !is_bad(config.dir, just_written);
  if (all_stay) return {};
  const std::vector<CompleteStep> steps = complete_steps(config.dir);
  const std::set<int64_t> keep = kept(steps, config);
  std::vector<int64_t> removed;
  for (const CompleteStep& step : steps) {
    if (keep.contains(step.step) || step.step == just_written) continue;
    try {
      remove_published(fs, step.folder);
      removed.push_back(step.step);
    } catch (const Error& e) {
      note(e.what());
    }
  }
  return removed;
}

std::string new_run_id() {
  std::random_device random;
  const uint64_t high = random();
  return hex(high << 32 | random());
}

std::vector<std::string> set_aside_later(Fs& fs, const std::string& run, int64_t step) {
  std::vector<std::string> lines;
  for (const CompleteStep& later : complete_steps(run)) {
    if (later.step <= step || later.manifest.bad) continue;
    std::string to = later.folder + ".aside";
    for (int n = 2; is_taken(to); ++n) to = later.folder + ".aside" + std::to_string(n);
    if (fs.rename_new(later.folder, to) != 0) {
      fail_file(Code::kFileFailed, later.folder, "rename to " + to, errno);
    }
    lines.push_back(later.folder + " is later than the step to resume from: renamed to " + to);
  }
  if (!lines.empty()) sync_directory(fs, run);
  return lines;
}

std::vector<std::string> prune_set_aside(Fs& fs, const CheckpointConfig& config,
                                         const std::function<void(const std::string&)>& note) {
  std::vector<std::string> lines, names;
  if (config.keep == 0) return lines;
  try {
    names = names_in(config.dir);
  } catch (const Error& e) {
    note(e.what());
  }
  std::optional<std::vector<CompleteStep>> steps;  // read where there is something aside
  for (const std::string& name : names) {
    const std::optional<int64_t> step = step_set_aside(name);
    if (!step || (config.keep_every > 0 && *step % config.keep_every == 0)) continue;
    const std::string folder = config.dir + '/' + name;
    const std::optional<Manifest> aside = manifest_of_folder(folder);
    if (!aside) continue;
    if (!steps) steps = complete_steps(config.dir);
    const auto after = std::ranges::count_if(*steps, [&](const CompleteStep& s) {
      return s.step > *step && !s.manifest.bad && s.manifest.run == aside->run;
    });
    if (after < config.keep) continue;
    try {
      remove_published(fs, folder);
      lines.push_back("removed " + folder + ", which the run has passed: good steps after it: " +
                      std::to_string(after) + ", checkpoint.keep: " + std::to_string(config.keep));
    } catch (const Error& e) {
      note(e.what());
    }
  }
  return lines;
}

}  // namespace troupe
