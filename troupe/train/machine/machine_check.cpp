#include "troupe/train/machine/machine_check.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <random>
#include <sstream>
#include <utility>

#include "troupe/core/check.h"
#include "troupe/core/file/child_output.h"
#include "troupe/core/file/file.h"
#include "troupe/core/file/host_name.h"
#include "troupe/core/file/publish.h"
#include "troupe/core/text/first_line.h"
#include "troupe/ops/support/cuda_plugin.h"
#include "troupe/ops/support/wait_for_device.h"
#include "troupe/train/forecast/forecast.h"
#include "troupe/train/observe/step_line.h"

namespace troupe {
namespace {

using std::chrono::steady_clock;

constexpr size_t kDiskBytes = size_t{4} << 20;
constexpr int kTries = 2;  // a measurement is repeated: another process may have slowed the first

double seconds_since(steady_clock::time_point begin) {
  return std::chrono::duration<double>(steady_clock::now() - begin).count();
}

// "2.1 MB/s written; bound: 5.0 MB/s", and the cure where it is out of the bound.
Finding bounded(bool fits, std::string what, const std::string& found, const std::string& bound,
                std::string cure) {
  return {fits ? Finding::kOk : Finding::kFail, std::move(what), found + "; bound: " + bound,
          fits ? "" : std::move(cure)};
}

Finding failed(std::string what, const std::string& why, std::string cure) {
  return {Finding::kFail, std::move(what), first_line(why), std::move(cure)};
}

std::string rate_text(double bytes_per_second) {
  return fixed(bytes_per_second / 1e6, 1) + " MB/s";
}

std::string gibibytes(int64_t bytes) {
  return fixed(static_cast<double>(bytes) / (1 << 30), 2) + " GiB";
}

double value_of(Bytes bytes) {
  return static_cast<double>(bytes.value);
}

// Bytes that no file system makes smaller.
std::string noise() {
  std::mt19937_64 next(1);
  std::string out(kDiskBytes, '\0');
  for (char& c : out) c = static_cast<char>(next());
  return out;
}

// The name has the host and the process: machines may share the folder.
std::string probe_name(const std::string& folder) {
  return folder + "/.machine-check-" + host_name() + '-' + std::to_string(::getpid());
}

// Drops the file's pages, so that it is read from the disk.
void forget_pages(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  ::close(fd);
}

DiskSpeed disk_speed(const std::string& folder, const Faults& faults) {
  Fs fs;
  const std::string path = probe_name(nearest_folder(folder)), bytes = noise();
  const auto size = static_cast<double>(kDiskBytes);
  const auto begin = steady_clock::now();
  faults.at("check.disk");
  {
    NewFile file(fs, path);
    file.write(bytes);
    file.finish();
  }
  DiskSpeed out{.write = size / seconds_since(begin)};
  const struct Remove {
    const std::string& path;
    ~Remove() { ::unlink(path.c_str()); }
  } remove{path};
  forget_pages(path);
  const auto begin_read = steady_clock::now();
  const bool same = read_file(path, Code::kFileFailed) == bytes;
  out.read = size / seconds_since(begin_read);
  if (!same) fail(Code::kFileFailed, path, "holds other bytes than were written");
  return out;
}

Finding check_disk(const MachineToCheck& machine, const Faults& faults) {
  DiskSpeed best;
  for (int i = 0; i < kTries; ++i) {
    const DiskSpeed speed = disk_speed(machine.folder, faults);
    best = {std::max(best.write, speed.write), std::max(best.read, speed.read)};
    if (std::min(best.write, best.read) >= value_of(machine.bounds.disk)) break;
  }
  return judge_disk_speed(machine.folder, best, machine.bounds);
}

// The best of some rounds of products, each of some milliseconds. The same product twice has the
// same bits; one that has not comes from a device that computes wrongly.
double product_speed(const c10::Device& device) {
  constexpr int64_t kSize = 4096;
  constexpr int kProducts = 40, kTrials = 5;
  const at::Tensor a = at::randn({kSize, kSize}, at::TensorOptions(at::kBFloat16).device(device));
  const at::Tensor first = at::mm(a, a);
  at::Tensor out = at::empty_like(a);
  double best = 0;
  for (int round = 0; round <= kTrials; ++round) {  // the first also raises the clock
    wait_for_device(device);
    const auto begin = steady_clock::now();
    for (int i = 0; i < kProducts; ++i) at::mm_out(out, a, a);
    wait_for_device(device);
    best = std::max(best, 2.0 * std::pow(kSize, 3) * kProducts / seconds_since(begin));
  }
  if (!at::equal(first, out)) throw Error("two equal products have different bits");
  return best;
}

GpuMeasure measure_gpu(int index) {
  const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
  GpuMeasure out;
  try {
    at::globalContext().lazyInitDevice(device.type());
    out.free = static_cast<int64_t>(
        c10::getDeviceAllocator(device.type())->getMemoryInfo(device.index()).first);
    out.speed = product_speed(device);
  } catch (const std::exception& e) {
    out.failure = first_line(e.what());
  }
  return out;
}

// What nvidia-smi says of uncorrected ECC errors since its driver was loaded; empty without it.
std::string ecc_lines() {
  return ChildOutput({"nvidia-smi", "--query-gpu=index,ecc.errors.uncorrected.volatile.total",
                      "--format=csv,noheader,nounits"})
      .rest();
}

void check_gpus(const MachineBounds& bounds, const std::function<void(const Finding&)>& found) {
  const int count = c10::impl::VirtualGuardImpl(c10::kCUDA).deviceCount();
  std::vector<GpuMeasure> gpus;
  for (int i = 0; i < count; ++i) gpus.push_back(measure_gpu(i));
  for (const Finding& finding : judge_gpus(gpus, bounds)) found(finding);
  for (const Finding& finding : judge_ecc_errors(ecc_lines())) found(finding);
}

}  // namespace

void validate(const MachineBounds& bounds) {
  if (bounds.gpu_speed >= 0 && bounds.gpu_speed <= 1) return;
  fail(Code::kBadValue, "gpu_speed", bounds.gpu_speed, "is not between 0 and 1");
}

std::string nearest_folder(const std::string& folder) {
  std::filesystem::path at = folder;
  while (!at.empty() && file_kind(at) == FileKind::kNothing) at = at.parent_path();
  return at.empty() ? "." : at.string();
}

void check_machine(const MachineToCheck& machine, const Faults& faults,
                   const std::function<void(const std::string& what)>& begins,
                   const std::function<void(const Finding&)>& found) {
  const at::NoGradGuard no_grad;
  const auto check = [&](const std::string& what, const std::string& cure, auto&& run) {
    begins(what);
    try {
      run();
    } catch (const std::exception& e) {
      found(failed(what, e.what(), cure));
    }
  };
  if (!machine.host.empty()) {
    check("link to the host", "look at the network between them", [&] {
      const LinkMeasure link = measure_link(machine.host, machine.port, faults);
      found(judge_host_clock(link.clock_ahead, machine.bounds));
      found(judge_link(link, machine.bounds));
    });
  }
  check("disk speed of " + machine.folder, "choose another folder, or mend the disk",
        [&] { found(check_disk(machine, faults)); });
  check("free memory", "end what else runs here",
        [&] { found(judge_free_memory(free_host_memory(), machine.bounds)); });
  if (!machine.gpus || !has_cuda()) return;
  check("GPUs", "look at nvidia-smi and the system's log",
        [&] { check_gpus(machine.bounds, found); });
}

Finding judge_host_clock(double ahead, const MachineBounds& bounds) {
  return bounded(
      std::abs(ahead) <= bounds.clock.seconds(), "clock",
      fixed(std::abs(ahead), 1) + (ahead < 0 ? " s behind" : " s ahead of") + " the host's",
      to_text(bounds.clock), "set it by NTP");
}

Finding judge_link(const LinkMeasure& link, const MachineBounds& bounds) {
  return bounded(
      link.round_trip <= bounds.round_trip.seconds() && link.rate >= value_of(bounds.link),
      "link to the host",
      "round trip " + fixed(1e3 * link.round_trip, 1) + " ms, " + rate_text(link.rate),
      to_text(bounds.round_trip) + ", " + rate_text(value_of(bounds.link)),
      "look at the network between them");
}

Finding judge_disk_speed(const std::string& folder, const DiskSpeed& speed,
                         const MachineBounds& bounds) {
  return bounded(std::min(speed.write, speed.read) >= value_of(bounds.disk),
                 "disk speed of " + folder,
                 rate_text(speed.write) + " written and synced, " + rate_text(speed.read) + " read",
                 rate_text(value_of(bounds.disk)), "choose another folder, or mend the disk");
}

Finding judge_free_memory(int64_t free, const MachineBounds& bounds) {
  const std::string text = free < 0 ? "unknown" : gibibytes(free);
  return bounded(free < 0 || free >= bounds.memory.value, "free memory", text,
                 gibibytes(bounds.memory.value), "end what else runs here");
}

std::vector<Finding> judge_gpus(const std::vector<GpuMeasure>& gpus, const MachineBounds& bounds) {
  double fastest = 0;
  for (const GpuMeasure& gpu : gpus) fastest = std::max(fastest, gpu.speed);
  std::vector<Finding> out;
  for (size_t i = 0; i < gpus.size(); ++i) {
    const GpuMeasure& gpu = gpus[i];
    const std::string what = "GPU " + std::to_string(i);
    if (!gpu.failure.empty() || gpu.speed <= 0) {
      out.push_back(
          failed(what, "fails: " + gpu.failure, "look at nvidia-smi and the system's log"));
      continue;
    }
    const double share = gpu.speed / fastest;
    out.push_back(
        bounded(gpu.free >= bounds.gpu_memory.value && share >= bounds.gpu_speed, what,
                gibibytes(gpu.free) + " free, " + fixed(gpu.speed / 1e12, 1) + " TFLOP/s, " +
                    fixed(share, 2) + " of this machine's fastest",
                gibibytes(bounds.gpu_memory.value) + ", " + fixed(bounds.gpu_speed, 2),
                "another process has its memory, or its clock is low: heat, a power limit"));
  }
  return out;
}

std::vector<Finding> judge_ecc_errors(std::string_view lines) {
  std::vector<Finding> out;
  std::istringstream in{std::string(lines)};
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    int64_t index = 0, count = 0;
    char comma = 0;
    if (!(words >> index >> comma >> count) || comma != ',' || count <= 0) continue;
    out.push_back({Finding::kFail, "GPU " + std::to_string(index) + " of nvidia-smi",
                   std::to_string(count) + " uncorrected ECC errors since the driver was loaded; "
                                           "bound: 0",
                   "reset it, or have it replaced"});
  }
  return out;
}

}  // namespace troupe
