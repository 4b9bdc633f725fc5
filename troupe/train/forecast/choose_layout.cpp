#include "troupe/train/forecast/choose_layout.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <tuple>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/nn/config/config.h"
#include "troupe/nn/config/costs.h"
#include "troupe/train/forecast/find_layouts.h"
#include "troupe/train/forecast/forecast.h"
#include "troupe/train/forecast/layout_forecast.h"
#include "troupe/train/observe/step_line.h"

namespace troupe {
namespace {

std::string of_gib(double bytes, double memory) {
  const std::string needs = in_gib(bytes) + " GiB a rank";
  return memory > 0 ? needs + " of " + in_gib(memory) : needs;
}

// The elements of `all` for which `good` is true; all of them if there is none.
std::vector<int64_t> those(const std::vector<int64_t>& all, auto&& good) {
  std::vector<int64_t> out;
  std::copy_if(all.begin(), all.end(), std::back_inserter(out), good);
  return out.empty() ? all : out;
}

bool in_blocks(const LayoutForecast& f) {
  const ParallelConfig& c = f.parallel;
  return c.shard != ShardKind::kNone && c.shard_ranks > 0 && c.shard_ranks < f.world;
}

// The number of axes that `given` leaves open and that this layout uses.
int axes_of(const LayoutForecast& f, const ParallelConfig& given) {
  int out = 0;
  for (int64_t ParallelConfig::*axis :
       {&ParallelConfig::tensor, &ParallelConfig::context, &ParallelConfig::pipeline,
        &ParallelConfig::expert_tensor}) {
    out += given.*axis == 0 && f.parallel.*axis > 1;
  }
  return out;
}

// Fewer come first.
auto moving_parts(const LayoutForecast& f) {
  const ParallelConfig& c = f.parallel;
  const int kind = c.shard == ShardKind::kZero1 ? 0 : c.shard == ShardKind::kNone ? 1 : 2;
  return std::tuple(kind, in_blocks(f), c.expert, c.virtual_stages, -f.micro_batch);
}

// What makes `f` simpler than `other`: the first of moving_parts(), or of the axes, that differs.
std::string simpler_by(const LayoutForecast& f, const LayoutForecast& other) {
  const ParallelConfig &a = f.parallel, &b = other.parallel;
  if (a.shard != b.shard) return "shard " + to_text(a.shard) + ", not " + to_text(b.shard);
  if (in_blocks(f) != in_blocks(other)) return "sharded over all ranks, not over a host's";
  const auto fewer = [](const std::string& what, int64_t mine, int64_t others) {
    return what + ' ' + std::to_string(mine) + ", not " + std::to_string(others);
  };
  if (a.expert != b.expert) return fewer("expert", a.expert, b.expert);
  if (a.virtual_stages != b.virtual_stages) {
    return fewer("virtual", a.virtual_stages, b.virtual_stages);
  }
  if (f.micro_batch != other.micro_batch) {
    return fewer("micro_batch", f.micro_batch, other.micro_batch);
  }
  return "fewer axes";
}

// One of each kind of layer, MTP modules' among them.
std::vector<LayerWidths> widths_of(const ModelConfig& m) {
  std::vector<LayerWidths> out;
  for (int64_t i = 0; i < m.layers + m.mtp.depth; ++i) {
    const LayerConfig l = layer_config(m, i);
    LayerWidths w{.layer = i};
    if (l.attention) {
      w.heads = l.heads;
      w.kv_heads = m.mla ? 0 : l.kv_heads;  // MLA has keys for each head
    }
    if (l.moe) {
      w.shared = l.moe->shared.width_for(l.moe->ffn.hidden);
    } else {
      w.ffn = l.ffn;
    }
    const bool known = std::ranges::any_of(out, [&](const LayerWidths& o) {
      return std::tie(o.heads, o.kv_heads, o.ffn, o.shared) ==
             std::tie(w.heads, w.kv_heads, w.ffn, w.shared);
    });
    if (!known) out.push_back(w);
  }
  return out;
}

// The load of each unit of the model, for the choice of stages: products and attention's core in
// operations per token; bytes of parameters with masters and moments; bytes of a sequence's graph.
// Only ratios matter, so the choice does not depend on the machine.
std::vector<UnitLoad> loads_of(const Recipe& r) {
  constexpr double kStateBytes = 16;
  std::vector<UnitLoad> out;
  const auto tokens = static_cast<double>(r.data.sequence);
  for (const UnitCosts& u : costs_of(r.model).units) {
    const double keys =
        u.window > 0 ? std::min(tokens / 2, static_cast<double>(u.window)) : tokens / 2;
    out.push_back({.seconds = 6 * static_cast<double>(u.product_params + u.mtp_product_params) +
                              7 * (static_cast<double>(u.core_dims) * keys +
                                   static_cast<double>(u.state_products)),
                   .state = kStateBytes * static_cast<double>(u.params.total()),
                   .saved = tokens * static_cast<double>(u.saved_bytes)});
  }
  return out;
}

// "zero1 over 8 ranks each, experts over 4"
std::string axes_text(const LayoutForecast& f) {
  const ParallelConfig& c = f.parallel;
  std::string out = to_text(c.shard);
  if (in_blocks(f)) out += " over " + std::to_string(c.shard_ranks) + " ranks each";
  if (c.pipeline > 1) {
    out += ", stages over " + std::to_string(c.pipeline) + " (" + to_text(c.schedule);
    if (c.virtual_stages > 1) out += ", " + std::to_string(c.virtual_stages) + " each";
    out += ')';
  }
  if (c.tensor > 1) out += ", tensor over " + std::to_string(c.tensor);
  if (c.context > 1) {
    out += ", context over " + std::to_string(c.context);
    if (c.context_method != ContextMethod::kKeys) out += " (" + to_text(c.context_method) + ')';
  }
  if (c.expert > 1) out += ", experts over " + std::to_string(c.expert);
  if (c.expert_tensor > 1) out += " in slices over " + std::to_string(c.expert_tensor);
  return out;
}

// "zero1 over 8 ranks each, experts over 4, micro batch 2: 436.2 ms"
std::string describe(const LayoutForecast& f) {
  return axes_text(f) + ", micro batch " + std::to_string(f.micro_batch) + ": " +
         fixed(1e3 * f.step_seconds, 1) + " ms";
}

// The choice among those that fit, beside the fastest of the others.
std::string reason(const std::vector<LayoutForecast>& fit, size_t chosen, const Machine& machine) {
  std::string out = describe(fit[chosen]) + " a step, forecast for " +
                    (machine.name.empty() ? "the machine" : machine.name);
  if (fit.size() == 1) return out;
  if (chosen == 0) return out + "; next " + describe(fit[1]);
  const double gain = fit[chosen].step_seconds / fit.front().step_seconds;
  if (gain <= kAlike) return out + "; as fast with more parts " + describe(fit.front());
  return out + "; " + fixed(100 * (gain - 1), 0) + " % faster with more axes, too little to be " +
         "sure of: " + describe(fit.front());
}

// Of the targets that tensor ranks cut, those for which `holds`.
std::vector<std::string> cut_targets(const std::function<bool(LoraTarget)>& holds) {
  std::vector<std::string> out;
  for (const LoraTarget target : {LoraTarget::kAttention, LoraTarget::kShared, LoraTarget::kFfn}) {
    if (holds(target)) out.push_back(to_text(target));
  }
  return out;
}

}  // namespace

LayoutNeeds needs_of(const Recipe& r, int64_t world, int64_t per_host) {
  const ModelConfig& m = r.model;
  constexpr double kBytes = 4;  // of an element, its gradient's too, in a 2-byte type
  const double tables = m.tie_embeddings ? 1 : 2;
  return {.world = world,
          .experts = num_moe_layers(r.model) > 0 ? r.model.moe.experts : 0,
          .whole_state = needs_whole_state(r.train.optimizer),
          .per_host = per_host,
          .hidden = r.model.moe.ffn.hidden,
          .whole_experts = m.moe.ffn.lora.on() || m.lora.of(LoraTarget::kExperts).on() ||
                           m.lora.bits_of(LoraTarget::kExperts).has_value(),
          .in_bits = cut_targets([&](LoraTarget t) { return m.lora.bits_of(t).has_value(); }),
          .decomposed = cut_targets([&](LoraTarget t) { return m.lora.of(t).dora; }),
          .widths = widths_of(m),
          .table_rows = padded_vocab(m),
          .sequence = r.data.sequence,
          .table_bytes = tables * kBytes * static_cast<double>(padded_vocab(m) * m.width),
          .optimizer = std::string(r.train.optimizer.kind()),
          .latent = m.mla.has_value(),
          .delta = m.delta.has_value(),
          .teacher = r.train.teacher.has_value(),
          .pairs = r.train.loss == LossKind::kDpo,
          .in_backward = r.train.update == UpdatePlace::kInBackward,
          .attention_dropout = m.attn_dropout,
          .gathered_lora_dropout = std::max({m.lora.of(LoraTarget::kAttention).dropout,
                                             m.lora.of(LoraTarget::kShared).dropout,
                                             m.lora.of(LoraTarget::kFfn).dropout}),
          .attention_lora_dropout = m.lora.of(LoraTarget::kAttention).dropout,
          .experts_lora_dropout =
              std::max(m.moe.ffn.lora.dropout, m.lora.of(LoraTarget::kExperts).dropout),
          .layers = m.layers,
          .mtp = m.mtp.depth,
          .loads = r.parallel.pipeline > 1 ? loads_of(r) : std::vector<UnitLoad>()};
}

ParallelConfig settled(const ParallelConfig& config, const LayoutNeeds& needs) {
  std::string all;
  for (const std::string& fault : layout_faults(config, needs)) {
    all.append(all.empty() ? "" : "\n").append(fault);
  }
  if (!all.empty()) throw Error(all, Code::kBadValue);
  return resolved(config, needs);
}

Machine machine_of(const Recipe& r, bool on_gpu) {
  if (r.run.machine.empty()) return assumed_machine(on_gpu);
  const Machine assumed = assumed_machine(on_gpu);
  Machine out = load_machine(r.run.machine);
  if (out.inside.bandwidth <= 0) out.inside = assumed.inside;
  if (out.between.bandwidth <= 0) out.between = assumed.between;
  return out;
}

std::vector<int64_t> open_micro_batches(const Recipe& r, int64_t world, bool on_gpu) {
  if (r.train.micro_batch) return {*r.train.micro_batch};
  // `troupe check` asks with a world of one rank, whatever layout the recipe has.
  const int64_t batch = batch_of(r),
                replicas = std::max<int64_t>(1, replicas_of(r.parallel, world));
  std::vector<int64_t> out = micro_batches(r, on_gpu ? 2 * kMicroTokens : kMicroTokens);
  out = those(out, [&](int64_t n) { return batch / n >= replicas; });
  return those(out, [&](int64_t n) { return batch / n % replicas == 0; });
}

size_t chosen_of(const std::vector<LayoutForecast>& fit, const ParallelConfig& given,
                 const RanksAtHand& ranks) {
  const bool hosts = ranks.on_gpu && ranks.world > ranks.per_host;
  int axes = std::numeric_limits<int>::max();
  for (const LayoutForecast& f : fit) axes = std::min(axes, axes_of(f, given));
  const auto fastest = [&](int most) {
    return std::ranges::find_if(fit,
                                [&](const LayoutForecast& f) { return axes_of(f, given) <= most; });
  };
  constexpr int kAxes = 4;
  for (int more = axes + 1; hosts && more <= kAxes; ++more) {
    const double worth = std::pow(kWorthAnAxis, more - axes);
    if (worth * fastest(more)->step_seconds < fastest(axes)->step_seconds) axes = more;
  }
  size_t out = static_cast<size_t>(fastest(axes) - fit.begin());
  for (size_t i = out + 1; i < fit.size(); ++i) {
    if (fit[i].step_seconds > kAlike * fastest(axes)->step_seconds) break;
    if (axes_of(fit[i], given) > axes) continue;
    const auto parts = [&](const LayoutForecast& f) {
      return std::pair(axes_of(f, given), moving_parts(f));
    };
    if (parts(fit[i]) < parts(fit[out])) out = i;
  }
  return out;
}

std::string why_not_first(const std::vector<LayoutForecast>& fit, size_t chosen,
                          const ParallelConfig& given, const RanksAtHand& ranks) {
  const LayoutForecast& taken = fit[chosen];
  const int axes = axes_of(taken, given);
  const auto fastest =
      std::ranges::find_if(fit, [&](const LayoutForecast& f) { return axes_of(f, given) <= axes; });
  const double gain = fastest->step_seconds / fit.front().step_seconds - 1;
  std::string out;
  if (fastest != fit.begin()) {
    const bool hosts = ranks.on_gpu && ranks.world > ranks.per_host;
    out = "those before row " + std::to_string(fastest - fit.begin() + 1) +
          " use more of tensor, context, pipeline and expert_tensor and are at most " +
          fixed(100 * gain, 1) + " % faster; " +
          (hosts ? "over several hosts each further axis must save " +
                       fixed(100 * (kWorthAnAxis - 1), 0) + " %"
                 : "on one host a run uses another axis only where nothing fits without it");
  }
  if (&taken == &*fastest) return out;
  if (!out.empty()) out += ". ";
  return out + "it is within " + fixed(100 * (kAlike - 1), 0) + " % of row " +
         std::to_string(fastest - fit.begin() + 1) +
         ", and simpler: " + simpler_by(taken, *fastest);
}

std::string why_faster(const LayoutForecast& best, const LayoutForecast& next) {
  std::vector<std::pair<double, const char*>> parts;
  for (const StepPart& part : kStepParts) {
    parts.emplace_back(next.rank.*part.seconds - best.rank.*part.seconds, part.name);
  }
  std::ranges::stable_sort(parts, std::greater(), [](const auto& p) { return std::abs(p.first); });
  const double all = next.step_seconds - best.step_seconds;
  std::string out = fixed(1e3 * all, 1) + " ms a step";
  const char* separator = ": ";
  for (const auto& [seconds, name] : parts) {
    if (std::abs(seconds) < 1e-3 * best.step_seconds) break;
    out += separator + fixed(1e3 * std::abs(seconds), 1) +
           (seconds > 0 ? " ms less for " : " ms more for ") + name;
    separator = ", ";
  }
  return out;
}

std::string nothing_fits(const Recipe& r, const LayoutForecast& least, const RanksAtHand& ranks) {
  const StepMemory& peak = least.rank.peak;
  std::string out = "no layout of " + std::to_string(ranks.world) +
                    " ranks fits: the fullest rank of the best (" + axes_text(least) + ") wants " +
                    in_gib(peak.total()) + " of " + in_gib(ranks.memory) + " GiB, " +
                    in_gib(peak.activations) + " of them activations";
  Recipe laid = r;
  laid.parallel = least.parallel;
  laid.train.micro_batch = least.micro_batch;
  for (const MemoryCut& cut : memory_cuts(laid, ranks.on_gpu, ranks.world)) {
    out += "; " + cut.set + " makes it " + in_gib(peak.total() - cut.gain);
  }
  return out;
}

LayoutChoice choose_layout(const Recipe& given, const RanksAtHand& ranks, const Machine& machine) {
  const Recipe r = with_axes_of_bits(given);
  RanksAtHand usable = ranks;
  usable.memory *= kMostMemory;
  LayoutSearch found = find_layouts(r, usable, machine, OpenAxes::kMayFit);
  std::vector<LayoutForecast>& fit = found.fit;
  LayoutChoice out{.parallel = r.parallel, .micro_batch = plan_of(r).micro_batch};
  size_t chosen = 0;
  if (fit.empty()) {
    if (!found.least) return out;  // whoever asks for it tells what is wrong with it
    out.why = "nothing fits, this needs least: ";
    fit = {*found.least};
  } else {
    chosen = chosen_of(fit, r.parallel, ranks);
  }
  const LayoutForecast& f = fit[chosen];
  out.parallel = f.parallel;
  out.micro_batch = f.micro_batch;
  out.micro_why = r.train.micro_batch ? "given" : "chosen with the layout";
  out.seconds = f.step_seconds;
  out.why += reason(fit, chosen, machine) + "; ";
  const std::string rows =
      why_dispatcher(f.parallel, needs_of(r, ranks.world, std::max<int64_t>(ranks.per_host, 1)));
  if (!rows.empty()) out.why += rows + "; ";
  out.why += "memory forecast " + of_gib(f.rank.peak.total(), ranks.memory);
  return out;
}

MicroBatchChoice choose_micro_batch(const Recipe& r, const RanksAtHand& ranks) {
  if (r.train.micro_batch) return {.sequences = *r.train.micro_batch, .why = "given"};
  const int64_t tokens = ranks.on_gpu ? 2 * kMicroTokens : kMicroTokens;
  const std::vector<int64_t> fit = open_micro_batches(r, ranks.world, ranks.on_gpu);
  MicroBatchChoice out{.sequences = fit.front(),
                       .why = "chosen: at most " + std::to_string(tokens) + " tokens"};
  if (ranks.world > 1) out.why += ", each of " + std::to_string(ranks.world) + " ranks its part";
  if (ranks.memory <= 0) return out;
  const auto needs = [&](int64_t n) {
    Recipe with = r;
    with.train.micro_batch = n;
    return needed_memory(with, ranks.on_gpu, ranks.world);
  };
  const auto found = std::find_if(
      fit.begin(), fit.end(), [&](int64_t n) { return needs(n) <= kMostMemory * ranks.memory; });
  if (found == fit.begin()) return out;
  const double full = needs(out.sequences);
  out.sequences = found == fit.end() ? fit.back() : *found;
  out.why += "; " + std::to_string(fit.front()) + " would need " + of_gib(full, ranks.memory);
  return out;
}

}  // namespace troupe
