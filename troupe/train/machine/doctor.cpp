#include "troupe/train/machine/doctor.h"

#include <ATen/Parallel.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <torch/version.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "troupe/checkpoint/folder/run_folder.h"
#include "troupe/core/device/cpu.h"
#include "troupe/core/file/publish.h"
#include "troupe/ops/support/cuda_plugin.h"
#include "troupe/train/forecast/forecast.h"
#include "troupe/train/machine/machine_check.h"
#include "troupe/train/observe/run_files.h"
#include "troupe/train/observe/version.h"
#include "troupe/train/recipe/experts_kernels.h"
#include "troupe/train/step/learner.h"

namespace troupe {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

Finding finding(Finding::Verdict verdict, std::string what, std::string found,
                std::string cure = "") {
  return {verdict, std::move(what), std::move(found),
          verdict == Finding::kOk ? "" : std::move(cure)};
}

int64_t limit_of(__rlimit_resource resource) {
  struct rlimit limit = {};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return -1;
  return static_cast<int64_t>(limit.rlim_cur);
}

int64_t size_of_disk(const char* path) {
  struct statvfs disk = {};
  if (::statvfs(path, &disk) != 0) return -1;
  return static_cast<int64_t>(disk.f_blocks) * static_cast<int64_t>(disk.f_frsize);
}

std::string gib_text(int64_t bytes) {
  return bytes < 0 ? "unknown" : in_gib(static_cast<double>(bytes)) + " GiB";
}

Finding processor() {
  std::string missing, has;
  for (const CpuFeature& feature : cpu_features()) {
    if (feature.level <= 3 && !feature.present) missing += ' ' + std::string(feature.name);
    if (feature.level == 4 && feature.present && has.empty()) has = ", 512-bit vectors";
  }
  const std::string name = this_environment({}, "").processor;
  return finding(missing.empty() ? Finding::kOk : Finding::kFail, "processor",
                 name + (missing.empty() ? has : ", without" + missing),
                 "build with -DTROUPE_CPU_ARCH= (empty) for such a processor");
}

Finding device() {
  if (has_cuda()) return finding(Finding::kOk, "GPU", "CUDA answers; run.device: auto takes it");
  return finding(Finding::kOk, "GPU", "none (" + why_no_cuda() + "): runs are on the processor");
}

Finding environment() {
  if (const char* fault = std::getenv("TROUPE_FAULT"); fault != nullptr && *fault != '\0') {
    return finding(Finding::kWarn, "environment", std::string("TROUPE_FAULT=") + fault,
                   "it makes faults on purpose; unset it for a real run");
  }
  return finding(Finding::kOk, "environment", "nothing that changes a run");
}

Finding run_folder(const std::string& folder) {
  const std::string why = why_not_writable(folder);
  return finding(why.empty() ? Finding::kOk : Finding::kFail, "folder " + folder,
                 why.empty() ? "can be written to" : why,
                 "choose another checkpoint.dir, or the right to write there");
}

// What is slow ends no run, so it is a warning here.
std::vector<Finding> measured(const std::string& folder) {
  std::vector<Finding> out;
  check_machine(
      {.folder = folder}, Faults(), [](const std::string&) {},
      [&out](const Finding& found) {
        out.push_back(found);
        if (found.verdict == Finding::kFail) out.back().verdict = Finding::kWarn;
      });
  return out;
}

}  // namespace

Finding judge_disk(const std::string& folder, int64_t free) {
  const Finding::Verdict verdict = free < 0           ? Finding::kFail
                                   : free < kGiB / 10 ? Finding::kFail
                                   : free < 10 * kGiB ? Finding::kWarn
                                                      : Finding::kOk;
  return finding(verdict, "disk of " + folder, gib_text(free) + " free",
                 "a checkpoint has 12 bytes a parameter: choose a larger disk for checkpoint.dir");
}

Finding judge_shared_memory(int64_t size) {
  return finding(
      size >= kGiB ? Finding::kOk : Finding::kWarn, "/dev/shm", gib_text(size),
      "processes on one machine meet there; in a container: --ipc=host or --shm-size=8g");
}

Finding judge_host_memory(int64_t all, int64_t limit) {
  const std::string found =
      limit < all ? gib_text(limit) + " of " + gib_text(all) + " (control group)" : gib_text(all);
  return finding(limit >= 2 * kGiB ? Finding::kOk : Finding::kWarn, "memory", found,
                 "`troupe plan` says what a recipe needs");
}

Finding judge_open_files(int64_t limit) {
  const bool enough = limit < 0 || limit >= 1024;
  return finding(enough ? Finding::kOk : Finding::kWarn, "open files",
                 limit < 0 ? "unlimited" : std::to_string(limit), "ulimit -n 65536");
}

Finding judge_locked_memory(int64_t limit, bool has_gpu) {
  const bool enough = !has_gpu || limit < 0 || limit >= 8 * kGiB;
  return finding(enough ? Finding::kOk : Finding::kWarn, "locked memory",
                 limit < 0 ? "unlimited" : gib_text(limit),
                 "pinned buffers need it; in a container: --ulimit memlock=-1");
}

Finding judge_clock(int64_t unix_seconds) {
  constexpr int64_t k2024 = 1704067200;
  return finding(unix_seconds >= k2024 ? Finding::kOk : Finding::kWarn, "clock",
                 unix_seconds >= k2024 ? "set" : "before 2024",
                 "set it: logs and TensorBoard are ordered by it");
}

Finding judge_threads(int64_t cores, int64_t threads) {
  const std::string found =
      std::to_string(threads) + " threads on " + std::to_string(cores) + " cores";
  return finding(threads <= cores ? Finding::kOk : Finding::kWarn, "threads", found,
                 "more than cores wait for each other: unset OMP_NUM_THREADS or set run.threads");
}

std::vector<Finding> examine(const std::string& folder) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const int64_t all = int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
  std::vector<Finding> out = {
      finding(Finding::kOk, "troupe", version() + " (" + commit() + "), PyTorch " + TORCH_VERSION),
      processor(),
      judge_threads(std::thread::hardware_concurrency(), at::get_num_threads()),
      judge_host_memory(all, host_memory()),
      device(),
      run_folder(folder),
      judge_disk(folder, free_bytes(nearest_folder(folder))),
      judge_shared_memory(size_of_disk("/dev/shm")),
      judge_open_files(limit_of(RLIMIT_NOFILE)),
      judge_locked_memory(limit_of(RLIMIT_MEMLOCK), has_cuda()),
      judge_clock(std::chrono::duration_cast<std::chrono::seconds>(now).count()),
      environment(),
  };
  for (Finding& found : measured(folder)) out.push_back(std::move(found));
  return out;
}

std::vector<Finding> examine_experts(const Recipe& recipe, int capability) {
  constexpr int kHopper = 90;
  const c10::Device gpu(c10::kCUDA, 0);
  const GpuProducts products{.type = type_of(precision_on(gpu, recipe.train.precision)),
                             .capability = capability == 0 ? kHopper : capability,
                             .slices = with_closed_axes(recipe.parallel).expert_tensor,
                             .trial = recipe.run.trial_kernels};
  const ExpertsKernels kernels =
      experts_kernels(recipe.model, products, plan_of(recipe).micro_batch * recipe.data.sequence);
  const bool fp8 = recipe.train.fp8.has_value();
  if (kernels.line.empty() && !fp8) {
    return {finding(Finding::kOk, "experts", "none: a dense model")};
  }
  const std::string line = fp8 ? fp8_line(*recipe.train.fp8, recipe.model, products) : kernels.line;
  const size_t colon = line.find(": ");
  const bool slow = !fp8 && kernels.fused.empty() && products.capability == kHopper;
  std::vector<Finding> out = {
      finding(slow ? Finding::kWarn : Finding::kOk, line.substr(0, colon),
              (capability == 0 ? "no GPU is here; on a Hopper GPU: " : "") + line.substr(colon + 2),
              "results are right, steps slower; fused are bf16 SwiGLU experts without biases, of "
              "widths that are multiples of 64")};
  if (fp8) return out;
  for (const std::string& kernel : kernels.fused) {
    const size_t end = kernel.find(": ");
    out.push_back(finding(Finding::kOk, "kernel " + kernel.substr(0, end), kernel.substr(end + 2)));
  }
  return out;
}

int gpu_capability() {
  return has_cuda() ? capability_of({c10::kCUDA, 0}) : 0;
}

}  // namespace troupe
