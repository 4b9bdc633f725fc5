#include "troupe/train/recipe/parallel.h"

#include <algorithm>
#include <numeric>
#include <sstream>

#include "troupe/core/check.h"
#include "troupe/core/config/config.h"
#include "troupe/distributed/mesh/process_mesh.h"
#include "troupe/nn/parts/tensor_parts.h"
#include "troupe/schedule/compute_order.h"

namespace troupe {

MeshShape shape_of(const ParallelConfig& c) {
  return {.tensor = c.tensor,
          .context = c.context,
          .pipeline = c.pipeline,
          .expert = c.expert,
          .expert_tensor = c.expert_tensor,
          .shard = c.shard == ShardKind::kNone ? 1 : c.shard_ranks};
}

ParallelConfig with_closed_axes(ParallelConfig config) {
  for (int64_t ParallelConfig::*axis :
       {&ParallelConfig::tensor, &ParallelConfig::context, &ParallelConfig::pipeline,
        &ParallelConfig::expert_tensor}) {
    if (config.*axis == 0) config.*axis = 1;
  }
  return config;
}

int64_t replicas_of(const ParallelConfig& config, int64_t world) {
  const ParallelConfig c = with_closed_axes(config);
  return world / std::max<int64_t>(1, c.tensor * c.context * c.pipeline);
}

int64_t least_ranks(const ParallelConfig& config) {
  const ParallelConfig c = with_closed_axes(config);
  const int64_t replica = c.pipeline * c.tensor * c.context;
  if (c.data > 0) return replica * c.data;
  const int64_t experts = c.pipeline * c.expert_tensor * std::max<int64_t>(1, c.expert);
  const int64_t block = c.shard == ShardKind::kNone ? 1 : std::max<int64_t>(1, c.shard_ranks);
  return std::lcm(std::lcm(replica, experts), c.pipeline * c.tensor * block);
}

void require_one_rank(const ParallelConfig& c) {
  for (const auto& [key, ranks] :
       {std::pair{"tensor", c.tensor}, std::pair{"context", c.context},
        std::pair{"expert_tensor", c.expert_tensor}, std::pair{"pipeline", c.pipeline}}) {
    if (ranks <= 1) continue;
    fail(Code::kBadValue, "parallel." + std::string(key), ranks,
         "ranks, and there is one; start as many (troupe launch -n", ranks,
         "-- train ...), or set it to 1");
  }
}

namespace {

// On the ranks that share them.
bool differ_by_one(const ParallelConfig& c, int64_t experts) {
  return c.placement == ExpertSplit::kUneven && experts > c.expert && experts % c.expert != 0;
}

// Ranks between which rows go to experts.
int64_t sharing_ranks(const ParallelConfig& c) {
  return c.expert * c.expert_tensor;
}

// f(key, facts...) for each field that has another value than the default.
void visit_given(const ParallelConfig& given, auto&& f) {
  const auto texts = [](const auto& member) {
    detail::Flat out;
    detail::flatten_into(member, "", out);
    return out;
  };
  const ParallelConfig none;
  std::vector<detail::Flat> defaults;
  ParallelConfig::visit(none, [&](std::string_view, const auto& member, auto&&...) {
    defaults.push_back(texts(member));
  });
  size_t i = 0;
  ParallelConfig::visit(given, [&](std::string_view key, const auto& member, const auto&... facts) {
    if (texts(member) != defaults[i++]) f(key, facts...);
  });
}

int64_t node_of(const ParallelConfig& c, const LayoutNeeds& needs) {
  if (c.node_ranks > 0) return c.node_ranks;
  return needs.per_host > 0 ? needs.per_host : needs.world;
}

// Stages of each rank where `stages` does not say.
int64_t virtual_stages(const ParallelConfig& c) {
  const int64_t chosen = is_in_a_vee(c.schedule) ? 2 : 1;
  return c.virtual_stages > 0 ? c.virtual_stages : chosen;
}

// How many graphs wait for their backward on each stage, at most, of as many microbatches as keep
// all stages busy.
std::vector<int> waiting_graphs(const ParallelConfig& c, const PipelineShape& shape) {
  const auto stages = static_cast<size_t>(c.pipeline * virtual_stages(c));
  StageMap any{std::vector<int>(stages, 0)};  // an order is of stages, whatever is in them
  any.sizes[0] = shape.parts();
  StepWork work = with_stages({.chunks = shape.parts()}, any, shape);
  work.microbatches = 2 * static_cast<int>(stages);
  work.order = c.schedule;
  return graphs_held(work);
}

// `config` has no faults.
void settle_pipeline(ParallelConfig& out, const LayoutNeeds& needs) {
  if (out.pipeline <= 1 || !pipeline_faults(out, needs.layers, needs.mtp).empty()) {
    out.virtual_stages = std::max<int64_t>(1, out.virtual_stages);
    if (out.pipeline <= 1) out.stages.clear();
    return;
  }
  const PipelineShape shape = pipeline_shape(out, needs.layers, needs.mtp);
  StageMap map;
  if (!out.stages.empty()) {
    map = read_stage_map(out.stages, shape).map;
    out.virtual_stages = std::ssize(map.sizes) / out.pipeline;
  } else {
    out.virtual_stages = virtual_stages(out);
    map = choose_stages(needs.loads, waiting_graphs(out, shape), shape);
  }
  out.stages = stage_text(map, shape);
  if (out.schedule != PipelineOrder::kAuto) return;
  out.schedule = out.virtual_stages > 1 ? PipelineOrder::kInterleaved : PipelineOrder::k1f1b;
}

}  // namespace

PipelineShape pipeline_shape(const ParallelConfig& c, int64_t layers, int64_t mtp) {
  return {.layers = static_cast<int>(layers),
          .mtp = static_cast<int>(mtp),
          .ranks = static_cast<int>(c.pipeline),
          .path = is_in_a_vee(c.schedule) ? StagePath::kVee : StagePath::kLoop};
}

std::vector<std::pair<std::string, std::string>> pipeline_faults(const ParallelConfig& c,
                                                                 int64_t layers, int64_t mtp) {
  std::vector<std::pair<std::string, std::string>> out;
  if (c.pipeline <= 1) return out;
  const auto add = [&](const std::string& key, const auto&... what) {
    std::ostringstream os;
    ((os << what), ...);
    out.emplace_back("parallel." + key, os.str());
  };
  const int64_t units = layers + mtp + 2, v = virtual_stages(c);
  if (c.stages.empty() && (c.pipeline > units || v > units / c.pipeline)) {
    const int64_t most = units / std::min(v, units);
    add(c.pipeline > units ? "pipeline" : "virtual", c.pipeline * v, " stages for ", layers,
        mtp > 0 ? " layers, embedding, MTP modules and head: at most "
                : " layers, embedding and head: at most ",
        units, "; use pipeline ", std::max<int64_t>(1, std::min(most, c.pipeline)),
        v > 1 ? " or a smaller virtual" : "");
    return out;
  }
  int64_t of_rank = v;
  if (!c.stages.empty()) {
    const StageMapText read = read_stage_map(c.stages, pipeline_shape(c, layers, mtp));
    for (const std::string& fault : read.faults) add("stages", fault);
    if (!read.faults.empty()) return out;
    of_rank = std::ssize(read.map.sizes) / c.pipeline;
    if (c.virtual_stages != 0 && c.virtual_stages != of_rank) {
      add("virtual", c.virtual_stages, ", and parallel.stages has ", of_rank,
          " a rank; leave it out, or write ", c.virtual_stages * c.pipeline, " stages");
      return out;
    }
  }
  const bool late = c.schedule == PipelineOrder::kZb1p;
  if ((c.schedule == PipelineOrder::k1f1b || late) && of_rank > 1) {
    add("schedule", to_text(c.schedule), " has one stage a rank; there are ", of_rank, ": use ",
        late && of_rank == 2 ? "zbv, dualpipev, " : "", "interleaved or gpipe");
  }
  if (is_in_a_vee(c.schedule) && of_rank != 2) {
    add("schedule", to_text(c.schedule), " has 2 stages a rank; parallel.virtual is ", of_rank);
  }
  if (c.schedule == PipelineOrder::kInterleaved && of_rank == 1) {
    add("schedule",
        "interleaved has several stages a rank; there is one: set parallel.virtual to "
        "2, or use 1f1b");
  }
  return out;
}

ParallelConfig resolved(const ParallelConfig& config, const LayoutNeeds& needs) {
  ParallelConfig out = with_closed_axes(config);
  if (out.shard == ShardKind::kAuto) {
    out.shard = needs.whole_state ? ShardKind::kNone : ShardKind::kZero1;
  }
  // Dropout of experts' adapters knows the rank's own tokens.
  if (out.expert == 0 && needs.experts_lora_dropout > 0) out.expert = 1;
  // As many ranks as share the experts evenly: the fewest bytes of weights, and of gradients sent.
  if (out.expert == 0) {
    const int64_t ranks =
        needs.world / std::max<int64_t>(1, out.pipeline) / std::max<int64_t>(1, out.expert_tensor);
    out.expert = needs.experts > 0 ? std::gcd(std::max<int64_t>(1, ranks), needs.experts) : 1;
  }
  settle_pipeline(out, needs);
  int64_t shared = 0;
  for (const LayerWidths& w : needs.widths) shared = std::max(shared, w.shared);
  const auto settle = [](CutKind& kind, bool cut) {
    if (kind == CutKind::kAuto) kind = cut ? CutKind::kOn : CutKind::kOff;
  };
  settle(out.split_vocab, out.tensor > 1 && needs.table_bytes > kWholeTables);
  settle(out.split_shared, out.tensor > 1 && shared >= kLeastShared * out.tensor);
  const int64_t node = node_of(out, needs);
  const int64_t sharing = sharing_ranks(out);
  out.dispatcher = chosen_for(out.dispatcher, {.ranks = sharing, .node = node});
  out.node_ranks = may_use_nodes(out.dispatcher) ? std::min(node, sharing) : 0;
  if (sharing <= 1) out.overlap = Overlap::kNone;  // no rows travel
  return out;
}

std::string why_dispatcher(const ParallelConfig& c, const LayoutNeeds& needs) {
  const int64_t sharing = sharing_ranks(c);
  if (sharing <= 1) return "";
  std::string out = "rows go " + std::string(c.dispatcher.kind());
  out += c.wire == WireType::kNative ? ": " : " in " + to_text(c.wire) + ": ";
  return out + why(c.dispatcher, {.ranks = sharing, .node = node_of(c, needs)});
}

bool sends_rows(const ParallelConfig& resolved) {
  return sharing_ranks(resolved) > 1;
}
bool counts_rows(const ParallelConfig& resolved) {
  return sends_rows(resolved) || resolved.rebalance.every == 0;  // `gain` alone asks for nothing
}
bool knows_nodes(const ParallelConfig& resolved) {
  return !sends_rows(resolved) || may_use_nodes(resolved.dispatcher);
}
bool cuts_sequences(const ParallelConfig& resolved) {
  return resolved.context > 1;
}
bool cuts_matrices(const ParallelConfig& resolved) {
  return resolved.tensor > 1;
}
bool cuts_layers(const ParallelConfig& resolved) {
  return resolved.pipeline > 1;
}
bool cuts_all_state(const ParallelConfig& resolved) {
  return resolved.shard == ShardKind::kFull;
}

std::vector<std::string> without_nccl(const ParallelConfig& given) {
  std::vector<std::string> out;
  visit_given(given, [&](std::string_view key, const auto&... facts) {
    if (fact_of<OfNccl>(facts...) == nullptr) return;
    out.push_back("parallel." + std::string(key) +
                  " does nothing: Gloo moves the data, and it is of NCCL");
  });
  return out;
}

std::vector<std::string> without_effect(const ParallelConfig& given, const ParallelConfig& resolved,
                                        int64_t experts) {
  std::vector<std::string> out;
  const auto tell = [&](std::string_view key, const char* why) {
    out.push_back("parallel." + std::string(key) + " does nothing in this layout: " + why);
  };
  // The two that depend on more than the layout.
  if (given.placement != ParallelConfig().placement && !differ_by_one(resolved, experts)) {
    tell("placement",
         sends_rows(resolved) ? "the ranks share the experts evenly" : kOfRows.otherwise);
  }
  if (given.virtual_stages > 1 && !cuts_layers(resolved)) tell("virtual", kOfPipeline.otherwise);
  visit_given(given, [&](std::string_view key, const auto&... facts) {
    const UsedIn* const used = fact_of<UsedIn>(facts...);
    if (used != nullptr && !used->here(resolved)) tell(key, used->otherwise);
  });
  return out;
}

double most_held(const ParallelConfig& c, int64_t experts) {
  if (!differ_by_one(c, experts)) return 1;
  const int64_t most = (experts + c.expert - 1) / c.expert;
  return static_cast<double>(most * c.expert) / static_cast<double>(experts);
}

namespace {

std::string key_fault(const std::string& key, const std::string& why) {
  return "parallel." + key + ": E2005 " + why;
}

// What runs beside each other is a backward and the forward that follows it: the order has such.
std::vector<std::string> overlap_faults(const ParallelConfig& c) {
  std::vector<std::string> out;
  if (c.overlap == Overlap::kExperts && c.pipeline > 1 && !runs_beside(c.schedule)) {
    out.push_back(key_fault("overlap",
                            "experts runs a backward beside the forward that follows it, "
                            "and the order " +
                                to_text(c.schedule) +
                                " is not run so; use schedule 1f1b or interleaved"));
  }
  return out;
}

// Each kind of layer once.
std::vector<std::string> tensor_faults(const ParallelConfig& c, const LayoutNeeds& needs) {
  std::vector<std::string> out;
  if (c.tensor <= 1) return out;
  const std::string ranks = std::to_string(c.tensor);
  if (needs.whole_state) {
    out.push_back("train.optimizer: E2005 " + needs.optimizer +
                  " works on whole matrices: tensor 1, muon or adamw");
  }
  const auto whole = [&](const std::vector<std::string>& targets, const std::string& what,
                         const std::string& why, const auto& other) {
    for (const std::string& target : targets) {
      if (target == "shared" && c.split_shared != CutKind::kOn) continue;
      out.push_back(key_fault("tensor", ranks + " ranks would cut the " + what + " of " + target +
                                            ", " + why +
                                            "; use 1, with parallel.expert or shard: full in its "
                                            "place, or " +
                                            other(target)));
    }
  };
  whole(needs.in_bits, "matrices", "which model.lora.frozen keeps in few bits, whole",
        [](const std::string& t) { return "leave " + t + " out of model.lora.frozen.targets"; });
  whole(needs.decomposed, "rows", "whose norms model.lora.dora trains",
        [](const std::string&) -> std::string { return "model.lora.dora false"; });
  // "48 query heads do not divide over 5 ranks; use 4 or 6"
  const auto divide = [&](const LayerWidths& w, int64_t all, const char* what) {
    if (all == 0 || all % c.tensor == 0) return;
    out.push_back(key_fault(
        "tensor", std::to_string(all) + ' ' + what + " of layer " + std::to_string(w.layer) +
                      " do not divide over " + ranks + " ranks; use " +
                      near_divisors(all, c.tensor, [](int64_t) { return true; })));
  };
  if (needs.delta) {
    out.push_back(key_fault("tensor",
                            "the heads of model.delta are not divided over ranks yet: use "
                            "1, with data, expert and pipeline ranks in its place"));
  }
  for (const LayerWidths& w : needs.widths) {
    divide(w, w.heads, "query heads");
    divide(w, w.ffn, "columns of the feed-forward");
    if (c.split_shared == CutKind::kOn) divide(w, w.shared, "columns of the shared expert");
    if (w.kv_heads == 0 || w.kv_heads % c.tensor == 0 || c.tensor % w.kv_heads == 0) continue;
    const auto fits = [&](int64_t n) { return w.kv_heads % n == 0 || n % w.kv_heads == 0; };
    out.push_back(key_fault("tensor", std::to_string(w.kv_heads) + " key heads of layer " +
                                          std::to_string(w.layer) + " on " + ranks +
                                          " ranks: neither divides the other; use " +
                                          near_divisors(w.heads, c.tensor, fits)));
  }
  if (c.split_vocab == CutKind::kOn && vocab_blocks(needs.table_rows) < c.tensor) {
    out.push_back(key_fault("split_vocab", std::to_string(needs.table_rows) +
                                               " rows, in blocks of " +
                                               std::to_string(kVocabBlock) + ", are not cut over " +
                                               ranks + " ranks; use off"));
  }
  return out;
}

std::vector<std::string> context_faults(const ParallelConfig& c, const LayoutNeeds& needs) {
  std::vector<std::string> out;
  if (c.context <= 1) return out;
  if (needs.delta) {
    out.push_back(key_fault(
        "context", "model.delta carries a state from token to token, and " +
                       std::to_string(c.context) +
                       " ranks would each have a part of a row: use 1, with data, expert and "
                       "pipeline ranks in its place"));
  }
  const int64_t chunks = 2 * c.context;
  if (needs.sequence % chunks != 0) {
    const bool even = needs.sequence % 2 == 0;
    out.push_back(key_fault(
        "context",
        "rows of " + std::to_string(needs.sequence) + " tokens cannot be cut into 2 x " +
            std::to_string(c.context) + " chunks; use context " +
            near_divisors(even ? needs.sequence / 2 : 1, c.context, [](int64_t) { return true; })));
  }
  if (c.context_method != ContextMethod::kKeys && needs.latent) {
    out.push_back(key_fault(
        "context_method",
        to_text(c.context_method) + ": latent attention has one key for all heads; use keys"));
  } else if (c.context_method == ContextMethod::kHeads) {
    for (const LayerWidths& w : needs.widths) {
      const int64_t own = w.kv_heads / std::max<int64_t>(1, c.tensor);
      if (w.kv_heads == 0 || (own > 0 && own % c.context == 0)) continue;
      out.push_back(key_fault("context_method",
                              "heads: " + std::to_string(w.kv_heads) + " key heads of layer " +
                                  std::to_string(w.layer) + " cannot be dealt to " +
                                  std::to_string(c.context * c.tensor) + " ranks; use keys"));
    }
  }
  if (needs.attention_dropout > 0) {
    out.push_back("model.attn_dropout: E2005 " + to_text(needs.attention_dropout) +
                  " with context " + std::to_string(c.context) +
                  ": attention dropout needs whole rows on a rank; use 0, or context 1");
  }
  return out;
}

// Dropout of adapters is drawn by the tokens of the rows that they see, which a rank must know.
std::vector<std::string> adapter_dropout_faults(const ParallelConfig& c, const LayoutNeeds& needs) {
  std::vector<std::string> out;
  if (needs.experts_lora_dropout > 0 && c.expert > 1) {
    out.push_back(
        key_fault("expert", std::to_string(c.expert) +
                                " ranks send rows to each other's experts, whose "
                                "adapters drop by the row's token (lora.dropout " +
                                to_text(needs.experts_lora_dropout) +
                                "): use 1, with shard: full in its place, or lora.dropout 0"));
  }
  if (needs.gathered_lora_dropout > 0 && c.tensor > 1 && c.context > 1) {
    out.push_back(key_fault(
        "context", std::to_string(c.context) + " ranks with tensor " + std::to_string(c.tensor) +
                       " gather tokens of places that dropout of adapters (model.lora.dropout " +
                       to_text(needs.gathered_lora_dropout) +
                       ") does not know: use one of the two, or model.lora.dropout 0"));
  } else if (needs.attention_lora_dropout > 0 && needs.latent && c.context > 1) {
    out.push_back(
        key_fault("context", std::to_string(c.context) +
                                 " ranks compute keys of each other's tokens from "
                                 "latents, whose adapters drop by the token (model.lora.dropout " +
                                 to_text(needs.attention_lora_dropout) +
                                 "): use 1, or model.lora.dropout 0"));
  }
  return out;
}

// A teacher computes whole rows with all their tokens on the rank that has the head.
std::vector<std::string> teacher_faults(const ParallelConfig& c, const LayoutNeeds& needs) {
  std::vector<std::string> out;
  for (const auto& [key, ranks] :
       {std::pair{"tensor", c.tensor}, std::pair{"context", c.context}}) {
    if (!needs.teacher || ranks <= 1) continue;
    out.push_back(key_fault(key, std::to_string(ranks) +
                                     " ranks would each have a part of a microbatch's tokens, and "
                                     "train.teacher computes a microbatch whole: use 1, with data, "
                                     "expert and pipeline ranks in its place, or leave "
                                     "train.teacher out"));
  }
  return out;
}

// The head sums the log-probabilities of whole rows, and the reference's come from a pass before.
std::vector<std::string> pair_faults(const ParallelConfig& c, const LayoutNeeds& needs) {
  std::vector<std::string> out;
  for (const auto& [key, ranks] : {std::pair{"tensor", c.tensor}, std::pair{"context", c.context},
                                   std::pair{"pipeline", c.pipeline}}) {
    if (!needs.pairs || ranks <= 1) continue;
    out.push_back(key_fault(key, std::to_string(ranks) +
                                     " ranks would share a microbatch of preference pairs, which "
                                     "train.loss dpo does not do yet: use 1, with data and expert "
                                     "ranks in its place"));
  }
  return out;
}

// Ranks of a pipeline have other units, and would not come to their updates together.
std::vector<std::string> in_backward_faults(const ParallelConfig& c, const LayoutNeeds& needs) {
  if (!needs.in_backward || c.pipeline <= 1) return {};
  return {
      key_fault("pipeline", std::to_string(c.pipeline) +
                                " stages judge different layers at a time, and train.update "
                                "in_backward judges each with all ranks: use 1, with "
                                "parallel.shard full or zero1, or train.update after_backward")};
}

// Faults of `config`, resolved as `c`: its stages, and how the axes divide the ranks.
std::vector<std::string> group_faults(const ParallelConfig& config, const ParallelConfig& c,
                                      const LayoutNeeds& needs) {
  std::vector<std::string> out;
  for (const auto& [field, why] : pipeline_faults(config, needs.layers, needs.mtp)) {
    out.push_back(field + ": E2005 " + why);
  }
  for (const std::string& fault : ProcessMesh::faults(needs.world, shape_of(c))) {
    // The mesh and the layers may both refuse `pipeline`: one fault of it is enough.
    const bool known = !out.empty() && fault.starts_with("parallel.pipeline");
    if (!known) out.push_back(fault);
  }
  const int64_t host = needs.per_host > 0 ? needs.per_host : needs.world;
  if (needs_one_host(c.dispatcher) && host % sharing_ranks(c) != 0) {
    out.push_back(key_fault(
        "dispatcher",
        std::string(c.dispatcher.kind()) + " reads the memory of other ranks, and the " +
            std::to_string(sharing_ranks(c)) + " that share experts are not on one host of " +
            std::to_string(host) + "; use auto, or parallel.expert: " +
            near_divisors(host, sharing_ranks(c), [](int64_t) { return true; })));
  }
  return out;
}

std::vector<std::string> slice_faults(const ParallelConfig& c, const LayoutNeeds& needs) {
  std::vector<std::string> out;
  if (c.expert_tensor <= 1) return out;
  const std::string slices = std::to_string(c.expert_tensor);
  if (needs.experts == 0) {
    out.push_back(key_fault("expert_tensor", slices +
                                                 " slices of each expert, of a model that has no "
                                                 "experts; leave it out"));
  } else if (c.expert > needs.experts) {
    out.push_back(key_fault(
        "expert_tensor", std::to_string(c.expert) + " ranks cut " + std::to_string(needs.experts) +
                             " experts already; use expert " + std::to_string(needs.experts) +
                             ", or expert_tensor 1"));
  } else if (needs.whole_experts) {
    out.push_back(key_fault("expert_tensor", slices + " slices, which experts with lora do "
                                                      "not take; use 1"));
  } else if (needs.whole_state) {
    out.push_back(key_fault("expert_tensor", slices +
                                                 " slices of matrices that the optimizer needs "
                                                 "whole; use 1"));
  } else if (needs.hidden % c.expert_tensor != 0) {
    out.push_back(
        key_fault("expert_tensor",
                  "an expert's width " + std::to_string(needs.hidden) + " does not divide into " +
                      slices + " slices; use " +
                      near_divisors(needs.hidden, c.expert_tensor, [](int64_t) { return true; })));
  }
  return out;
}

}  // namespace

std::vector<std::string> layout_faults(const ParallelConfig& config, const LayoutNeeds& needs) {
  const ParallelConfig c = resolved(config, needs);
  std::vector<std::string> out = group_faults(config, c, needs);
  for (const auto& faults :
       {tensor_faults(c, needs), context_faults(c, needs), slice_faults(c, needs),
        overlap_faults(c), adapter_dropout_faults(c, needs), teacher_faults(c, needs),
        pair_faults(c, needs), in_backward_faults(c, needs)}) {
    out.insert(out.end(), faults.begin(), faults.end());
  }
  const int64_t sharers = c.tensor * c.context * c.pipeline, wanted = c.data * sharers;
  if (config.data != 0 && wanted != needs.world) {
    const std::string ranks = std::to_string(needs.world), data = std::to_string(config.data);
    std::string axes = config.tensor > 1 ? "tensor " + std::to_string(config.tensor) + " x " : "";
    if (config.context > 1) axes += "context " + std::to_string(config.context) + " x ";
    if (config.pipeline > 1) axes += "pipeline " + std::to_string(config.pipeline) + " x ";
    out.push_back(key_fault(
        "data", sharers == 1
                    ? data + " replicas on " + ranks + " ranks; leave it out, or start that many"
                    : axes + "data " + data + " are " + std::to_string(wanted) +
                          " ranks; there are " + ranks + ": data " +
                          std::to_string(replicas_of(c, needs.world)) + ", or " +
                          std::to_string(wanted) + " ranks"));
  }
  const int64_t low = std::min(c.expert, needs.experts), high = std::max(c.expert, needs.experts);
  const int64_t slices = c.expert / std::max<int64_t>(1, needs.experts);
  const auto at_most_whole = [&](int64_t ranks) {
    return ranks <= needs.experts && needs.experts % ranks == 0;
  };
  if (c.expert > 1 && (low == 0 || high % low != 0) && !differ_by_one(c, needs.experts)) {
    const bool may_differ = needs.experts > c.expert && needs.world % c.expert == 0;
    const auto fits = [&](int64_t ranks) {
      return needs.experts > 0 && (needs.experts % ranks == 0 || ranks % needs.experts == 0);
    };
    out.push_back("parallel.expert: E2005 " + std::to_string(needs.experts) + " experts on " +
                  std::to_string(c.expert) + " ranks: neither divides the other; use " +
                  (needs.experts > 0 ? near_divisors(needs.world, c.expert, fits) : "1") +
                  (may_differ ? ", or parallel.placement: uneven" : ""));
  } else if (needs.whole_experts && slices > 1) {
    out.push_back("parallel.expert: E2005 " + std::to_string(c.expert) +
                  " ranks would cut the hidden width of " + std::to_string(needs.experts) +
                  " experts, which those with lora do not take; use " +
                  near_divisors(needs.world, c.expert, at_most_whole));
  } else if (slices > 1 && needs.hidden % slices != 0) {
    const auto cuts = [&](int64_t ranks) {
      return at_most_whole(ranks) ||
             (ranks % needs.experts == 0 && needs.hidden % (ranks / needs.experts) == 0);
    };
    out.push_back("parallel.expert: E2005 an expert's width " + std::to_string(needs.hidden) +
                  " does not divide into the " + std::to_string(slices) + " slices of " +
                  std::to_string(c.expert) + " ranks and " + std::to_string(needs.experts) +
                  " experts; use " + near_divisors(needs.world, c.expert, cuts));
  } else if (needs.whole_state && c.expert > needs.experts && c.expert > 1) {
    out.push_back("parallel.expert: E2005 " + std::to_string(c.expert) +
                  " ranks cut the matrices of " + std::to_string(needs.experts) +
                  " experts, which the optimizer needs whole: at most " +
                  std::to_string(needs.experts));
  }
  const bool nodes = may_use_nodes(c.dispatcher);
  const int64_t sharing = sharing_ranks(c), node = std::min(node_of(config, needs), sharing);
  if ((nodes || config.node_ranks > 0) && sharing % node != 0) {
    out.push_back("parallel.node_ranks: E2005 " + std::to_string(sharing) +
                  " ranks share experts: they cannot be cut into nodes of " + std::to_string(node) +
                  "; use " + near_divisors(sharing, node, [](int64_t) { return true; }));
  }
  if (config.node_ranks > 0 && !may_use_nodes(config.dispatcher)) {
    out.push_back("parallel.node_ranks: E2005 " + std::string(c.dispatcher.kind()) +
                  " has no nodes; used only by dispatcher: two_level");
  }
  if (c.rebalance.every > 0 && needs.experts > 0 &&
      (c.expert > needs.experts || c.expert_tensor > 1)) {
    out.push_back("parallel.rebalance: E2005 " + std::to_string(sharing) + " ranks cut " +
                  std::to_string(needs.experts) +
                  " experts by their width: each has a part of the same work");
  }
  return out;
}

}  // namespace troupe
