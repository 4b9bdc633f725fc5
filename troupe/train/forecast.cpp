#include "troupe/train/forecast.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <string>
#include <thread>
#include <utility>

#include "troupe/core/codes.h"
#include "troupe/core/config.h"
#include "troupe/nn/head_rows.h"
#include "troupe/nn/models/model.h"
#include "troupe/train/learner.h"
#include "troupe/train/memory_use.h"

namespace troupe {
namespace {

constexpr double kHostRuntime = 134.0 * (1 << 20);  // resident before the model is made
constexpr double kGpuRuntime = 0.8 * (1 << 30);     // context, cuBLAS's workspace

bool computes_in_two_bytes(const Recipe& r, bool on_gpu) {
  if (r.train.precision == Precision::kAuto) return on_gpu;
  return r.train.precision != Precision::kFp32;
}

// Whether a step has several microbatches.
bool adds_up(const Recipe& r) {
  const RunPlan plan = plan_of(r);
  return plan.micro_batch < plan.batch;
}

// Weights, gradients, masters and moments, parameter by parameter.
void add_states(const Recipe& r, double width, MemoryForecast& out) {
  const OptimizerBase& base = base_of(r.train.optimizer);
  const auto optimizer = std::visit([](const auto& c) { return c.build(); }, r.train.optimizer);
  const double moment = base.moments == MomentType::kF32 ? 4 : 2;
  const auto model = build_model(r.model);
  const bool sums = adds_up(r);
  model->for_each_param(-1, [&](const std::string& name, Param& p) {
    const auto count = static_cast<double>(p.numel());
    if (!p.trainable() || is_frozen(base, name)) {
      (p.group == Group::kState ? out.moments : out.weights) += count * (p.fp32 ? 4 : width);
      return;
    }
    const double bytes = p.fp32 ? 4 : width;
    out.weights += count * bytes;
    out.gradients += count * (sums ? 4 : bytes);
    if (bytes < 4) out.masters += count * 4;
    const Bucket bucket{.key = bucket_key(base, {name, &p}), .dtype = at::kFloat};
    out.moments += count * moment * static_cast<double>(optimizer->state_names(bucket).size());
  });
}

// What a block with experts need not keep, in a type of 2 bytes (ExpertsConfig::recompute).
double rebuilt_bytes(const LayerConfig& l, const ModelConfig& m) {
  if (!l.moe) return 0;
  const MoeSizes s = sizes_of(*l.moe, {.width = m.width});
  const double hidden = 2.0 * (s.gated ? 2 : 1) * static_cast<double>(s.top_k * s.hidden);
  const Recompute what = l.moe->ffn.recompute;
  return what == Recompute::kExpert || what == Recompute::kLayer ? hidden : 0;
}

// What the CPU makes again in backward instead of keeping it, in a type of 2 bytes: the results of
// norms (ops/norm.h), and of the product only one form of queries and keys (ops/attention.h).
double made_again_bytes(const LayerConfig& l, const ModelConfig& m) {
  int64_t elements = 0;
  if (l.attention && !m.mla) {
    elements += m.width;
    if (m.qk_norm != QkNorm::kNone && !m.clip_qkv) elements += (l.heads + l.kv_heads) * l.head_dim;
  }
  if (!l.moe || l.moe->shared.experts == 0) elements += m.width;
  return 2.0 * static_cast<double>(elements);
}

// Backward's own tensors of a block, in elements a token: the gradients of the experts' hidden
// rows, which the CPU writes over these, and of their input, or of a dense feed-forward's.
double working_elements(const LayerConfig& l, const ModelConfig& m, bool on_gpu) {
  const auto width = static_cast<double>(m.width);
  if (!l.moe) return 3.0 * static_cast<double>(l.ffn) + 4 * width;
  const MoeSizes s = sizes_of(*l.moe, {.width = m.width});
  const auto k = static_cast<double>(s.top_k);
  const double own = on_gpu ? (s.gated ? 3 : 2) : 1;
  return k * (own * static_cast<double>(s.hidden) + width) + 4 * width;
}

void add_activations(const Recipe& r, bool on_gpu, double width, MemoryForecast& out) {
  const ModelConfig& m = r.model;
  const ModelCosts costs = costs_of(m);
  const auto tokens = static_cast<double>(plan_of(r).micro_batch * r.data.sequence);
  const double scale = width / 2;  // costs are of 2-byte types
  const std::vector<bool> again = recomputed_blocks(r);
  double kept = 0, rebuilt = 0, working = 0;
  for (int64_t i = 0; i < m.layers; ++i) {
    const LayerConfig l = layer_config(m, i);
    const double saved = static_cast<double>(costs.units[static_cast<size_t>(i) + 1].saved_bytes) -
                         rebuilt_bytes(l, m) - (on_gpu ? 0 : made_again_bytes(l, m));
    if (again[static_cast<size_t>(i)]) {
      kept += 2 * static_cast<double>(m.width);
      rebuilt = std::max(rebuilt, saved);
    } else {
      kept += saved;
    }
    working = std::max(working, working_elements(l, m, on_gpu));
  }
  const double head = static_cast<double>(costs.units.back().saved_bytes);
  out.activations = tokens * scale * (kept + head);
  const auto vocab = static_cast<double>(m.vocab), D = static_cast<double>(m.width);
  const double rows = std::min(tokens, static_cast<double>(head_rows(m.vocab, on_gpu)));
  // Logits of a chunk and their gradient, and the gradient of the output table.
  const double head_work = rows * vocab * (width + 4) + 4 * vocab * D;
  out.workspace = std::max(head_work, tokens * width * working + tokens * scale * rebuilt);
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

// The first number that a file of the system begins with; 0: there is none.
int64_t number_in(const std::string& path) {
  std::ifstream in(path);
  int64_t out = 0;
  return in >> out ? out : 0;
}

}  // namespace

bool runs_on_gpu(const Recipe& r) {
  if (r.run.device != DeviceKind::kAuto) return r.run.device == DeviceKind::kCuda;
  return device_of(DeviceKind::kAuto).is_cuda();
}

double available_memory(const Recipe& r) {
  const c10::Device device = device_of(DeviceKind::kAuto);
  if (!runs_on_gpu(r)) return static_cast<double>(host_memory());
  return device.is_cuda() ? static_cast<double>(memory_use(device).total) : 0;
}

MemoryForecast forecast_memory(const Recipe& r, bool on_gpu) {
  MemoryForecast out;
  const double width = computes_in_two_bytes(r, on_gpu) ? 2 : 4;
  add_states(r, width, out);
  add_activations(r, on_gpu, width, out);
  // What an allocator keeps beside tensors that come and go; on the host 0 to 5 % above the peak of
  // six models of 2 to 65 M parameters, 12 % with latent attention (troupe bench).
  if (!adds_up(r)) out.overlap = std::min(out.gradients, out.activations);
  const double passing = out.activations + out.workspace;
  out.runtime = on_gpu ? kGpuRuntime + 0.05 * passing : kHostRuntime + 0.03 * passing;
  return out;
}

std::vector<MemoryCut> memory_cuts(const Recipe& r, bool on_gpu) {
  const double now = forecast_memory(r, on_gpu).total();
  const std::string half = to_text(plan_of(r).micro_batch / 2);
  std::vector<MemoryCut> out;
  for (const MemoryCut& cut : {MemoryCut{"train.micro_batch=" + half, 0, "smaller products"},
                               MemoryCut{"train.optimizer.moments=bf16", 0, "rounded moments"},
                               MemoryCut{"train.recompute=\"1\"", 0, "a third more time"}}) {
    Recipe changed = r;
    if (!try_set(changed, cut.set)) continue;
    const double gain = now - forecast_memory(changed, on_gpu).total();
    if (gain > 0.01 * now) out.push_back({cut.set, gain, cut.cost});
  }
  return out;
}

MemoryVerdict judge_memory(const Recipe& r, bool on_gpu, double available) {
  const double needed = forecast_memory(r, on_gpu).total();
  MemoryVerdict out;
  out.line = "memory " + in_gib(needed) + " of " + in_gib(available) + " GiB";
  out.warns = needed > 0.9 * available;
  out.fits = needed <= available;
  if (!out.warns) return out;
  out.line = out.fits ? warning_text(Code::kTooLarge) + ' ' + out.line + '.'
                      : to_text(Code::kTooLarge) + ' ' + out.line + ": it will not fit.";
  const char* separator = " Cheapest: ";
  for (const MemoryCut& cut : memory_cuts(r, on_gpu)) {
    out.line.append(std::exchange(separator, ", ")).append(cut.set);
    out.line.append(" (-").append(in_gib(cut.gain)).append("; ").append(cut.cost).append(")");
  }
  return out;
}

TimeForecast forecast_time(const Recipe& r, double flops_per_second) {
  const RunPlan plan = plan_of(r);
  const auto tokens = static_cast<double>(plan.batch * r.data.sequence);
  TimeForecast out;
  out.step_flops = costs_of(r.model).flops_per_token(r.data.sequence) * tokens;
  out.step_seconds = out.step_flops / flops_per_second;
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
