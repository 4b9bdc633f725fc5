// troupe import: a model hub's folder to a checkpoint.
#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "apps/models/check_logits.h"
#include "apps/models/import_adapter.h"
#include "apps/models/imported_recipe.h"
#include "apps/print.h"
#include "apps/verbs.h"
#include "troupe/checkpoint/hf/hf_weights.h"
#include "troupe/core/config/config.h"
#include "troupe/core/config/counts.h"
#include "troupe/core/file/file.h"
#include "troupe/core/text/shell_word.h"
#include "troupe/core/text/suggest.h"
#include "troupe/data/tokenizer/tokenizers.h"
#include "troupe/nn/config/costs.h"

namespace troupe {
namespace {

struct ImportVerb {
  std::string folder, run, upcycle, adapter;
  ImportOptions options;
  bool check_logits = false, json = false;
};

struct Imported {  // --json
  std::string checkpoint, family;
  int64_t parameters = 0, tensors = 0, of = 0;
  std::vector<std::string> skipped;
  std::optional<LogitsCheck> logits = {};
  static void visit(auto& i, auto&& f) {
    f("checkpoint", i.checkpoint);
    f("family", i.family);
    f("parameters", i.parameters);
    f("tensors", i.tensors);
    f("of", i.of);
    f("skipped", i.skipped);
    f("logits", i.logits);
  }
};

void write_recipe(Fs& fs, const std::string& run, const ModelConfig& model) {
  const std::string folder = run + "/hf";
  const bool there = std::ranges::any_of(
      tokenizer_kinds(), [&](const TokenizerKind& kind) { return kind.fits(folder); });
  write_imported_recipe(fs, run, ImportedRecipe{model, {there ? folder : "", model.max_positions}});
}

// "allenai/OLMoE-1B-7B-0924", where there is no such folder: a name on a hub.
bool is_hub_name(const std::string& name) {
  const size_t slash = name.find('/');
  const bool two_words = slash != std::string::npos && slash > 0 && slash + 1 < name.size() &&
                         name.find('/', slash + 1) == std::string::npos;
  return two_words && std::string("./~").find(name[0]) == std::string::npos &&
         !is_there(name.substr(0, slash)) && !is_there(name);
}

// Nothing is downloaded here: the hub's own program does it, and resumes where it was stopped.
void require_folder(const ImportVerb& verb) {
  if (!is_hub_name(verb.folder)) return;
  const std::string folder = verb.folder.substr(verb.folder.find('/') + 1);
  fail(Code::kBadValue, verb.folder,
       "is not a folder here. If it is a name on the Hugging Face hub, download it first: "
       "pip install huggingface_hub; hf download " +
           shell_word(verb.folder) + " --local-dir " + shell_word(folder) + "; troupe import " +
           shell_word(folder) + ' ' + shell_word(verb.run));
}

void import_folder(const ImportVerb& verb) {
  require_folder(verb);
  Fs fs;
  const Log log({stderr_sink()}, Level::kWarning);
  if (!verb.options.dtype.empty()) hf_scalar_type(verb.options.dtype);  // before any work
  ImportOptions options = verb.options;
  if (!verb.upcycle.empty()) {
    MoeConfig& moe = options.upcycle.emplace();
    read_config(parse_yaml(verb.upcycle, "--upcycle"), moe);
    for (const CountFault& fault : counts_out_of_bounds(moe, kModelBounds)) {
      fail(Code::kBadValue, "--upcycle", fault.path + ' ' + fault.what);
    }
  }
  const ImportResult result = import_hf(verb.folder, verb.run, log, fs, options);
  const HfConfig config = read_hf_config(verb.folder);
  write_recipe(fs, verb.run, result.model);
  Imported out{.checkpoint = result.checkpoint,
               .family = std::string(config.family->model_type),
               .parameters = costs_of(result.model).params(),
               .tensors = result.tensors,
               .of = result.of,
               .skipped = result.skipped};
  if (verb.check_logits) out.logits = check_logits(verb.folder, result.checkpoint, result.model);
  if (verb.json) {
    print_json(out);
  } else {
    std::cout << out.checkpoint << ": " << out.family
              << (verb.upcycle.empty() ? "" : " upcycled to a mixture of experts") << ", "
              << with_commas(out.parameters) << " parameters; all " << out.of
              << " tensors of the folder are in its " << out.tensors << '\n';
    for (const std::string& name : out.skipped) std::cout << "holds nothing  " << name << '\n';
    if (out.logits) print_logits(*out.logits);
  }
  // An upcycled model sums its experts' equal results, which rounds.
  const bool rounds = !verb.options.dtype.empty() || !verb.upcycle.empty();
  const FolderWeights weights = rounds ? FolderWeights::kRounded : FolderWeights::kSame;
  if (out.logits) require_logits(*out.logits, weights, out.checkpoint);
}

struct ImportedAdapter {  // --json, with --adapter
  AdapterImport of;
  static void visit(auto& i, auto&& f) {
    f("checkpoint", i.of.checkpoint);
    f("base", i.of.base);
    f("rank", i.of.rank);
    f("alpha", i.of.alpha);
    f("targets", i.of.targets);
    f("tensors", i.of.tensors);
    f("factors", i.of.factors);
    f("added", i.of.added);
  }
};

void import_peft(const ImportVerb& verb) {
  Fs fs;
  const Log log({stderr_sink()}, Level::kWarning);
  const ImportedAdapter out{import_adapter(verb.adapter, verb.folder, verb.run, log, fs)};
  if (verb.json) return print_json(out);
  const AdapterImport& done = out.of;
  std::cout << done.checkpoint << ": adapters of rank " << done.rank << ", alpha " << done.alpha
            << ", of "
            << joined(std::vector<std::string_view>(done.targets.begin(), done.targets.end()))
            << ", beside " << done.base << "; all " << done.tensors
            << " tensors of the folder are in its " << done.factors << '\n';
  if (done.added > 0) {
    std::cout << done.added << " matrices of these targets have no adapter in the folder: theirs "
              << "begin without effect\n";
  }
}

}  // namespace

void add_import(CLI::App& app, Call&) {
  CLI::App* verb = app.add_subcommand("import", "imports a Hugging Face folder as a checkpoint");
  const auto options = std::make_shared<ImportVerb>();
  verb->add_option("folder", options->folder,
                   "folder with config.json and safetensors; with --adapter: the base's run")
      ->required();
  verb->add_option("run", options->run, "run folder, which gets step-000000 and hf/")->required();
  verb->add_option("--dtype", options->options.dtype,
                   "bfloat16, float16 or float32; default: the files' type");
  verb->add_option(
          "--upcycle", options->upcycle,
          "turn a dense model's feed-forwards into experts: '{experts: 8, top_k: 2}', keys of\n"
          "model.moe; with a smaller `hidden` each expert is a slice of the dense one")
      ->type_name("MOE");
  verb->add_flag(
      "--check-logits", options->check_logits,
      "compute logits with this program from the folder's files and from the checkpoint\n"
      "and compare them; needs 4 bytes per parameter");
  verb->add_flag("--json", options->json, "print the result as JSON");
  verb->add_option(
      "--adapter", options->adapter,
      "import this folder of PEFT as the run's adapters, beside the base: a run of an\n"
      "import, or one of its steps");
  verb->footer(
      "Example: troupe import ~/OLMoE-1B-7B runs/olmoe --check-logits\n"
      "Every tensor is used or named; one that is missing, left over or of another shape is an\n"
      "error. Train from it with checkpoint: {init_from: runs/olmoe/step-000000, cast: true}.");
  verb->callback([options, verb] {
    if (options->adapter.empty()) return import_folder(*options);
    for (const char* other : {"--dtype", "--upcycle", "--check-logits"}) {
      if (verb->count(other) > 0) {
        throw CLI::ValidationError("--adapter", std::string("does not take ") + other);
      }
    }
    import_peft(*options);
  });
}

}  // namespace troupe
