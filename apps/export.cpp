// troupe export: a checkpoint to a folder that other programs load, a whole model or an adapter.
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apps/models/check_logits.h"
#include "apps/models/export_run.h"
#include "apps/models/gguf_vocab.h"
#include "apps/models/peft_folder.h"
#include "apps/models/run_adapters.h"
#include "apps/parent_folders.h"
#include "apps/print.h"
#include "apps/unit_option.h"
#include "apps/verbs.h"
#include "troupe/checkpoint/gguf/write_gguf.h"
#include "troupe/core/file/publish.h"

namespace troupe {
namespace {

constexpr const char* kNoAdapters =
    "has no adapters: it was not trained with model.lora; export it without --merge and --adapter";

struct ExportVerb {
  std::string run, folder, dtype, adapter, base;
  PeftVersion peft = PeftVersion::k0_19;
  GgufType gguf = GgufType::kBF16;
  Bytes shard = {5'000'000'000};
  bool force = false, check_logits = false, json = false, merge = false;
};

struct Exported {  // --json
  std::string folder, checkpoint, family, dtype;
  int64_t tensors = 0;
  std::vector<std::string> left_out;
  std::optional<LogitsCheck> logits = {};
  static void visit(auto& e, auto&& f) {
    f("folder", e.folder);
    f("checkpoint", e.checkpoint);
    f("family", e.family);
    f("dtype", e.dtype);
    f("tensors", e.tensors);
    f("left_out", e.left_out);
    f("logits", e.logits);
  }
};

struct ExportedGguf {  // --json, with --gguf
  std::string file, checkpoint, family, architecture, type;
  int64_t tensors = 0;
  std::vector<std::string> left_out;
  static void visit(auto& e, auto&& f) {
    f("file", e.file);
    f("checkpoint", e.checkpoint);
    f("family", e.family);
    f("architecture", e.architecture);
    f("type", e.type);
    f("tensors", e.tensors);
    f("left_out", e.left_out);
  }
};

struct ExportedAdapter {  // --json, with --adapter
  std::string folder, checkpoint, family, peft;
  int64_t tensors = 0;
  std::vector<std::string> target_modules, target_parameters;
  static void visit(auto& e, auto&& f) {
    f("folder", e.folder);
    f("checkpoint", e.checkpoint);
    f("family", e.family);
    f("peft", e.peft);
    f("tensors", e.tensors);
    f("target_modules", e.target_modules);
    f("target_parameters", e.target_parameters);
  }
};

void export_adapter(const ExportVerb& verb) {
  Fs fs;
  const Log log({stderr_sink()}, Level::kWarning);
  const std::string folder = followed_link(verb.adapter);
  require_replaceable(folder);
  const ExportSource source = export_source(verb.run, log);
  const RunAdapters adapters(source.checkpoint, source.model);
  if (adapters.none()) fail(Code::kStateMismatch, source.checkpoint, kNoAdapters);
  make_parent_folders(folder);
  const PeftWritten written = write_peft(
      adapters, source.config,
      {.folder = folder, .base = verb.base, .version = verb.peft, .force = verb.force}, fs);
  const ExportedAdapter out{.folder = verb.adapter,
                            .checkpoint = source.checkpoint,
                            .family = std::string(source.config.family->model_type),
                            .peft = std::string(to_text(verb.peft)),
                            .tensors = written.tensors,
                            .target_modules = written.modules,
                            .target_parameters = written.parameters};
  if (verb.json) return print_json(out);
  std::cout << out.folder << ": adapter of a " << out.family << ", " << out.tensors
            << " tensors in float32, in the layout of PEFT " << out.peft << '\n';
}

// What a whole model's folder has no place for is told before anything is written.
void require_places(const ExportVerb& verb, const ExportSource& source) {
  if (verb.merge && source.adapters == 0)
    fail(Code::kStateMismatch, source.checkpoint, kNoAdapters);
  if (verb.merge || source.adapters == 0) return;
  fail(Code::kStateMismatch, source.checkpoint, "has", source.adapters,
       "factors of adapters, for which the folder of a whole model has no place: --merge adds them",
       "to the weights, --adapter FOLDER writes them alone, as PEFT reads them");
}

// The checkpoint's weights, with its adapters in them where that is asked for.
TensorOf tensors_to_export(const ExportVerb& verb, const ExportSource& source) {
  if (!verb.merge) return tensors_of_checkpoint(source.checkpoint);
  const auto adapters = std::make_shared<RunAdapters>(source.checkpoint, source.model);
  return [adapters](const std::string& name) { return adapters->merged(name); };
}

void print_left_out(const std::vector<std::string>& names) {
  for (const std::string& name : names) std::cout << "left out, a run's state  " << name << '\n';
}

void export_gguf(const ExportVerb& verb) {
  Fs fs;
  const Log log({stderr_sink()}, Level::kWarning);
  const std::string file = followed_link(verb.folder);
  require_replaceable(file);
  const ExportSource source = export_source(verb.run, log);
  require_places(verb, source);
  const GgufModel model = gguf_model(source.config);
  GgufVocabulary vocabulary = gguf_vocabulary(source.tokenizer, source.config.model.vocab);
  for (const std::string& line : model.notes) log.warning(line);
  for (const std::string& line : vocabulary.notes) log.warning(line);
  make_parent_folders(file);
  ExportedGguf out{.file = verb.folder,
                   .checkpoint = source.checkpoint,
                   .family = std::string(source.config.family->model_type),
                   .architecture = model.architecture,
                   .type = std::string(to_text(verb.gguf)),
                   .left_out = source.left_out};
  out.tensors = write_gguf(model, tensors_to_export(verb, source), file,
                           {.type = verb.gguf,
                            .name = std::filesystem::path(file).stem().string(),
                            .vocabulary = std::move(vocabulary.fields),
                            .force = verb.force},
                           fs);
  if (verb.json) {
    out.left_out.insert(out.left_out.end(), model.left_out.begin(), model.left_out.end());
    return print_json(out);
  }
  std::cout << out.file << ": " << out.family << " as llama.cpp's " << out.architecture << ", "
            << out.tensors << " tensors, matrices in " << out.type << '\n';
  print_left_out(out.left_out);
  for (const std::string& name : model.left_out) {
    std::cout << "left out, a prediction module  " << name << '\n';
  }
}

void refuse_beside(const CLI::App& verb, const std::string& what,
                   std::initializer_list<const char*> others) {
  for (const char* other : others) {
    if (verb.count(other) > 0)
      throw CLI::ValidationError(what, std::string("does not take ") + other);
  }
}

void export_run(const ExportVerb& verb) {
  Fs fs;
  const Log log({stderr_sink()}, Level::kWarning);
  if (!verb.dtype.empty()) hf_scalar_type(verb.dtype);  // before any work
  const std::string folder = followed_link(verb.folder);
  require_replaceable(folder);
  const ExportSource source = export_source(verb.run, log);
  require_places(verb, source);
  make_parent_folders(folder);
  Exported out{.folder = verb.folder,
               .checkpoint = source.checkpoint,
               .family = std::string(source.config.family->model_type),
               .dtype = verb.dtype.empty() ? source.config.dtype : verb.dtype,
               .left_out = source.left_out};
  std::function<void(const std::string&)> check;
  if (verb.check_logits) {
    check = [&](const std::string& staging) {
      out.logits = check_logits(staging, out.checkpoint, source.model);
      const FolderWeights weights = rounds(out.checkpoint, out.dtype) ? FolderWeights::kRounded
                                    : verb.merge                      ? FolderWeights::kMerged
                                                                      : FolderWeights::kSame;
      require_logits(*out.logits, weights, verb.folder);
    };
  }
  const TensorOf tensors = tensors_to_export(verb, source);
  out.tensors = export_hf(source.config, tensors, folder, source.tokenizer,
                          {.dtype = out.dtype,
                           .file_bytes = verb.shard.value,
                           .force = verb.force,
                           .files = source.files,
                           .check = check},
                          fs);
  if (verb.json) {
    print_json(out);
  } else {
    std::cout << verb.folder << ": " << out.family << ", " << out.tensors << " tensors in "
              << out.dtype << ", each read back and compared\n";
    print_left_out(out.left_out);
    if (out.logits) print_logits(*out.logits);
  }
}

}  // namespace

void add_export(CLI::App& app, Call&) {
  CLI::App* verb = app.add_subcommand("export", "exports a checkpoint to a Hugging Face folder");
  const auto options = std::make_shared<ExportVerb>();
  verb->add_option("run", options->run, "run folder (its newest step) or step folder")->required();
  verb->add_option("folder", options->folder, "output folder; with --gguf the file");
  verb->add_flag("--merge", options->merge, "add a run's adapters to the weights they are beside");
  verb->add_option(
      "--dtype", options->dtype,
      "bfloat16, float16 or float32; default: the type it was imported in, or bfloat16");
  add_value(*verb, "--shard-size", options->shard, "of a file; a larger tensor has its own");
  verb->add_flag("--force", options->force, "overwrite the folder");
  verb->add_flag(
      "--check-logits", options->check_logits,
      "compute logits with this program from the checkpoint and from the exported files\n"
      "and compare them before the folder appears; needs 4 bytes per parameter");
  verb->add_flag("--json", options->json, "print the result as JSON");
  verb->add_option("--adapter", options->adapter,
                   "write the run's adapters alone to this folder, as PEFT reads them");
  add_value(
      *verb, "--peft", options->peft,
      "of --adapter: the layout of experts' factors, of PEFT 0.18 and before, or 0.19 and on");
  verb->add_option("--base", options->base,
                   "of --adapter: the base model's folder or name, for adapter_config.json");
  add_value(*verb, "--gguf", options->gguf,
            "write one file for llama.cpp, with matrices in f32, bf16 or q8_0");
  verb->footer(
      "Example: troupe export runs/small out --dtype bfloat16 --check-logits\n"
      "The folder appears whole or not at all. A weight that the family's files have no place for\n"
      "is an error, also an adapter's: --merge or --adapter FOLDER say what becomes of it.");
  verb->callback([options, verb] {
    if (!options->adapter.empty()) {
      refuse_beside(*verb, "--adapter",
                    {"folder", "--merge", "--dtype", "--shard-size", "--check-logits", "--gguf"});
      return export_adapter(*options);
    }
    refuse_beside(*verb, "an export without --adapter", {"--peft", "--base"});
    if (options->folder.empty()) throw CLI::RequiredError("folder");
    if (verb->count("--gguf") > 0) {
      refuse_beside(*verb, "--gguf", {"--dtype", "--shard-size", "--check-logits"});
      return export_gguf(*options);
    }
    export_run(*options);
  });
}

}  // namespace troupe
