#include "troupe/train/forecast/model_memory.h"

#include <algorithm>
#include <set>
#include <string>

#include "troupe/nn/head_rows.h"
#include "troupe/nn/models/model.h"
#include "troupe/train/optim/optimizer_piece.h"

namespace troupe {
namespace {

constexpr double kHostRuntime = 134.0 * (1 << 20);  // resident before the model is made
constexpr double kGpuRuntime = 0.8 * (1 << 30);     // context, cuBLAS's workspace

void add_matrices(const Param& p, bool in_halves, StateBytes& s) {
  const auto count = static_cast<double>(p.numel());
  const auto matrix = static_cast<double>(p.size[p.size.size() - 2] * p.size.back());
  s.matrices += count;
  s.matrix = std::max(s.matrix, matrix);
  s.largest = std::max(s.largest, count);
  s.cut = in_halves;
}

void add_states(const Recipe& r, double width, Model& model, std::vector<UnitMemory>& units) {
  const OptimizerBase& base = base_of(r.train.optimizer);
  const auto optimizer = std::visit([](const auto& c) { return c.build(); }, r.train.optimizer);
  const double master = r.train.precision == Precision::kFp16 ? 4 : 2;  // of 2-byte values
  const double moment = bytes_of(base.moments);
  std::set<const Param*> seen;
  for (int64_t unit = 0; unit < model.num_units(); ++unit) {
    model.for_each_param(unit, [&](const std::string& name, Param& p) {
      if (!seen.insert(&p).second) return;
      UnitMemory& u = units[static_cast<size_t>(unit)];
      StateBytes& s = p.per_expert ? u.experts : u.dense;
      const auto count = static_cast<double>(p.numel());
      const double bytes = p.fp32 ? 4 : width;
      if (!p.trainable() || is_frozen(base, name)) {
        (p.group == Group::kState ? s.moments : s.frozen) += count * bytes;
        return;
      }
      s.elements += count;
      s.values += count * bytes;
      s.gradients += count * bytes;
      if (bytes < 4) s.masters += count * master;
      const Bucket bucket{.key = bucket_key(base, {name, &p}), .dtype = at::kFloat};
      s.moments += count * moment * static_cast<double>(optimizer->state_names(bucket).size());
      if (direction_width(r) > 0 && bucket.key.matrix) add_matrices(p, bytes < 4 && master < 4, s);
      for (const SlotState& state : optimizer->slot_states(p, bucket.key)) {
        s.moments += 4 * static_cast<double>(state_like(p, state.extent).numel());
      }
    });
  }
}

// What a block with experts need not keep, in a type of 2 bytes (ExpertsConfig::recompute).
double rebuilt_bytes(const LayerConfig& l, const ModelConfig& m) {
  if (!l.moe) return 0;
  const MoeSizes s = sizes_of(*l.moe, moe_shape(m, l));
  const double hidden = 2.0 * (s.gated ? 2 : 1) * static_cast<double>(s.top_k * s.hidden);
  const Recompute what = l.moe->ffn.recompute;
  return what == Recompute::kExpert || what == Recompute::kLayer ? hidden : 0;
}

// What the CPU makes again in backward instead of keeping it, in a type of 2 bytes: the results of
// norms (ops/norm.h), and of the product only one form of queries and keys
// (ops/attention/attention.h).
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
  const MoeSizes s = sizes_of(*l.moe, moe_shape(m, l));
  const auto k = static_cast<double>(s.top_k);
  const double own = on_gpu ? (s.gated ? 3 : 2) : 1;
  return k * (own * static_cast<double>(s.hidden) + width) + 4 * width;
}

void add_activations(const Recipe& r, bool on_gpu, double width, ModelMemory& out) {
  const ModelConfig& m = r.model;
  const ModelCosts costs = costs_of(m);
  const auto tokens = static_cast<double>(plan_of(r).micro_batch * r.data.sequence);
  const double scale = width / 2;  // costs are of 2-byte types
  const std::vector<bool> again = recomputed_blocks(r);
  double rebuilt = 0, working = 0;
  for (int64_t i = 0; i < m.layers; ++i) {
    const LayerConfig l = layer_config(m, i);
    const size_t unit = static_cast<size_t>(i) + 1;
    UnitMemory& u = out.units[unit];
    const double saved = static_cast<double>(costs.units[unit].saved_bytes) - rebuilt_bytes(l, m) -
                         (on_gpu ? 0 : made_again_bytes(l, m));
    u.saved = tokens * scale * saved;
    u.input = tokens * width * static_cast<double>(m.width);
    u.again = again[static_cast<size_t>(i)];
    if (u.again) rebuilt = std::max(rebuilt, u.saved);
    working = std::max(working, working_elements(l, m, on_gpu));
  }
  out.units.back().saved = tokens * scale * static_cast<double>(costs.units.back().saved_bytes);
  const auto vocab = static_cast<double>(m.vocab), D = static_cast<double>(m.width);
  const double rows = std::min(tokens, static_cast<double>(head_rows(m.vocab, on_gpu)));
  // Logits of a chunk and their gradient, and the gradient of the output table.
  const double head_work = rows * vocab * (width + 4) + 4 * vocab * D;
  out.workspace = std::max(head_work, tokens * width * working + rebuilt);
}

}  // namespace

double direction_width(const Recipe& r) {
  return needs_whole_matrices(r.train.optimizer) && !needs_whole_state(r.train.optimizer) ? 4 : 0;
}

double update_memory(const StateBytes& s, double share, int64_t owners) {
  if (s.matrices == 0) return 0;
  constexpr double kNewtonSchulz = 6;  // of square matrices at work, their products among them
  const double largest = share * s.largest;
  const auto at_once = static_cast<double>(at_a_time(static_cast<int64_t>(s.matrix)));
  const double some = std::min(largest, at_once * s.matrix);
  // And the direction itself, and what halves make of a master.
  if (owners == 1) return 4 * (s.cut ? (kNewtonSchulz + 2) * some : (kNewtonSchulz + 1) * largest);
  const auto ranks = static_cast<double>(owners);
  const double own = std::min(some, largest / ranks + 2 * s.matrix);  // it may begin within one
  return 4 * (share * s.matrices * (1 + 1 / ranks) + kNewtonSchulz * own);
}

double value_width(const Recipe& r, bool on_gpu) {
  const Precision precision = r.train.precision;
  const bool wide = precision == Precision::kAuto ? !on_gpu : precision == Precision::kFp32;
  return wide ? 4 : 2;
}

ModelMemory model_memory(const Recipe& r, bool on_gpu, Model& model) {
  ModelMemory out{.on_gpu = on_gpu, .units = {}};
  out.units.resize(static_cast<size_t>(r.model.layers) + 2);
  const double width = value_width(r, on_gpu);
  add_states(r, width, model, out.units);
  add_activations(r, on_gpu, width, out);
  return out;
}

// On the host 0 to 5 % above the peak of six models of 2 to 65 M parameters, 12 % with latent
// attention (troupe bench).
double runtime_memory(bool on_gpu, double passing) {
  return on_gpu ? kGpuRuntime + 0.05 * passing : kHostRuntime + 0.03 * passing;
}

}  // namespace troupe
