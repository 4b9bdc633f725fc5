#include "troupe/train/forecast/forecast.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <utility>

#include "troupe/core/codes.h"
#include "troupe/core/config/config.h"
#include "troupe/core/file/publish.h"
#include "troupe/core/number/exact_sum.h"
#include "troupe/core/text/readable.h"
#include "troupe/nn/config/costs.h"
#include "troupe/nn/model/model.h"
#include "troupe/train/forecast/device.h"
#include "troupe/train/forecast/layout_forecast.h"
#include "troupe/train/forecast/model_memory.h"
#include "troupe/train/observe/memory_use.h"

namespace troupe {
namespace {

// Bytes of a unit's gradients, not yet added to the sums, that find no place in the graphs that
// its backward and those of the units behind it let go.
double beside_sums(const std::vector<UnitMemory>& units) {
  double out = 0, let_go = 0;
  for (auto unit = units.rbegin(); unit != units.rend(); ++unit) {
    let_go += unit->held();
    const double made = unit->dense.gradients + unit->cut.gradients + unit->experts.gradients;
    out = std::max(out, made - let_go);
  }
  return out;
}

// The most gradients of two units that follow each other: with train.update in_backward those of one
// are held until the next one's are made.
double gradients_of_two(const std::vector<UnitMemory>& units) {
  double out = 0, before = 0;
  for (const UnitMemory& unit : units) {
    const double made = unit.dense.gradients + unit.cut.gradients + unit.experts.gradients;
    out = std::max(out, before + made);
    before = made;
  }
  return out;
}

bool try_set(Recipe& r, const std::string& assignment) {
  try {
    read_config(override_yaml(assignment), r);
    validate(r, {});
    return true;
  } catch (const Error&) {
    return false;
  }
}

// The number at the start of a file of /proc or /sys; 0: there is none.
int64_t number_in(const std::string& path) {
  std::ifstream in(path);
  int64_t out = 0;
  return in >> out ? out : 0;
}

// The folder, or the nearest one above it that exists.
std::string existing_part(const std::string& folder) {
  std::error_code error;
  std::filesystem::path path = std::filesystem::absolute(folder, error);
  while (path.has_relative_path() && !std::filesystem::exists(path, error)) {
    path = path.parent_path();
  }
  return path.string();
}

// Checkpoints of adapters name their base.
bool leaves_out_frozen(const Recipe& r) {
  return has_adapters(r.model) && r.checkpoint.base == SavedBase::kNamed &&
         !r.checkpoint.init_from.empty();
}

}  // namespace

double needed_memory(const Recipe& r, bool on_gpu, int64_t world) {
  return world == 1 ? forecast_memory(r, on_gpu).total() : layout_memory(r, world, on_gpu).total();
}

double host_state(const Recipe& r, bool on_gpu, int64_t world) {
  return world == 1 ? forecast_memory(r, on_gpu).host : layout_host_state(r, world, on_gpu);
}

HostVerdict judge_host_state(double of_rank, int64_t ranks_here, int64_t free) {
  const double needed = of_rank * static_cast<double>(ranks_here);
  HostVerdict out{.line = in_gib(needed) + " GiB of host memory for masters and optimizer state"};
  if (ranks_here > 1)
    out.line.append(", of ").append(std::to_string(ranks_here)).append(" ranks here");
  if (free < 0) return out;
  out.line.append("; ").append(in_gib(static_cast<double>(free))).append(" GiB are free");
  out.fits = needed <= static_cast<double>(free);
  if (out.fits) return out;
  out.line = to_text(Code::kTooLarge) + ' ' + out.line +
             ". Take train.optimizer.moments=int8 or bf16, more ranks that share state "
             "(parallel.shard), or train.offload_state=false";
  return out;
}

bool runs_on_gpu(const Recipe& r) {
  if (r.run.device != DeviceKind::kAuto) return r.run.device == DeviceKind::kCuda;
  return device_of(DeviceKind::kAuto).is_cuda();
}

double available_memory(const Recipe& r, int64_t ranks_here) {
  const c10::Device device = device_of(DeviceKind::kAuto);
  if (!runs_on_gpu(r)) return static_cast<double>(host_memory()) / static_cast<double>(ranks_here);
  return device.is_cuda() ? static_cast<double>(memory_use(device).total) : 0;
}

MemoryForecast forecast_memory(const Recipe& given, bool on_gpu) {
  Recipe r = given;
  r.parallel.context = 1;  // of one rank, which has whole rows
  const RunPlan plan = plan_of(r);
  const ModelMemory model = model_memory(r, plan, on_gpu, *build_model(r.model));
  MemoryForecast out{.workspace = model.workspace};
  const bool sums = plan.micro_batch < plan.batch;  // of several microbatches
  double update = 0, window = 0;
  for (const UnitMemory& unit : model.units) {
    for (const StateBytes& s : {unit.dense, unit.cut, unit.experts}) {
      out.host += s.host;
      window = std::max(window, s.window);
      out.weights += s.values + s.frozen;
      out.gradients += r.run.bits == Bits::kLayout ? kPairBytes * s.elements
                       : sums                      ? std::max(4 * s.elements, s.gradients)
                                                   : s.gradients;
      out.masters += s.masters;
      out.moments += s.moments;
      update = std::max(update, update_memory(s, 1, 1));
    }
    out.activations += unit.held();
  }
  out.weights += model.teacher.weights;
  const bool in_backward = r.train.update == UpdatePlace::kInBackward;
  if (in_backward && !sums) out.gradients = gradients_of_two(model.units);
  if (!in_backward && !sums) out.overlap = std::min(out.gradients, out.activations);
  if (sums) out.workspace += beside_sums(model.units);
  update += staging_memory(out.host, window);
  const double free = out.activations + out.workspace - out.overlap;
  out.update = in_backward ? update : std::max(update - free, 0.0);
  out.runtime = runtime_memory(on_gpu, out.activations + out.workspace);
  return out;
}

std::vector<MemoryCut> memory_cuts(const Recipe& r, bool on_gpu, int64_t world) {
  const double now = needed_memory(r, on_gpu, world);
  const std::string half = to_text(plan_of(r).micro_batch / 2);
  std::vector<MemoryCut> out;
  for (const MemoryCut& cut : {MemoryCut{"train.micro_batch=" + half, 0, "smaller products"},
                               MemoryCut{"train.optimizer.moments=bf16", 0, "rounded moments"},
                               MemoryCut{"train.recompute=\"1\"", 0, "a third more time"},
                               MemoryCut{"train.offload_state=true", 0, "copies in each update"},
                               MemoryCut{"train.update=in_backward", 0, "one look a layer"}}) {
    Recipe changed = r;
    if (!try_set(changed, cut.set)) continue;
    const double gain = now - needed_memory(changed, on_gpu, world);
    if (gain > 0.01 * now) out.push_back({cut.set, gain, cut.cost});
  }
  return out;
}

MemoryVerdict judge_memory(const Recipe& r, bool on_gpu, double available, int64_t world) {
  const double needed = needed_memory(r, on_gpu, world);
  MemoryVerdict out;
  out.line = "memory " + in_gib(needed) + " of " + in_gib(available) + " GiB";
  out.warns = needed > 0.9 * available;
  out.fits = needed <= available;
  if (!out.warns) return out;
  out.line = out.fits ? warning_text(Code::kTooLarge) + ' ' + out.line + '.'
                      : to_text(Code::kTooLarge) + ' ' + out.line + ": it will not fit.";
  const char* separator = " Cheapest: ";
  for (const MemoryCut& cut : memory_cuts(r, on_gpu, world)) {
    out.line.append(std::exchange(separator, ", ")).append(cut.set);
    out.line.append(" (-").append(in_gib(cut.gain)).append("; ").append(cut.cost).append(")");
  }
  return out;
}

double checkpoint_bytes(const Recipe& r, bool on_gpu) {
  const ModelMemory model = model_memory(r, plan_of(r), on_gpu, *build_model(r.model));
  const MomentType type = base_of(r.train.optimizer).moments;
  const double decoded = type == MomentType::kInt8 ? 4 / bytes_of(type) : 1;
  const double master = std::max(4.0, value_width(r, on_gpu));
  const double frozen = leaves_out_frozen(r) ? 0 : 1;
  double out = 0;
  for (const UnitMemory& unit : model.units) {
    for (const StateBytes& s : {unit.dense, unit.cut, unit.experts}) {
      out += master * s.elements + frozen * (s.frozen - s.low_bit) +
             decoded * (s.moments + s.host_moments);
    }
  }
  return out;
}

DiskVerdict judge_disk(const Recipe& r, bool on_gpu) {
  DiskVerdict out{.line = {}, .bytes = checkpoint_bytes(r, on_gpu)};
  const auto size = [](double bytes) { return readable_bytes(static_cast<int64_t>(bytes)); };
  const int64_t kept = std::max<int64_t>(r.checkpoint.keep, 1);
  const double need = static_cast<double>(kept + 1) * out.bytes;
  const int64_t free = free_bytes(existing_part(r.checkpoint.dir));
  out.fits = free < 0 || need <= static_cast<double>(free);
  out.line = r.checkpoint.keep == 0
                 ? size(out.bytes) + " for each checkpoint, all of which are kept"
                 : size(need) + " for " + std::to_string(kept) + " checkpoints of " +
                       size(out.bytes) + " and one that is being written";
  if (free >= 0) out.line += "; " + readable_bytes(free) + " are free";
  if (!out.fits) out.line += ". Make room, lower checkpoint.keep, or choose another checkpoint.dir";
  return out;
}

TimeForecast forecast_time(const Recipe& r, const RunPlan& plan, double flops_per_second) {
  const auto tokens = static_cast<double>(plan.batch * r.data.sequence);
  TimeForecast out;
  out.step_flops = costs_of(r.model).flops_per_token(r.data.sequence) * tokens;
  const double teacher = tokens * teacher_costs(r, plan.micro_batch, /*on_gpu=*/false).flops;
  out.step_seconds = (out.step_flops + teacher) / flops_per_second;
  out.tokens_per_second = tokens / out.step_seconds;
  out.run_seconds = static_cast<double>(plan.run.tokens) / out.tokens_per_second;
  return out;
}

int64_t host_memory() {
  const int64_t all = int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
  int64_t limit = number_in("/sys/fs/cgroup/memory.max");
  if (limit == 0) limit = number_in("/sys/fs/cgroup/memory/memory.limit_in_bytes");
  return limit > 0 ? std::min(all, limit) : all;
}

int64_t free_host_memory() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    int64_t kib = 0;
    if (words >> name >> kib && name == "MemAvailable:") return std::min(kib << 10, host_memory());
  }
  return -1;
}

int64_t host_cores() {
  const auto all = std::max<int64_t>(1, std::thread::hardware_concurrency());
  std::ifstream file("/sys/fs/cgroup/cpu.max");  // "200000 100000" microseconds, or "max 100000"
  double quota = 0, period = 0;
  if (!(file >> quota >> period) || quota <= 0 || period <= 0) return all;
  return std::clamp<int64_t>(static_cast<int64_t>(std::ceil(quota / period)), 1, all);
}

std::string in_gib(double bytes) {
  char buffer[32];
  std::snprintf(buffer, sizeof(buffer), "%.*f", bytes < 10737418240.0 / 10 ? 2 : 1,
                bytes / (1 << 30));
  return buffer;
}

}  // namespace troupe
