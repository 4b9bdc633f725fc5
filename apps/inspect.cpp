// troupe inspect: what a file or folder is, what it holds, and whether it is sound.
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <numeric>

#include "apps/inspect_experts.h"
#include "apps/print.h"
#include "apps/verbs.h"
#include "troupe/checkpoint/hf/hf_weights.h"
#include "troupe/checkpoint/tensors/describe_tensors.h"
#include "troupe/core/config/config.h"
#include "troupe/core/file/file.h"
#include "troupe/core/text/suggest.h"
#include "troupe/core/unix_seconds.h"
#include "troupe/data/tokenizer/tokenizers.h"
#include "troupe/data/tokens/token_file.h"
#include "troupe/distributed/status/flight_table.h"
#include "troupe/nn/config/costs.h"
#include "troupe/nn/config/presets.h"
#include "troupe/nn/moe/routing_trace.h"
#include "troupe/train/observe/run_status.h"
#include "troupe/train/report/read_events.h"

namespace troupe {
namespace {

namespace stdfs = std::filesystem;

struct InspectVerb {
  std::vector<std::string> what;
  std::vector<std::string> sets;
  int64_t sequence = 0, samples = 64;
  bool fast = false, all = false, json = false;
};

// --- a model, by name or by a folder's config.json ---

struct ModelSummary {
  std::string name;
  int64_t parameters = 0, active = 0, mtp = 0;
  int64_t embedding = 0, dense = 0, replicated = 0, experts = 0;
  int64_t layers = 0, moe_layers = 0, sequence = 0;
  double flops_per_token = 0, flops_per_token_full = 0;
  int64_t weight_bytes = 0;  // bf16
  int64_t train_bytes = 0;   // weights, the rest of f32 masters, f32 gradients, two moments
  int64_t saved_bytes = 0;   // that a token keeps for backward
  int64_t cache_bytes = 0;   // of keys and values, a token
  static void visit(auto& m, auto&& f) {
    f("name", m.name);
    f("parameters", m.parameters);
    f("active", m.active);
    f("mtp", m.mtp);
    f("embedding", m.embedding);
    f("dense", m.dense);
    f("replicated", m.replicated);
    f("experts", m.experts);
    f("layers", m.layers);
    f("moe_layers", m.moe_layers);
    f("sequence", m.sequence);
    f("flops_per_token", m.flops_per_token);
    f("flops_per_token_full", m.flops_per_token_full);
    f("weight_bytes", m.weight_bytes);
    f("train_bytes", m.train_bytes);
    f("saved_bytes", m.saved_bytes);
    f("cache_bytes", m.cache_bytes);
  }
};

int64_t cache_bytes(const ModelConfig& model) {
  int64_t elements = 0;
  for (int64_t i = 0; i < model.layers; ++i) {
    const LayerConfig layer = layer_config(model, i);
    if (!layer.attention || layer.delta) continue;  // a state, whatever the length
    elements +=
        model.mla ? model.mla->kv_rank + model.mla->rope_dim : 2 * layer.kv_heads * layer.head_dim;
  }
  return 2 * elements;  // bf16
}

ModelSummary summary_of(const std::string& name, const ModelConfig& model, int64_t sequence) {
  constexpr int64_t kWeight = 2, kTrained = 16;  // bytes a parameter: 2 + 2 + 4 + 8
  const ModelCosts costs = costs_of(model);
  ParamCount count;
  ModelSummary out{
      .name = name,
      .parameters = costs.params(),
      .active = costs.active_params(),
      .mtp = costs.mtp_params,
      .layers = model.layers,
      .moe_layers = num_moe_layers(model),
      .sequence = sequence > 0 ? sequence : std::min<int64_t>(4096, model.max_positions)};
  for (const UnitCosts& unit : costs.units) {
    count += unit.params;
    out.saved_bytes += unit.saved_bytes;
  }
  out.embedding = count.embedding;
  out.dense = count.dense;
  out.replicated = count.replicated;
  out.experts = count.experts;
  out.flops_per_token = costs.flops_per_token(out.sequence);
  out.flops_per_token_full = costs.flops_per_token(out.sequence, true);
  out.weight_bytes = kWeight * out.parameters;
  out.train_bytes = kTrained * out.parameters;
  out.cache_bytes = cache_bytes(model);
  return out;
}

void print_model(const ModelSummary& m) {
  std::cout << m.name << "  " << m.layers << " layers, " << m.moe_layers << " of them MoE\n"
            << "parameters  " << with_commas(m.parameters) << ", active for a token "
            << with_commas(m.active) << '\n'
            << "            experts " << with_commas(m.experts) << ", embedding and head "
            << with_commas(m.embedding) << ", other matrices " << with_commas(m.dense)
            << ", norms, biases, routers " << with_commas(m.replicated) << '\n';
  if (m.mtp > 0) std::cout << "            MTP modules besides, " << with_commas(m.mtp) << '\n';
  std::cout << "FLOPs       " << m.flops_per_token << " a token of " << with_commas(m.sequence)
            << ", forward and backward (" << m.flops_per_token_full
            << " with the full attention square)\n"
            << "weights     " << readable_bytes(m.weight_bytes) << " in bf16\n"
            << "training    " << readable_bytes(m.train_bytes)
            << " with f32 gradients, masters and AdamW's moments; a token keeps "
            << readable_bytes(m.saved_bytes) << " for backward\n"
            << "generation  " << readable_bytes(m.cache_bytes)
            << " of keys and values a token, in bf16\n";
}

// The config of a folder, or of a preset; where the name is neither, all presets are listed.
ModelConfig model_called(const std::string& name) {
  if (is_there(name + "/config.json")) return read_hf_config(name).model;
  const std::vector<std::string_view> presets = ModelConfig::presets();
  if (std::ranges::find(presets, name) != presets.end()) return preset(name);
  const std::string_view guess = nearest(name, presets);
  fail(Code::kNoSuchKind, name, "is neither a preset nor a folder with config.json.",
       (guess.empty() ? "" : "Did you mean " + std::string(guess) + "? ") + "The presets are " +
           joined(presets));
}

void inspect_model(const InspectVerb& verb) {
  const std::string& name = verb.what[1];
  const ModelConfig model = model_called(name);
  const ModelSummary out = summary_of(name, model, verb.sequence);
  verb.json ? print_json(out) : print_model(out);
}

// --- tensors ---

void print_tensors(const TensorsSummary& s, bool all) {
  std::cout << s.path << "  " << s.kind << ": " << with_commas(std::ssize(s.tensors))
            << " tensors, " << with_commas(s.elements) << " elements, " << readable_bytes(s.bytes)
            << '\n';
  for (const TypeTotal& type : s.types) {
    std::cout << "  " << type.dtype << "  " << with_commas(type.tensors) << " tensors, "
              << with_commas(type.elements) << " elements, " << readable_bytes(type.bytes) << '\n';
  }
  for (const std::string& warning : s.warnings) std::cout << "  warning: " << warning << '\n';
  constexpr int64_t kFew = 12;
  const int64_t shown = all ? std::ssize(s.tensors) : std::min(kFew, std::ssize(s.tensors));
  for (int64_t i = 0; i < shown; ++i) {
    const TensorRow& row = s.tensors[static_cast<size_t>(i)];
    std::cout << "  " << row.name << "  " << row.dtype << ' ' << to_text(row.shape) << '\n';
  }
  if (shown < std::ssize(s.tensors)) {
    std::cout << "  and " << with_commas(std::ssize(s.tensors) - shown) << " more (--all)\n";
  }
}

void print_manifest(const Manifest& m) {
  std::cout << "  step " << m.step << " of run " << m.run << ", written by " << m.version
            << (m.bad ? ", tagged bad" : "") << '\n';
  if (m.base) {
    std::cout << "  trained weights alone; the frozen ones are those of its base, "
              << m.base->folder << '\n';
  }
  if (m.score) std::cout << "  validation loss " << *m.score << '\n';
}

// What a model's folder says of itself is compared with what is in it.
void account(const std::string& folder) {
  const HfWeights weights(folder);
  std::cout << "  " << weights.config().family->model_type << ", "
            << with_commas(costs_of(weights.config().model).params())
            << " parameters; config.json accounts for every tensor";
  if (!weights.skipped().empty()) {
    std::cout << " (" << weights.skipped().size() << " hold nothing)";
  }
  std::cout << '\n';
  for (const std::string& note : weights.config().notes) std::cout << "  note: " << note << '\n';
}

void inspect_tensors(const InspectVerb& verb, Call& call) {
  const auto set = open_tensors(verb.what[0]);
  const TensorsSummary out = describe_tensors(*set, !verb.fast);
  if (verb.json) {
    print_json(out);
  } else {
    print_tensors(out, verb.all);
    if (set->manifest() != nullptr) print_manifest(*set->manifest());
    if (is_there(verb.what[0] + "/config.json")) account(verb.what[0]);
    for (const TensorRow& row : out.tensors) {
      if (row.unsound > 0) {
        std::cout << "  " << row.name << " holds " << row.unsound
                  << " values that are no numbers\n";
      }
    }
    std::cout << (out.unsound > 0              ? "bad: NaN or infinite values\n"
                  : verb.fast                  ? "ok: headers alone were read\n"
                  : set->manifest() != nullptr ? "ok: every byte read, checksums agree\n"
                                               : "ok: every byte read\n");
  }
  if (out.unsound > 0) call.code = static_cast<int>(ExitClass::kCheckpoint);
}

// --- a tokenizer ---

struct TokenizerSummary {
  struct Special {
    int64_t bos = -1, eos = -1, pad = -1, unk = -1;
    static void visit(auto& s, auto&& f) {
      f("bos", s.bos);
      f("eos", s.eos);
      f("pad", s.pad);
      f("unk", s.unk);
    }
  };
  std::string path, kind, fingerprint;
  int64_t vocab = 0;
  Special special;
  std::vector<std::string> added, warnings;
  static void visit(auto& t, auto&& f) {
    f("path", t.path);
    f("kind", t.kind);
    f("fingerprint", t.fingerprint);
    f("vocab", t.vocab);
    f("special", t.special);
    f("added", t.added);
    f("warnings", t.warnings);
  }
};

void inspect_tokenizer(const InspectVerb& verb) {
  const auto tokenizer = open_tokenizer(verb.what[0]);
  const SpecialIds ids = tokenizer->special();
  TokenizerSummary out{.path = verb.what[0],
                       .kind = std::string(tokenizer->kind()),
                       .fingerprint = hex(tokenizer->fingerprint()),
                       .vocab = tokenizer->vocab_size(),
                       .special = {ids.bos, ids.eos, ids.pad, ids.unk},
                       .added = {},
                       .warnings = tokenizer->warnings()};
  for (const AddedToken& token : tokenizer->added_tokens()) out.added.push_back(token.content);
  if (verb.json) return print_json(out);
  std::cout << out.path << "  tokenizer of kind " << out.kind << ", " << with_commas(out.vocab)
            << " ids, fingerprint " << out.fingerprint << '\n';
  const auto say = [&](const char* name, TokenId id) {
    if (id >= 0)
      std::cout << "  " << name << "  " << id << ' ' << to_text(tokenizer->token(id)) << '\n';
  };
  say("bos", ids.bos);
  say("eos", ids.eos);
  say("pad", ids.pad);
  say("unk", ids.unk);
  const int64_t few =
      verb.all ? std::ssize(out.added) : std::min<int64_t>(8, std::ssize(out.added));
  std::cout << "  " << out.added.size() << " added tokens";
  for (int64_t i = 0; i < few; ++i) std::cout << ' ' << to_text(out.added[static_cast<size_t>(i)]);
  std::cout << (few < std::ssize(out.added) ? " ... (--all)\n" : "\n");
  for (const std::string& warning : out.warnings) std::cout << "  warning: " << warning << '\n';
  std::cout << "ok\n";
}

// --- TensorBoard ---

bool is_events(const std::string& path) {
  return stdfs::path(path).filename().string().find("tfevents") != std::string::npos;
}

std::vector<std::string> event_files(const std::string& path) {
  std::error_code error;
  if (!stdfs::is_directory(path, error)) {
    return is_events(path) ? std::vector{path} : std::vector<std::string>{};
  }
  std::vector<std::string> out;
  for (stdfs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    if (is_events(it->path().string())) out.push_back(it->path().string());
  }
  std::ranges::sort(out);
  return out;
}

void print_events(const EventsSummary& s, bool all) {
  std::cout << s.path << "  " << s.version << ", " << with_commas(s.events) << " events, "
            << readable_bytes(s.bytes) << '\n';
  for (const int64_t step : s.starts) std::cout << "  a session begins at step " << step << '\n';
  constexpr int64_t kFew = 40;
  const int64_t shown = all ? std::ssize(s.tags) : std::min(kFew, std::ssize(s.tags));
  for (int64_t i = 0; i < shown; ++i) {
    const EventTag& tag = s.tags[static_cast<size_t>(i)];
    std::cout << "  " << tag.tag << "  " << tag.kind << ", " << with_commas(tag.points)
              << " points, steps " << tag.first_step << " to " << tag.last_step;
    if (tag.kind == "scalar") std::cout << ", last " << to_text(tag.last);
    std::cout << '\n';
  }
  if (shown < std::ssize(s.tags)) {
    std::cout << "  and " << std::ssize(s.tags) - shown << " more (--all)\n";
  }
  std::cout << (s.torn.empty() ? "ok: all checksums agree\n"
                               : "torn " + s.torn + ": what is before it is whole\n");
}

void inspect_events(const InspectVerb& verb, const std::vector<std::string>& files, Call& call) {
  for (const std::string& path : files) {
    const EventsSummary summary = read_events(path);
    verb.json ? print_json(summary) : print_events(summary, verb.all);
    if (!summary.torn.empty()) call.code = static_cast<int>(ExitClass::kData);
  }
}

// --- a routing trace ---

struct TracedLayer {
  int64_t layer = 0, microbatches = 0, experts = 0, choices = 0, unused = 0;
  double load = 0;  // of the busiest expert over the mean
  bool logits = false;
  static void visit(auto& t, auto&& f) {
    f("layer", t.layer);
    f("microbatches", t.microbatches);
    f("experts", t.experts);
    f("choices", t.choices);
    f("unused", t.unused);
    f("load", t.load);
    f("logits", t.logits);
  }
};
struct TraceSummary {
  std::string path;
  std::vector<TracedLayer> layers;
  static void visit(auto& t, auto&& f) {
    f("path", t.path);
    f("layers", t.layers);
  }
};

void inspect_trace(const InspectVerb& verb) {
  TraceSummary out{.path = verb.what[0], .layers = {}};
  const RoutingTrace trace = RoutingTrace::load(out.path);
  std::map<int64_t, std::vector<int64_t>> counts;
  for (const auto& [layer, microbatch] : trace.records()) {
    if (out.layers.empty() || out.layers.back().layer != layer) out.layers.push_back({layer});
    TracedLayer& of = out.layers.back();
    ++of.microbatches;
    of.logits = trace.logits(layer, microbatch).defined();
    const at::Tensor n = trace.counts(layer, microbatch);
    counts[layer].resize(static_cast<size_t>(n.numel()));
    for (int64_t e = 0; e < n.numel(); ++e) {
      counts[layer][static_cast<size_t>(e)] += n.const_data_ptr<int64_t>()[e];
    }
  }
  for (TracedLayer& layer : out.layers) {
    const std::vector<int64_t>& n = counts[layer.layer];
    layer.experts = std::ssize(n);
    layer.choices = std::accumulate(n.begin(), n.end(), int64_t{0});
    layer.unused = std::ranges::count(n, 0);
    if (layer.choices == 0) continue;
    layer.load = static_cast<double>(std::ranges::max(n)) * static_cast<double>(layer.experts) /
                 static_cast<double>(layer.choices);
  }
  if (verb.json) return print_json(out);
  std::cout << out.path << "  routing trace\n";
  for (const TracedLayer& l : out.layers) {
    std::cout << "  layer " << l.layer << "  " << l.microbatches << " microbatches, "
              << with_commas(l.choices) << " choices of " << l.experts << " experts, load "
              << fixed(l.load, 2) << ", " << l.unused << " never chosen"
              << (l.logits ? ", with logits\n" : "\n");
  }
  std::cout << "ok: its counts are those of its choices\n";
}

// --- a run ---

bool has_records(const std::string& folder) {
  return is_there(folder + "/exit.json") || is_there(folder + "/log.jsonl");
}

// How it ended, before what its newest step holds.
void print_end(const std::string& run) {
  std::cout << end_text(run, unix_seconds());
}

// --- what ranks did last: RUN/flight.json, RUN/flight-rank-3.json ---

bool is_flight(const std::string& path) {
  const std::string name = stdfs::path(path).filename().string();
  return name.starts_with("flight") && name.ends_with(".json");
}

void inspect_flight(const InspectVerb& verb) {
  const std::string& path = verb.what[0];
  FlightRecord record;
  constexpr int64_t kMost = int64_t{1} << 30;
  read_config(parse_json(read_file(path, Code::kUnreadableData, kMost), path), record);
  if (verb.json) return print_json(record);
  constexpr int64_t kAll = std::numeric_limits<int64_t>::max();
  std::cout << path << "  " << record.ranks.size() << " ranks\n"
            << flight_table(record,
                            verb.all ? FlightTableOptions{kAll, kAll} : FlightTableOptions{});
}

// --- which of them ---

bool is_token_data(const std::string& path) {
  return is_there(token_prefix(path) + ".idx");
}

bool is_tokenizer(const std::string& path) {
  return std::ranges::any_of(tokenizer_kinds(),
                             [&](const TokenizerKind& kind) { return kind.fits(path); });
}

void inspect(const InspectVerb& verb, Call& call) {
  if (verb.what[0] == "model" && verb.what.size() == 2) return inspect_model(verb);
  if (verb.what[0] == "experts" && verb.what.size() == 2) {
    return inspect_experts({verb.what[1], verb.sets, verb.samples, verb.json});
  }
  if (verb.what.size() != 1) {
    fail(Code::kBadValue, verb.what[1],
         "is one argument too many: give a file or folder, or model NAME, or experts RUN");
  }
  const std::string& path = verb.what[0];
  const bool tells_end = !verb.json && has_records(path);
  if (tells_end) print_end(path);
  if (holds_tensors(path)) return inspect_tensors(verb, call);
  if (is_token_data(path)) {
    const TokenSummary out =
        describe_tokens(path, !verb.fast, Log({stderr_sink()}, Level::kWarning));
    return verb.json ? print_json(out) : print_tokens(out);
  }
  const std::vector<std::string> events = event_files(path);
  if (!events.empty()) return inspect_events(verb, events, call);
  if (!is_there(path) && path != "bytes") {
    fail(Code::kBadValue, path, "does not exist");
  }
  if (is_flight(path)) return inspect_flight(verb);
  if (path.ends_with(".trace")) return inspect_trace(verb);
  if (is_tokenizer(path)) return inspect_tokenizer(verb);
  if (tells_end) return;  // a run without a checkpoint
  std::error_code error;
  // Names what it is, where that is known: another program's checkpoint, pickles.
  if (stdfs::is_directory(path, error)) open_tensors(path);
  fail(Code::kBadValue, path,
       "is not a checkpoint, model folder, safetensors, tokens, tokenizer, event file, flight "
       "record or routing trace");
}

}  // namespace

void add_inspect(CLI::App& app, Call& call) {
  CLI::App* verb = app.add_subcommand("inspect", "describes and validates a file or folder");
  const auto options = std::make_shared<InspectVerb>();
  verb->add_option(
          "what", options->what,
          "a checkpoint, run (how it ended, too) or model folder; .safetensors, .idx or .bin, a\n"
          "tokenizer, an event file, a .trace, RUN/flight.json (which rank waited for which);\n"
          "or: model NAME (a preset, or a folder with config.json); or: experts RUN, which\n"
          "tokens and sources of data.train go to which expert")
      ->required()
      ->expected(1, 2);
  verb->add_flag("--fast", options->fast, "check headers only, not every byte");
  verb->add_flag("--all", options->all, "list everything");
  verb->add_option("--sequence", options->sequence, "model: sequence length in tokens, for FLOPs")
      ->check(CLI::PositiveNumber);
  verb->add_option("--samples", options->samples, "experts: how many samples are looked at");
  verb->add_option("--set", options->sets, "experts: path=value over the run's recipe")
      ->type_name("PATH=VALUE")
      ->expected(1)
      ->take_all();
  verb->add_flag("--json", options->json, "print JSON");
  verb->footer(
      "Example: troupe inspect runs/small/step-000200\n"
      "         troupe inspect runs/small/flight.json\n"
      "         troupe inspect model olmoe-1b-7b --sequence 4096\n"
      "         troupe inspect experts runs/small --samples 256\n"
      "Exit class 0: sound; 3 or 4: not.");
  verb->callback([options, &call] { inspect(*options, call); });
}

}  // namespace troupe
