#include "troupe/ops/support/gpu_code.h"

#include <algorithm>

namespace troupe {
namespace {

constexpr int kOldest = 80;  // of the kernels: mma.sync of bf16, cp.async

struct Image {
  int number = 0;   // 90
  char kind = ' ';  // 'a': this GPU alone; 'f': its family; ' ': any
  bool machine = false, ptx = false;
  std::string name() const {
    return std::to_string(number) + (kind == ' ' ? std::string() : std::string(1, kind));
  }
};

Image image_of(std::string_view word) {
  Image out;
  size_t i = 0;
  for (; i < word.size() && word[i] >= '0' && word[i] <= '9'; ++i) {
    out.number = 10 * out.number + (word[i] - '0');
  }
  if (i < word.size() && (word[i] == 'a' || word[i] == 'f')) out.kind = word[i++];
  const std::string_view rest = word.substr(i);
  out.machine = rest != "-virtual";
  out.ptx = rest != "-real";
  return out;
}

std::vector<Image> images_of(std::string_view list) {
  std::vector<Image> out;
  while (!list.empty()) {
    const size_t end = std::min(list.find_first_of(";, "), list.size());
    if (end > 0) out.push_back(image_of(list.substr(0, end)));
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return out;
}

bool runs_machine_code(const Image& i, int capability) {
  if (!i.machine) return false;
  if (i.kind == 'a') return i.number == capability;
  return i.number / 10 == capability / 10 && i.number <= capability;
}

bool runs_ptx(const Image& i, int capability) {
  if (!i.ptx) return false;
  if (i.kind == 'a') return i.number == capability;
  if (i.kind == 'f' && i.number / 10 != capability / 10) return false;
  return i.number <= capability;
}

std::string joined_with_and(const std::vector<std::string>& words) {
  std::string out;
  for (size_t i = 0; i < words.size(); ++i) {
    out += (i == 0 ? "" : i + 1 == words.size() ? " and " : ", ") + words[i];
  }
  return out;
}

std::string dotted(int capability) {
  return std::to_string(capability / 10) + '.' + std::to_string(capability % 10);
}

// "90a-real": with the kernels that are for it alone.
std::string architecture_for(int capability) {
  return std::to_string(capability) + (capability == 90 ? "a-real" : "-real");
}

// What the environment hides, as a clause; empty: nothing that would have helped.
std::string hidden_by(std::string_view architectures, const GpuFound& gpu,
                      const DriverRules& rules) {
  const bool there = gpu_code(architectures, gpu.capability) != GpuCode::kNone;
  if (!there || !(rules.ptx_only || rules.no_ptx)) return {};
  return rules.ptx_only ? "CUDA_FORCE_PTX_JIT is set, which leaves machine code alone: unset it"
                        : "CUDA_DISABLE_PTX_JIT is set, which leaves PTX alone: unset it";
}

// How to get a build for these.
std::string cure(const std::vector<GpuFound>& gpus) {
  std::vector<std::string> names;
  for (const GpuFound& gpu : gpus) {
    if (gpu.capability < kOldest) continue;
    const std::string name = architecture_for(gpu.capability);
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  if (names.empty()) return "Troupe's kernels need compute capability 8.0 or later";
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ";") + name;
  return "For it build from source: cmake '-DCMAKE_CUDA_ARCHITECTURES=" + list +
         "' build/release, then ./dev build (docs/develop/BUILD.md)";
}

std::string is_for(std::string_view architectures) {
  return "this build is for " + architectures_text(architectures);
}

}  // namespace

GpuCode gpu_code(std::string_view architectures, int capability, const DriverRules& rules) {
  GpuCode best = GpuCode::kNone;
  for (const Image& i : images_of(architectures)) {
    if (!rules.ptx_only && runs_machine_code(i, capability)) return GpuCode::kMachine;
    if (!rules.no_ptx && runs_ptx(i, capability)) best = GpuCode::kPtx;
  }
  return best;
}

std::string architectures_text(std::string_view architectures) {
  std::vector<std::string> machine, ptx;
  for (const Image& i : images_of(architectures)) {
    if (i.machine) machine.push_back("sm_" + i.name());
    if (i.ptx) ptx.push_back("compute_" + i.name());
  }
  if (machine.empty() && ptx.empty()) return "no CUDA";
  if (ptx.empty()) return joined_with_and(machine);
  machine.push_back("PTX of " + joined_with_and(ptx));
  return joined_with_and(machine);
}

std::string to_text(const GpuFound& gpu) {
  return "GPU " + std::to_string(gpu.index) + " (" + (gpu.name.empty() ? "" : gpu.name + ", ") +
         "compute capability " + dotted(gpu.capability) + ")";
}

std::string why_no_code(std::string_view architectures, const std::vector<GpuFound>& gpus,
                        const DriverRules& rules) {
  std::vector<std::string> names;
  for (const GpuFound& gpu : gpus) {
    if (gpu_code(architectures, gpu.capability, rules) != GpuCode::kNone) return {};
    names.push_back(to_text(gpu));
  }
  if (names.empty()) return {};
  const std::string hidden = hidden_by(architectures, gpus.front(), rules);
  return joined_with_and(names) + (names.size() == 1 ? " runs" : " run") +
         " no kernel of this build: " + is_for(architectures) + ". " +
         (hidden.empty() ? cure(gpus) : hidden);
}

std::string why_not_on(std::string_view architectures, const GpuFound& gpu, bool found,
                       const DriverRules& rules) {
  if (found) return {};
  const std::string why = why_no_code(architectures, {gpu}, rules);
  if (!why.empty()) {
    return why + ". Other GPUs here may run it: choose them with CUDA_VISIBLE_DEVICES";
  }
  return "the driver has no code of this build for " + to_text(gpu) + ", although " +
         is_for(architectures) +
         ": it is older than CUDA 13 and cannot compile the PTX. Install a newer driver, or build "
         "with -DCMAKE_CUDA_ARCHITECTURES=" +
         architecture_for(gpu.capability);
}

std::string code_text(std::string_view architectures, int capability, const DriverRules& rules) {
  const GpuCode code = gpu_code(architectures, capability, rules);
  if (code == GpuCode::kMachine) return "machine code";
  if (code == GpuCode::kPtx) {
    return "PTX, which the driver compiles once; no kernel is for this GPU alone";
  }
  return "none";
}

std::string tried_text(std::string_view architectures) {
  std::vector<std::string> run, by_ptx, never;
  for (const Image& i : images_of(architectures)) {
    if (i.machine) (i.number == 90 ? run : never).push_back("sm_" + i.name());
    if (i.ptx) (i.number == 80 ? by_ptx : never).push_back("PTX of compute_" + i.name());
  }
  std::string out;
  if (!run.empty()) out = joined_with_and(run) + " was run, on H100 and H200";
  if (!by_ptx.empty()) {
    out += (out.empty() ? "" : "; ") + joined_with_and(by_ptx) + " was run, on an H200";
  }
  if (!never.empty()) {
    out += (out.empty() ? "" : "; ") + joined_with_and(never) +
           (never.size() == 1 ? " was" : " were") + " compiled and not run";
  }
  return out;
}

}  // namespace troupe
