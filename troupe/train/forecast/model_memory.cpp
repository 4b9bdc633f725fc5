#include "troupe/train/forecast/model_memory.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <string>

#include "troupe/nn/attention/attention_module.h"
#include "troupe/nn/attention/mla.h"
#include "troupe/nn/ffn/dense_ffn.h"
#include "troupe/nn/model/head_rows.h"
#include "troupe/nn/model/model.h"
#include "troupe/nn/moe/moe_layer.h"
#include "troupe/ops/moe_ffn/fp8_emulated.h"
#include "troupe/train/forecast/key_traffic.h"
#include "troupe/train/optim/param_slice.h"
#include "troupe/train/optim/state_stream.h"

namespace troupe {
namespace {

constexpr double kHostRuntime =
    60.0 * (1 << 20);  // resident before the model is made, without pages of files
constexpr double kGpuRuntime = 0.8 * (1 << 30);  // context, cuBLAS's workspace

void add_matrices(const Param& p, bool in_halves, StateBytes& s) {
  const auto count = static_cast<double>(p.numel());
  const auto matrix = static_cast<double>(p.size[p.size.size() - 2] * p.size.back());
  s.matrices += count;
  s.matrix = std::max(s.matrix, matrix);
  s.largest = std::max(s.largest, count);
  s.cut = in_halves;
}

// Bytes of a weight in 8 bits beside the weight: the copy that all microbatches of a step
// read, and on a GPU the transposed one that backward reads.
double rounded_bytes(const Recipe& r, const RunPlan& plan, bool on_gpu) {
  const bool kept = r.train.fp8->weights == Fp8WeightCopies::kKept && plan.batch > plan.micro_batch;
  return (kept ? 1 : 0) + (on_gpu ? 1 : 0);
}

// The weights of dense products that have a copy in 8 bits: of attention's projections, of dense
// feed-forwards and shared experts.
std::set<const Param*> dense_in_fp8(const Recipe& r, Model& model) {
  std::set<const Param*> out;
  if (!r.train.fp8) return out;
  const std::vector<bool> layers = fp8_attention_layers(*r.train.fp8, r.model);
  model.for_each_attention([&](int64_t layer, AttentionModule& attention) {
    if (!layers[static_cast<size_t>(layer)]) return;
    attention.for_each("", [&](const std::string&, const Param& p) {
      const bool whole =
          p.global.size() == 2 && p.global[0] % kFp8Tile == 0 && p.global[1] % kFp8Tile == 0;
      if (whole) out.insert(&p);
    });
  });
  const std::vector<bool> ffns = fp8_ffn_layers(*r.train.fp8, r.model);
  model.for_each_dense_ffn([&](int64_t layer, DenseFfn& ffn) {
    if (ffns[static_cast<size_t>(layer)]) out.insert({&ffn.w1, &ffn.w2});
  });
  model.for_each_moe([&](int64_t unit, MoeLayer& moe) {
    const auto layer = static_cast<size_t>(unit - 1);
    if (layer < ffns.size() && ffns[layer]) out.insert({&moe.shared()->w1, &moe.shared()->w2});
  });
  return out;
}

// Of the two operands of a weight under recipe delayed; q, k and v share theirs, which is left out.
double history_bytes(const Recipe& r) {
  const bool delayed = r.train.fp8 && r.train.fp8->recipe == Fp8Recipe::kDelayed;
  return delayed ? 2 * 4 * static_cast<double>(r.train.fp8->history) : 0;
}

void add_low_bit(const Param& p, double width, StateBytes& s, UnitMemory& u) {
  const auto bytes = static_cast<double>(low_bit_bytes(p.low_bit->format, p.numel()));
  s.frozen += bytes;
  s.low_bit += bytes;
  u.unpacked = std::max(u.unpacked, width * static_cast<double>(p.numel()));
}

void add_states(const Recipe& r, const RunPlan& plan, bool on_gpu, Model& model,
                std::vector<UnitMemory>& units) {
  const double width = value_width(r, on_gpu);
  const std::vector<bool> fp8 =
      r.train.fp8 ? fp8_layers(*r.train.fp8, r.model) : std::vector<bool>();
  const std::set<const Param*> dense = dense_in_fp8(r, model);
  const OptimizerBase& base = base_of(r.train.optimizer);
  const auto optimizer = std::visit([](const auto& c) { return c.build(); }, r.train.optimizer);
  const double master = r.train.precision == Precision::kFp16 ? 4 : 2;  // of 2-byte values
  const double moment = width == 8 ? 8 : bytes_of(base.moments);
  std::set<const Param*> seen;
  for (int64_t unit = 0; unit < model.num_units(); ++unit) {
    model.for_each_param(unit, [&](const std::string& name, Param& p) {
      UnitMemory& u = units[static_cast<size_t>(unit)];
      const bool learns = p.trainable() && !is_frozen(base, name);
      u.trained_table |= learns && p.group == Group::kEmbedding;
      if (!seen.insert(&p).second) return;
      const bool is_cut = p.tensor_repeat(0) != 0;
      StateBytes& s = p.per_expert ? u.experts : is_cut ? u.cut : u.dense;
      const auto count = static_cast<double>(p.numel());
      const size_t layer = static_cast<size_t>(unit) - 1;
      const bool of_experts = p.per_expert && layer < fp8.size() && fp8[layer];
      if (of_experts || dense.contains(&p)) {
        s.frozen += count * rounded_bytes(r, plan, on_gpu);
        u.dense.moments += history_bytes(r);
      }
      if (p.low_bit) return add_low_bit(p, width, s, u);
      const double bytes = p.fp32 ? 4 : width;
      if (!learns) {
        (p.group == Group::kState ? s.moments : s.frozen) += count * bytes;
        return;
      }
      s.elements += count;
      s.values += count * bytes;
      s.gradients += count * bytes;
      const Bucket bucket{.key = bucket_key(base, {name, &p}), .dtype = at::kFloat};
      const double masters = bytes < 4 ? master : 0;
      const double moments = moment * static_cast<double>(optimizer->state_names(bucket).size());
      if (on_gpu && r.train.offload_state) {
        const auto piece = static_cast<double>(StateStream::kPiece);
        const double most = optimizer->by_element(bucket) ? piece : std::max(piece, count);
        s.host += count * (masters + moments);
        s.host_moments += count * moments;
        s.window = std::max(s.window, most * (masters + moments));
      } else {
        s.masters += count * masters;
        s.moments += count * moments;
      }
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

// Bytes per token, in a 2-byte type, that the CPU recomputes in backward instead of keeping: the
// results of norms (ops/norm.h), and one of the two forms of queries and keys
// (ops/attention/attention.h).
double made_again_bytes(const LayerConfig& l, const ModelConfig& m) {
  const bool attends = l.attention && !l.delta && !m.mla,
             feeds = !l.moe || l.moe->shared.experts == 0;
  int64_t norms = int64_t{attends} + int64_t{feeds};
  // A norm that two products read is recomputed if neither keeps its result.
  if (l.attention && norms_of(m.block, true) == 1) norms /= 2;
  int64_t elements = norms * m.width;
  if (attends && m.qk_norm != QkNorm::kNone && !m.clip_qkv) {
    elements += (l.heads + l.kv_heads) * l.head_dim;
  }
  return 2.0 * static_cast<double>(elements);
}

// Elements per token of the tensors that backward of a block allocates: gradients of the experts'
// hidden rows (the CPU overwrites the rows) and of their input, or of a dense feed-forward's.
// Tokens gathered from all tensor ranks, and their gradient, are whole on each of them.
double working_elements(const LayerConfig& l, const ModelConfig& m, bool on_gpu, int64_t tensor) {
  const auto width = static_cast<double>(m.width);
  const double gathered = tensor > 1 ? 2 * static_cast<double>(tensor) * width : 0;
  if (!l.moe) return 3.0 * static_cast<double>(l.ffn) + 4 * width + gathered;
  const MoeSizes s = sizes_of(*l.moe, moe_shape(m, l));
  const auto k = static_cast<double>(s.top_k);
  const double own = on_gpu ? (s.gated ? 3 : 2) : 1;
  return k * (own * static_cast<double>(s.hidden) + width) + 4 * width + gathered;
}

// Elements that context parallelism adds to a block. Kept until backward: this rank's keys and
// values side by side and, with latent attention, those made of other ranks' latents. While
// attention runs: the keys that are seen, in two copies, with their gradient.
struct KeyElements {
  double kept = 0, working = 0;
};
KeyElements key_elements(const Recipe& r, int64_t micro_batch, const LayerConfig& l, int64_t tensor,
                         double width_bytes) {
  if (r.parallel.context <= 1 || !l.attention) return {};
  const auto width = static_cast<double>(exchanged_width(r.model, l, tensor));
  const auto made = static_cast<double>(made_of_latents(r.model, l, tensor));
  const double own =
      static_cast<double>(micro_batch * r.data.sequence) / static_cast<double>(r.parallel.context);
  const double others = keys_from_others(r, micro_batch, l);
  if (r.parallel.context_method == ContextMethod::kHeads) {
    const int64_t columns = (l.heads + 2 * l.kv_heads) / tensor * l.head_dim;
    return {0, 3 * own * static_cast<double>(columns)};  // on their way, in three copies
  }
  if (r.parallel.context_method == ContextMethod::kRing) {
    // In backward: keys of three ranks and their gradients in flight; in f32 or wider the gradients
    // of own keys and of one round's, the output, its gradient and two tensors like the queries.
    const double wide = std::max(1.0, 4 / width_bytes);
    const int64_t own_heads = l.heads / tensor;
    const auto columns = static_cast<double>(own_heads * l.head_dim);
    return {own * width, own * ((5 + 2 * wide) * width + 4 * wide * columns)};
  }
  return {own * width + others * made, 3 * (own + others) * width};
}

// Bytes at work in the head for a chunk of `rows` own tokens: their logits, the gradient of these,
// and that of a table that is trained, in f32. Where ranks cut the table (nn/model/split_cross_entropy.h), of the tokens of all:
// both in f32, states that are gathered, multiplied back and on their way, and the table's gradient
// of the chunk beside the sum.
double head_working(const Recipe& r, double rows, double width, int64_t tensor, bool trained) {
  const auto vocab = static_cast<double>(r.model.vocab), D = static_cast<double>(r.model.width);
  if (tensor == 1 || r.parallel.split_vocab != CutKind::kOn) {
    return rows * vocab * (width + 4) + (trained ? 4 * vocab * D : 0);
  }
  const auto ranks = static_cast<double>(tensor);
  const double wide = std::max(4.0, width), rounded = width < 4 ? width : 0;
  return rows * vocab * (2 * wide + rounded) + 3 * ranks * rows * D * width +
         (trained ? 2 * wide * vocab / ranks * D : 0);
}

// The same of latent attention, beside what it keeps in any case: each product's own rows in 8
// bits, of own heads where it reads these.
double latent_projection_rows(const ModelConfig& m, const LayerConfig& l, double rows,
                              int64_t tensor) {
  double out = 0;
  for (const MlaProduct& p : mla_products(m, l)) {
    if (p.fits_fp8()) out += static_cast<double>(p.of_rank(tensor).in);
  }
  return rows * out;
}

// Bytes of a block's projections that have 8-bit operands beside those without: the rows that both
// read are kept in 8 bits, but where weight gradients are of unrounded ones. Attention keeps its
// output in any case, but no one the normed input.
double projection_rows(const Recipe& r, const LayerConfig& l, double rows, double width,
                       int64_t tensor) {
  if (r.train.fp8->weight_grad != Fp8WeightGrad::kFp8) return 0;
  if (r.model.mla) return latent_projection_rows(r.model, l, rows, tensor);
  const auto in = static_cast<double>(r.model.width);
  const int64_t own_heads = l.heads / tensor;
  const auto out = static_cast<double>(own_heads * l.head_dim);
  return rows * (in * (1 - width) + out);
}

// The same of a dense feed-forward or a shared expert on tensor cores: the 8-bit rows replace those
// of the run's type where no router and no routed expert read these as well.
double ffn_rows(const Recipe& r, const LayerConfig& l, double rows, double width) {
  if (r.train.fp8->weight_grad != Fp8WeightGrad::kFp8) return 0;
  return rows * static_cast<double>(r.model.width) * (1 - (l.moe ? 0 : width));
}

void add_activations(const Recipe& r, int64_t micro_batch, double width, int64_t tensor,
                     ModelMemory& out) {
  const bool on_gpu = out.on_gpu;
  const ModelConfig& m = r.model;
  const ModelCosts costs = costs_of(m);
  const auto all = static_cast<double>(micro_batch * r.data.sequence);
  // Own ones; heads and columns likewise.
  const double tokens = all / static_cast<double>(tensor * r.parallel.context);
  const double scale = width / 2;  // costs are of 2-byte types
  const std::vector<bool> again = recomputed_blocks(r);
  const std::vector<bool> projections =
      r.train.fp8 ? fp8_attention_layers(*r.train.fp8, m) : std::vector<bool>();
  const std::vector<bool> ffns =
      on_gpu && r.train.fp8 ? fp8_ffn_layers(*r.train.fp8, m) : std::vector<bool>();
  for (int64_t i = 0; i < m.layers + m.mtp.depth; ++i) {
    const LayerConfig l = layer_config(m, i);
    const size_t unit = static_cast<size_t>(i) + 1;
    UnitMemory& u = out.units[unit];
    const double saved = static_cast<double>(costs.units[unit].saved_bytes) - rebuilt_bytes(l, m) -
                         (on_gpu ? 0 : made_again_bytes(l, m));
    const KeyElements keys = key_elements(r, micro_batch, l, tensor, width);
    u.saved = tokens * scale * saved + width * keys.kept;
    const double rows_seen = all / static_cast<double>(r.parallel.context);
    if (static_cast<size_t>(i) < projections.size() && projections[static_cast<size_t>(i)]) {
      u.saved += projection_rows(r, l, rows_seen, width, tensor);
    }
    if (static_cast<size_t>(i) < ffns.size() && ffns[static_cast<size_t>(i)]) {
      u.saved += ffn_rows(r, l, rows_seen, width);
    }
    u.input = tokens * width * static_cast<double>(m.width);
    u.again = i < m.layers && again[static_cast<size_t>(i)];
    // The host's memory is a CPU's own: there it is copied and no less is kept.
    if (on_gpu && i < r.train.offload_layers) u.offloaded = std::max(u.saved - u.input, 0.0);
    u.working =
        width * (tokens * working_elements(l, m, on_gpu, tensor) + keys.working) + u.unpacked;
  }
  out.units.back().saved = tokens * scale * static_cast<double>(costs.units.back().saved_bytes);
  const double rows = std::min(tokens, static_cast<double>(head_rows(m.vocab, on_gpu)));
  // A teacher computes before the head does.
  UnitMemory& head = out.units.back();
  const double working = head_working(r, rows, width, tensor, head.trained_table);
  head.working = std::max(working + out.teacher.kept, out.teacher.working);
  std::vector<size_t> all_units(out.units.size());
  std::iota(all_units.begin(), all_units.end(), size_t{0});
  out.workspace = out.workspace_of(all_units);
}

}  // namespace

// Workspace: the larger of the head's and the largest block's. Of offloaded blocks one is at work
// while the next one comes, and the first to come does so beside the head.
double ModelMemory::workspace_of(const std::vector<size_t>& own) const {
  double head = 0, rebuilt = 0, working = 0, offloaded = 0;
  for (const size_t unit : own) {
    const UnitMemory& u = units[unit];
    if (unit + 1 == units.size()) {
      head = u.working;
    } else {
      working = std::max(working, u.working);
      offloaded = std::max(offloaded, u.offloaded);
      if (u.again) rebuilt = std::max(rebuilt, u.saved);
    }
  }
  return std::max(head + offloaded, working + rebuilt + 2 * offloaded);
}

// A block at work has about what it would keep for a backward, and its own input and output. Beside
// a chunk's logits are its hidden states, and of a sixteenth of the chunk the logits and six tensors
// of wide numbers (ops/cross_entropy.cpp).
TeacherCosts teacher_costs(const Recipe& r, int64_t micro_batch, bool on_gpu) {
  if (!r.train.teacher) return {};
  const ModelConfig teacher = teacher_model(r);
  const ModelCosts costs = costs_of(teacher);
  const double width = value_width(r, on_gpu);
  const auto tokens = static_cast<double>(micro_batch * r.data.sequence);
  TeacherCosts out{.flops = costs.flops_per_token(r.data.sequence) / 3};  // of forward alone
  build_model(teacher)->for_each_param(-1, [&](const std::string&, const Param& p) {
    out.weights += static_cast<double>(p.numel()) * (p.fp32 ? 4 : width);
  });
  double saved = 0;
  for (size_t unit = 0; unit + 1 < costs.units.size(); ++unit) {
    saved = std::max(saved, static_cast<double>(costs.units[unit].saved_bytes));
  }
  const double hidden = tokens * width * static_cast<double>(teacher.width);
  out.working = 2 * hidden + tokens * saved * width / 2;  // costs are of 2-byte types
  const double rows = std::min(tokens, static_cast<double>(head_rows(r.model.vocab, on_gpu))) / 16;
  out.kept = hidden + rows * static_cast<double>(r.model.vocab) * (width + 6 * std::max(4., width));
  return out;
}

double direction_width(const Recipe& r) {
  return needs_whole_matrices(r.train.optimizer) && !needs_whole_state(r.train.optimizer) ? 4 : 0;
}

double update_memory(const StateBytes& s, double share, int64_t owners, int64_t parts) {
  if (s.matrices == 0) return 0;
  constexpr double kNewtonSchulz = 6;  // of square matrices at work, their products among them
  const double largest = share * s.largest;
  const auto at_once = static_cast<double>(at_a_time(static_cast<int64_t>(s.matrix)));
  const double some = std::min(largest, at_once * s.matrix);
  // The update direction, and the f32 master that is put together from halves.
  const auto ranks = static_cast<double>(owners), cut = static_cast<double>(parts);
  if (parts > 1) {  // all directions, and those of own elements on their way, in two copies
    const double all = share * s.matrices, own = std::min(all, all / ranks + 2 * s.matrix);
    return 4 * (all * (1 + 1 / ranks) + 2 * own + kNewtonSchulz * std::max(some, cut * s.matrix));
  }
  if (owners == 1) return 4 * (s.cut ? (kNewtonSchulz + 2) * some : (kNewtonSchulz + 1) * largest);
  const double own = std::min(some, largest / ranks + 2 * s.matrix);  // it may begin within one
  return 4 * (share * s.matrices * (1 + 1 / ranks) + kNewtonSchulz * own);
}

double staging_memory(double host, double window) {
  return static_cast<double>(StateStream::kBuffers) * std::min(host, window);
}

double value_width(const Recipe& r, bool on_gpu) {
  const Precision precision = r.train.precision;
  if (precision == Precision::kFp64) return 8;
  const bool wide = precision == Precision::kAuto ? !on_gpu : precision == Precision::kFp32;
  return wide ? 4 : 2;
}

ModelMemory model_memory(const Recipe& r, const RunPlan& plan, bool on_gpu, Model& model) {
  ModelMemory out{.on_gpu = on_gpu, .teacher = {}, .units = {}};
  out.units.resize(static_cast<size_t>(model.num_units()));
  out.teacher = teacher_costs(r, plan.micro_batch, on_gpu);
  add_states(r, plan, on_gpu, model, out.units);
  add_activations(r, plan.micro_batch, value_width(r, on_gpu), model.tokens().ranks(), out);
  return out;
}

// Measured with `troupe bench` on the host: -3 to +5 % of the peak of seven models of 1 to 28 M
// parameters, alone and as a rank of four.
double runtime_memory(bool on_gpu, double passing) {
  return on_gpu ? kGpuRuntime + 0.05 * passing : kHostRuntime + 0.03 * passing;
}

}  // namespace troupe
