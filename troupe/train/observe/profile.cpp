#include "troupe/train/observe/profile.h"

#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <cstdio>
#include <map>

namespace troupe {
namespace {

namespace kineto = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;

std::set<ActivityType> activities(bool cuda) {
  std::set<ActivityType> out = {ActivityType::CPU};
  if (cuda) out.insert(ActivityType::CUDA);
  return out;
}

// A kernel's name without the types that it is made of, so that a row stays a line.
std::string short_name(const std::string& name) {
  constexpr size_t kLongest = 72;
  return name.size() <= kLongest ? name : name.substr(0, kLongest - 3) + "...";
}

std::string table_line(const ProfileRow& row, int64_t total, int64_t steps) {
  char line[160];
  std::snprintf(
      line, sizeof(line), "%9.3f ms %5.1f%% %7.1f calls  %s",
      static_cast<double>(row.ns) * 1e-6 / static_cast<double>(steps),
      100 * static_cast<double>(row.ns) / static_cast<double>(std::max<int64_t>(total, 1)),
      static_cast<double>(row.calls) / static_cast<double>(steps), short_name(row.name).c_str());
  return line;
}

}  // namespace

std::vector<std::string> profile_faults(const ProfileConfig& c) {
  std::vector<std::string> out;
  if (c.from < 0) out.push_back("from must not be negative; 0 means no profile");
  if (c.steps < 1) out.push_back("steps must be at least 1");
  if (c.top < 1) out.push_back("top must be at least 1");
  return out;
}

std::vector<ProfileRow> profile_rows(std::vector<ProfileSpan> spans) {
  std::sort(spans.begin(), spans.end(), [](const ProfileSpan& a, const ProfileSpan& b) {
    if (a.lane != b.lane) return a.lane < b.lane;
    return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;  // the outer one first
  });
  std::map<std::string, ProfileRow> rows;
  std::vector<const ProfileSpan*> open;
  for (const ProfileSpan& span : spans) {
    while (!open.empty() && (open.back()->lane != span.lane || open.back()->end <= span.begin)) {
      open.pop_back();
    }
    ProfileRow& row = rows[span.name];
    row.name = span.name;
    ++row.calls;
    row.ns += span.end - span.begin;
    if (!open.empty())
      rows[open.back()->name].ns -= std::min(span.end, open.back()->end) - span.begin;
    open.push_back(&span);
  }
  std::vector<ProfileRow> out;
  for (auto& [name, row] : rows) out.push_back(std::move(row));
  std::stable_sort(out.begin(), out.end(),
                   [](const ProfileRow& a, const ProfileRow& b) { return a.ns > b.ns; });
  return out;
}

Profile::~Profile() {
  if (first_ > 0) kineto::disableProfiler();
}

void Profile::begin(int64_t step) {
  if (config_.from == 0 || first_ > 0 || step != config_.from) return;
  const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO);
  kineto::prepareProfiler(config, activities(cuda_));
  kineto::enableProfiler(config, activities(cuda_));
  first_ = step;
}

void Profile::end(int64_t step) {
  if (first_ == 0) return;
  done_ = step - first_ + 1;
  if (done_ >= config_.steps) finish();
}

void Profile::finish() {
  const std::string path = folder_ + "/profile-" + std::to_string(first_) + ".json";
  const auto result = kineto::disableProfiler();
  result->save(path);
  std::vector<ProfileSpan> spans;
  for (const kineto::KinetoEvent& e : result->events()) {
    const bool on_device = e.deviceType() != c10::DeviceType::CPU;
    if (on_device != cuda_) continue;
    const auto lane = on_device ? e.deviceResourceId() : static_cast<int64_t>(e.startThreadId());
    spans.push_back(
        {e.name(), lane, static_cast<int64_t>(e.startNs()), static_cast<int64_t>(e.endNs())});
  }
  const std::vector<ProfileRow> rows = profile_rows(std::move(spans));
  int64_t total = 0, to_host = 0;
  for (const ProfileRow& row : rows) {
    total += row.ns;
    if (row.name.find("DtoH") != std::string::npos) to_host += row.calls;
  }
  log_.info("profile of steps " + std::to_string(first_) + " to " +
            std::to_string(first_ + done_ - 1) + ", a step's share; trace in " + path);
  if (cuda_) log_.info("copies to the host: " + std::to_string(to_host) + " in these steps");
  for (size_t i = 0; i < rows.size() && i < static_cast<size_t>(config_.top); ++i) {
    log_.info(table_line(rows[i], total, done_));
  }
  first_ = 0;
}

}  // namespace troupe
