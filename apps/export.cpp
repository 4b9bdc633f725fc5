// troupe export: a checkpoint to a folder that other programs load.
#include <functional>
#include <iostream>
#include <memory>

#include "apps/models/check_logits.h"
#include "apps/models/export_run.h"
#include "apps/parent_folders.h"
#include "apps/print.h"
#include "apps/unit_option.h"
#include "apps/verbs.h"
#include "troupe/core/file/publish.h"

namespace troupe {
namespace {

struct ExportVerb {
  std::string run, folder, dtype;
  Bytes shard = {5'000'000'000};
  bool force = false, check_logits = false, json = false;
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

void export_run(const ExportVerb& verb) {
  Fs fs;
  const Log log({stderr_sink()}, Level::kWarning);
  if (!verb.dtype.empty()) hf_scalar_type(verb.dtype);  // before any work
  const std::string folder = followed_link(verb.folder);
  require_replaceable(folder);
  const ExportSource source = export_source(verb.run, log);
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
      require_logits(*out.logits, rounds(out.checkpoint, out.dtype), verb.folder);
    };
  }
  out.tensors =
      export_hf(source.config, tensors_of_checkpoint(source.checkpoint), folder, source.tokenizer,
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
    for (const std::string& name : out.left_out) {
      std::cout << "left out, a run's state  " << name << '\n';
    }
    if (out.logits) print_logits(*out.logits);
  }
}

}  // namespace

void add_export(CLI::App& app, Call&) {
  CLI::App* verb = app.add_subcommand("export", "exports a checkpoint to a Hugging Face folder");
  const auto options = std::make_shared<ExportVerb>();
  verb->add_option("run", options->run, "run folder (its newest step) or step folder")->required();
  verb->add_option("folder", options->folder, "output folder")->required();
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
  verb->footer(
      "Example: troupe export runs/small out --dtype bfloat16 --check-logits\n"
      "The folder appears whole or not at all. A weight that the family's files have no place for\n"
      "is an error.");
  verb->callback([options] { export_run(*options); });
}

}  // namespace troupe
