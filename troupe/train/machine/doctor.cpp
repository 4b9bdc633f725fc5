#include "troupe/train/machine/doctor.h"

#include <ATen/Parallel.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "troupe/checkpoint/folder/run_folder.h"
#include "troupe/core/device/cpu.h"
#include "troupe/core/device/open_files.h"
#include "troupe/core/file/publish.h"
#include "troupe/core/unix_seconds.h"
#include "troupe/distributed/world/start_needs.h"
#include "troupe/ops/support/build_info.h"
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

constexpr const char* kRaiseFiles =
    "raise the hard limit: ulimit -Hn 65536, LimitNOFILE= of a service, --ulimit nofile=65536 of a "
    "container";
constexpr int64_t kRanksOfLargeHost = 64;

// "65536 (raised from 1024)".
std::string allowed_text(const OpenFiles& files) {
  if (files.allowed < 0) return "any number";
  std::string out = std::to_string(files.allowed);
  if (files.given >= 0 && files.given < files.allowed) {
    out += " (raised from " + std::to_string(files.given) + ")";
  }
  return out;
}

// The ports that the system gives to connections; 0: it does not say.
int64_t ports_here() {
  int64_t first = 0, last = -1;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> first >> last;
  return std::max(last - first + 1, int64_t{0});
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

// The GPUs, each by a kernel that is looked up there.
std::vector<Finding> devices() {
  if (!why_no_gpu_code().empty()) {
    return {finding(Finding::kWarn, "GPU", why_no_gpu_code(),
                    "Until then run.device: auto takes the processor")};
  }
  if (!has_cuda()) {
    return {
        finding(Finding::kOk, "GPU", "none (" + why_no_cuda() + "): runs are on the processor")};
  }
  std::vector<Finding> out;
  for (const GpuFound& gpu : gpus_here()) {
    out.push_back(judge_gpu(gpu, code_text(gpu_architectures(), gpu.capability, driver_rules()),
                            why_no_code_on(gpu.index)));
  }
  return out;
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

Finding judge_gpu(const GpuFound& gpu, const std::string& code, const std::string& fault) {
  if (!fault.empty()) return finding(Finding::kWarn, "GPU", fault, "A run there ends with E7101");
  return finding(
      Finding::kOk, "GPU",
      to_text(gpu) + " answers and runs this build by " + code + "; run.device: auto takes it");
}

Finding judge_open_files(const OpenFiles& files) {
  constexpr int64_t kFewRanks = 64;
  if (files.allowed < 0) return finding(Finding::kOk, "open files", "unlimited");
  const int64_t most = most_ranks_with(files.allowed);
  return finding(most >= kFewRanks ? Finding::kOk : Finding::kWarn, "open files",
                 allowed_text(files) + ", enough for rank 0 of " + std::to_string(most) +
                     " ranks where it serves the store",
                 kRaiseFiles);
}

Finding judge_files_of(const std::string& whom, const OpenFiles& files, int64_t need) {
  const bool enough = files.allowed < 0 || files.allowed >= need;
  return finding(
      enough ? Finding::kOk : Finding::kWarn, "open files",
      whom + " needs " + std::to_string(need) + ", this machine allows " + allowed_text(files),
      kRaiseFiles);
}

std::vector<Finding> judge_start(const StartNeeds& needs, const OpenFiles& files, int64_t ports,
                                 int64_t memory) {
  const std::string of = " of " + std::to_string(needs.ranks);
  std::vector<Finding> out = {
      judge_files_of("a rank" + of, files, needs.files),
      judge_files_of("rank 0" + of + ", where it serves the store,", files, needs.files_of_first)};
  const int64_t ranks_here = needs.ports > 0 ? ports / needs.ports : needs.ranks;
  const bool enough = ranks_here >= std::min(needs.ranks, kRanksOfLargeHost);
  out.push_back(finding(enough ? Finding::kOk : Finding::kWarn, "ports",
                        "a rank" + of + " needs " + std::to_string(needs.ports) +
                            ", this machine has " + std::to_string(ports) + ", enough for " +
                            std::to_string(ranks_here) + " ranks on it; rank 0's needs MASTER_PORT",
                        "widen net.ipv4.ip_local_port_range"));
  const bool fits = needs.store_bytes <= memory / 4;
  out.push_back(finding(fits ? Finding::kOk : Finding::kWarn, "store",
                        "rank 0" + of + ", or the launcher that serves it, needs " +
                            gib_text(needs.store_bytes) + " of the " + gib_text(memory) +
                            " of this machine",
                        "serve it on a machine with more memory: MASTER_ADDR"));
  return out;
}

Finding judge_locked_memory(int64_t limit, bool has_gpu) {
  const bool enough = !has_gpu || limit < 0 || limit >= 8 * kGiB;
  return finding(enough ? Finding::kOk : Finding::kWarn, "locked memory",
                 limit < 0 ? "unlimited" : gib_text(limit),
                 "pinned buffers need it; in a container: --ulimit memlock=-1");
}

Finding judge_free_of_host(int64_t free) {
  constexpr int64_t kLeast = kGiB;
  return finding(free < 0 || free >= kLeast ? Finding::kOk : Finding::kWarn, "free memory",
                 free < 0 ? "unknown" : gib_text(free),
                 "end what else runs here; train.offload_state keeps masters and moments in it");
}

Finding judge_clock(int64_t now) {
  constexpr int64_t k2024 = 1704067200;
  return finding(now >= k2024 ? Finding::kOk : Finding::kWarn, "clock",
                 now >= k2024 ? "set" : "before 2024",
                 "set it: logs and TensorBoard are ordered by it");
}

Finding judge_threads(int64_t cores, int64_t threads) {
  const std::string found =
      std::to_string(threads) + " threads on " + std::to_string(cores) + " cores";
  return finding(threads <= cores ? Finding::kOk : Finding::kWarn, "threads", found,
                 "more than cores wait for each other: unset OMP_NUM_THREADS or set run.threads");
}

std::vector<Finding> examine(const std::string& folder) {
  const int64_t all = int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
  std::vector<Finding> out = {
      finding(Finding::kOk, "troupe", version() + " (" + commit() + "), PyTorch " + TORCH_VERSION),
      processor(),
      judge_threads(std::thread::hardware_concurrency(), at::get_num_threads()),
      judge_host_memory(all, host_memory()),
      run_folder(folder),
      judge_disk(folder, free_bytes(nearest_folder(folder))),
      judge_shared_memory(size_of_disk("/dev/shm")),
      judge_open_files(open_files()),
      judge_locked_memory(limit_of(RLIMIT_MEMLOCK), has_cuda()),
      judge_free_of_host(free_host_memory()),
      judge_clock(static_cast<int64_t>(unix_seconds())),
      environment(),
  };
  std::vector<Finding> gpus = devices();
  out.insert(out.begin() + 4, gpus.begin(), gpus.end());
  for (Finding& found : measured(folder)) out.push_back(std::move(found));
  return out;
}

std::vector<Finding> examine_start(int64_t ranks) {
  return judge_start(start_needs(ranks), open_files(), ports_here(), host_memory());
}

std::vector<Finding> examine_experts(const Recipe& recipe, const GpuKind& here) {
  constexpr GpuKind kHopper{.capability = 90, .sm90_code = true};
  const c10::Device gpu(c10::kCUDA, 0);
  const GpuProducts products{.type = type_of(precision_on(gpu, recipe.train.precision)),
                             .gpu = here.capability == 0 ? kHopper : here,
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
  const bool slow = !fp8 && kernels.fused.empty() && products.gpu.capability == kHopper.capability;
  std::vector<Finding> out = {finding(
      slow ? Finding::kWarn : Finding::kOk, line.substr(0, colon),
      (here.capability == 0 ? "no GPU is here; on a Hopper GPU: " : "") + line.substr(colon + 2),
      products.gpu.sm90_code
          ? "results are right, steps slower; fused are bf16 SwiGLU experts without biases, of "
            "widths that are multiples of 64"
          : "results are right, steps slower: build with 90a-real in CMAKE_CUDA_ARCHITECTURES")};
  if (fp8) return out;
  for (const std::string& kernel : kernels.fused) {
    const size_t end = kernel.find(": ");
    out.push_back(finding(Finding::kOk, "kernel " + kernel.substr(0, end), kernel.substr(end + 2)));
  }
  return out;
}

GpuKind first_gpu() {
  return has_cuda() ? gpu_of({c10::kCUDA, 0}) : GpuKind{};
}

}  // namespace troupe
