#include "troupe/train/loop/routing_log.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <optional>
#include <variant>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/core/file/file.h"
#include "troupe/nn/attention/context_slice.h"
#include "troupe/nn/moe/routing_trace.h"

namespace troupe {
namespace {

std::string prefix_of(int64_t step) {
  char text[32];
  std::snprintf(text, sizeof(text), "step-%06lld-", static_cast<long long>(step));
  return text;
}

std::string suffix_of(int64_t ranks) {
  char text[32];
  std::snprintf(text, sizeof(text), "-of-%05lld.trace", static_cast<long long>(ranks));
  return text;
}

std::string file_of(const RoutingPlace& place) {
  char rank[16];
  std::snprintf(rank, sizeof(rank), "%05lld", static_cast<long long>(place.rank));
  return prefix_of(place.step) + rank + suffix_of(place.ranks);
}

std::vector<std::string> files_of(const std::string& folder, int64_t step) {
  std::vector<std::string> out;
  if (file_kind(folder) != FileKind::kFolder) return out;
  for (const std::string& name : names_in(folder)) {
    if (name.starts_with(prefix_of(step)) && name.ends_with(".trace")) out.push_back(name);
  }
  return out;
}

// ", expert 7 of token 12 among them", where one that the model lacks is chosen.
std::string first_missing(const at::Tensor& ids_TK, int64_t experts) {
  const auto* const ids = ids_TK.const_data_ptr<int32_t>();
  const auto* const end = ids + ids_TK.numel();
  const auto* const at = std::find_if(ids, end, [&](int32_t id) { return id >= experts; });
  if (at == end) return "";
  return ", expert " + std::to_string(*at) + " of token " +
         std::to_string((at - ids) / ids_TK.size(1)) + " among them";
}

// All records, whichever rank's they are: every rank refuses the same file.
void require_fit(const RoutingTrace& trace, const std::string& file, const ModelConfig& model) {
  const int64_t layers = model.layers + model.mtp.depth;
  for (const auto& [layer, microbatch] : trace.records()) {
    const auto refuse = [&, layer = layer, microbatch = microbatch](const std::string& what) {
      fail(Code::kBadValue, file, "run.replay: layer", layer, "of microbatch", microbatch,
           what + " must be that of the run that wrote it");
    };
    const std::optional<MoeConfig> moe =
        layer < layers ? layer_config(model, layer).moe : std::nullopt;
    if (!moe) refuse("is here, and the model has no such layer with experts: model.layers");
    const RoutingTrace::Sizes sizes = trace.sizes(layer, microbatch);
    if (sizes.experts != moe->experts) {
      refuse("chooses among " + std::to_string(sizes.experts) + " experts" +
             first_missing(trace.replay(layer, microbatch, at::kCPU), moe->experts) +
             "; the model has " + std::to_string(moe->experts) + ": model.moe.experts");
    }
    const bool by_experts = std::holds_alternative<ExpertChoiceRouting>(moe->router);
    const int64_t slots = by_experts ? moe->experts : moe->top_k;
    if (sizes.choices != slots) {
      refuse("has K = " + std::to_string(sizes.choices) + "; the model's K is " +
             std::to_string(slots) + ": model.moe." + (by_experts ? "router" : "top_k"));
    }
  }
}

}  // namespace

int64_t first_microbatch(const Feed& feed) {
  const int64_t tokens = feed.microbatches.empty() ? 0 : whole_tokens(feed.microbatches[0]);
  return tokens > 0 ? feed.first_token / tokens : 0;
}

void write_routing(Fs& fs, const RoutingPlace& place, const Feed& feed, const StepOutput& output,
                   int64_t experts) {
  RoutingTrace trace;
  const int64_t first = first_microbatch(feed);
  for (const LayerChoices& c : output.choices) {
    if (feed.microbatches[static_cast<size_t>(c.microbatch)].ids_BS.numel() == 0) continue;
    trace.record(c.layer, first + c.microbatch, c.ids_TK, experts, c.logits_TE);
  }
  if (fs.mkdir(place.folder) != 0 && errno != EEXIST) {
    fail_file(Code::kFileFailed, place.folder, "make the folder", errno);
  }
  if (place.rank == 0) {
    for (const std::string& name : files_of(place.folder, place.step)) {
      if (!name.ends_with(suffix_of(place.ranks))) fs.unlink(place.folder + '/' + name);
    }
  }
  trace.save(fs, place.folder + '/' + file_of(place));
}

void replay_routing(const std::string& folder, int64_t step, const ModelConfig& model, Feed& feed) {
  std::vector<RoutingTrace> traces;
  for (const std::string& name : files_of(folder, step)) {
    traces.push_back(RoutingTrace::load(folder + '/' + name));
    require_fit(traces.back(), folder + '/' + name, model);
  }
  if (traces.empty()) {
    fail(Code::kUnreadableData, folder, "run.replay: has no choices of step",
         std::to_string(step) + "; a run keeps those of every step with log.routing=1");
  }
  const int64_t layers = model.layers + model.mtp.depth, first = first_microbatch(feed);
  for (size_t m = 0; m < feed.microbatches.size(); ++m) {
    Batch& batch = feed.microbatches[m];
    const int64_t number = first + static_cast<int64_t>(m), tokens = whole_tokens(batch);
    if (tokens == 0) continue;
    batch.replay_TK.assign(static_cast<size_t>(layers), {});
    for (int64_t layer = 0; layer < layers; ++layer) {
      if (!layer_config(model, layer).moe) continue;
      const auto trace =
          std::ranges::find_if(traces, [&](const RoutingTrace& t) { return t.has(layer, number); });
      if (trace == traces.end()) {
        fail(Code::kUnreadableData, folder, "run.replay: step", step, "has no layer", layer,
             "of microbatch",
             std::to_string(number) +
                 "; the model, train.global_batch and train.micro_batch must be those of the run "
                 "that wrote it");
      }
      const at::Tensor ids = trace->replay(layer, number, batch.ids_BS.device());
      if (ids.size(0) != tokens) {
        fail(Code::kUnreadableData, folder, "run.replay: step", step, "has choices for",
             ids.size(0), "tokens of microbatch",
             std::to_string(number) + "; this run's has " + std::to_string(tokens) +
                 ": train.micro_batch and data.sequence must be those of the run that wrote it");
      }
      batch.replay_TK[static_cast<size_t>(layer)] =
          batch.slice ? ids.index_select(0, batch.slice->places()) : ids;
    }
  }
}

}  // namespace troupe
