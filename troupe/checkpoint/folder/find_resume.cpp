#include "troupe/checkpoint/folder/find_resume.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <system_error>

#include "troupe/checkpoint/files/foreign.h"
#include "troupe/core/check.h"
#include "troupe/core/file/file.h"

namespace troupe {
namespace {

namespace stdfs = std::filesystem;

// By number; of two spellings of one, step-7 and step-000007, the one that we write.
std::map<int64_t, std::string> step_folders(const std::string& run) {
  std::map<int64_t, std::string> out;
  std::error_code error;
  for (stdfs::directory_iterator it(run, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename();
    const std::optional<int64_t> step = step_of(name);
    std::error_code ignored;
    if (!step || !it->is_directory(ignored)) continue;
    std::string& known = out[*step];
    if (known.empty() || name == step_name(*step)) known = name;
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    fail_file(Code::kUnreadableCheckpoint, run, "list the folder", error.value());
  }
  return out;
}

void check_size(const std::string& folder, const std::string& name, int64_t bytes) {
  const std::string path = folder + '/' + name;
  std::error_code error;
  const auto status = stdfs::status(path, error);
  if (!stdfs::exists(status)) fail(Code::kNoCheckpoint, path, "is missing");
  if (!stdfs::is_regular_file(status)) fail(Code::kNoCheckpoint, path, "is not a regular file");
  const auto found = static_cast<int64_t>(stdfs::file_size(path, error));
  if (found != bytes) fail(Code::kNoCheckpoint, path, "has", found, "bytes, not", bytes);
}

// "PATH: E4002 is missing" without its first code, for a line of the log.
std::string reason(const Error& e) {
  std::string out = e.what();
  const std::string code = to_text(e.code()) + ' ';
  if (const size_t at = out.find(code); at != std::string::npos) out.erase(at, code.size());
  return out;
}

std::string latest_note(const std::string& run, const std::string& newest) {
  const std::string path = run + "/latest";
  std::string text;
  try {
    text = read_file(path, Code::kNoCheckpoint, 4096);
  } catch (const Error&) {
    return "the file latest is missing or unreadable; the folder was searched instead";
  }
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  if (text.find('/') != std::string::npos || text.find("..") != std::string::npos) {
    return "the file latest points outside the run folder, to \"" + text + "\": refused";
  }
  if (text == newest) return {};
  return "the file latest says \"" + text + "\", the newest complete step is " + newest;
}

[[noreturn]] void fail_nothing(const std::string& run, const std::vector<std::string>& passed) {
  std::string lines = "has no complete checkpoint";
  for (const std::string& line : passed) lines += "\n  passed over " + line;
  if (!passed.empty()) lines += "\n  checkpoint.resume: never starts a new run anyway";
  fail(Code::kNoCheckpoint, run, lines);
}

}  // namespace

std::string step_name(int64_t step) {
  char name[32];
  std::snprintf(name, sizeof(name), "step-%06lld", static_cast<long long>(step));
  return name;
}

std::optional<int64_t> step_of(const std::string& name) {
  constexpr std::string_view kPrefix = "step-";
  if (!name.starts_with(kPrefix) || name.size() > kPrefix.size() + 18) return {};
  std::string_view digits = std::string_view(name).substr(kPrefix.size());
  while (digits.size() > 1 && digits.front() == '0') digits.remove_prefix(1);
  int64_t step = 0;
  if (digits.empty() || digits.front() == '-' || !from_text(digits, step)) return {};
  return step;
}

std::vector<int64_t> steps_in(const std::string& run) {
  std::vector<int64_t> out;
  for (const auto& [step, name] : step_folders(run)) out.push_back(step);
  return out;
}

std::string folder_of(const std::string& run, int64_t step) {
  const auto folders = step_folders(run);
  const auto at = folders.find(step);
  return run + '/' + (at == folders.end() ? step_name(step) : at->second);
}

bool for_one_start(const Resume& resume) {
  return resume.kind == Resume::kNever || resume.kind == Resume::kStep;
}

Manifest check_complete(const std::string& folder) {
  if (!is_there(folder + '/' + kManifestName)) {
    refuse_foreign(folder);
    refuse_pickles(folder);
    fail(Code::kNoCheckpoint, folder, "is incomplete: manifest.json is missing");
  }
  Manifest manifest = read_manifest(folder);
  for (const ShardInfo& shard : manifest.shards) {
    check_size(folder, shard.file, shard.bytes);
    check_size(folder, shard.index, shard.index_bytes);
  }
  return manifest;
}

std::optional<ResumePoint> find_resume(const std::string& run, const Resume& resume,
                                       const std::vector<int64_t>& tried) {
  if (resume.kind == Resume::kNever) return {};
  if (resume.kind == Resume::kStep) {
    const std::string folder = folder_of(run, resume.step);
    std::error_code error;
    if (!stdfs::is_directory(folder, error)) {
      fail(Code::kNoCheckpoint, folder, "is not there; the steps in", run, "are",
           to_text(steps_in(run)) + ". checkpoint.resume: auto takes the newest of them");
    }
    return ResumePoint{folder, check_complete(folder)};
  }
  ResumePoint point;
  const auto folders = step_folders(run);
  for (auto it = folders.rbegin(); it != folders.rend(); ++it) {
    const auto& [step, name] = *it;
    if (std::ranges::find(tried, step) != tried.end()) continue;
    const std::string begin = "step " + std::to_string(step) + ": ";
    try {
      point.folder = run + '/' + name;
      point.manifest = check_complete(point.folder);
    } catch (const Error& e) {
      point.passed_over.push_back(begin + reason(e));
      continue;
    }
    if (point.manifest.bad) {
      point.passed_over.push_back(begin + "tagged bad: its weights hold NaN");
    } else if (point.manifest.step != step) {
      point.passed_over.push_back(begin + "holds step " + std::to_string(point.manifest.step));
    } else {
      point.latest_note = latest_note(run, name);
      return point;
    }
  }
  refuse_foreign(run);
  if (resume.kind == Resume::kMust || !point.passed_over.empty()) {
    fail_nothing(run, point.passed_over);
  }
  return {};
}

RunPath run_path(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  const stdfs::path place(path);
  if (!step_of(place.filename().string()) && !is_there(path + '/' + kManifestName)) {
    return {.run = path};
  }
  const std::string run = place.parent_path().string();
  return {.run = run.empty() ? "." : run, .step = path};
}

ResumePoint find_step(const RunPath& path) {
  if (path.step.empty()) return *find_resume(path.run, {.kind = Resume::kMust});
  return {path.step, check_complete(path.step), {}};
}

std::string place_of_step(const std::string& path) {
  try {
    return find_step(run_path(path)).folder;
  } catch (const Error&) {  // who looks there says what is missing
    return path;
  }
}

}  // namespace troupe
