#include "apps/models/import_adapter.h"

#include <map>
#include <utility>

#include "apps/models/export_run.h"
#include "apps/models/imported_recipe.h"
#include "apps/models/peft_import.h"
#include "troupe/checkpoint/files/base.h"
#include "troupe/checkpoint/files/shard_writer.h"
#include "troupe/checkpoint/folder/find_resume.h"
#include "troupe/checkpoint/folder/run_folder.h"
#include "troupe/checkpoint/hf/hf_config.h"
#include "troupe/checkpoint/state/save_step.h"
#include "troupe/checkpoint/state/tensor_element.h"
#include "troupe/core/check.h"
#include "troupe/core/file/file.h"
#include "troupe/train/recipe/recipe.h"
#include "troupe/train/recipe/teacher.h"

namespace troupe {
namespace {

struct AdapterRecipe : ImportedRecipe {
  struct Checkpoint {
    std::string init_from;
    static void visit(auto& c, auto&& f) { f("init_from", c.init_from); }
  };
  Checkpoint checkpoint;
  static void visit(auto& r, auto&& f) {
    ImportedRecipe::visit(r, f);
    f("checkpoint", r.checkpoint);
  }
};

void write_adapter_recipe(Fs& fs, const std::string& run, const std::string& base,
                          const Recipe& of_base, const ModelLora& lora) {
  AdapterRecipe recipe{
      {with_still_router(of_base.model), {of_base.data.tokenizer, of_base.data.sequence}}, {base}};
  recipe.model.lora = lora;
  write_imported_recipe(fs, run, recipe);
}

void write_factors(Fs& fs, const Log& log, const std::string& run, const BaseCheckpoint& base,
                   const std::map<std::string, at::Tensor>& factors) {
  std::vector<ShardPiece> pieces;
  for (const auto& [name, tensor] : factors) {
    ShardPiece piece{{"model." + name, Element::kF32, Box::whole(tensor.sizes().vec())}};
    piece.bytes = bytes_of(tensor);
    pieces.push_back(std::move(piece));
  }
  CheckpointConfig config;
  config.dir = run;
  const Faults none;
  const CheckpointGroup alone;
  SaveResult result;
  save_step({fs, none, alone, log, nullptr}, config, new_run_id(), {.step = 0, .base = base},
            pieces, result);
  if (!result.skipped.empty()) fail(Code::kFolderInUse, run, result.skipped);
  if (result.bad) log.warning(run + " holds NaN or infinite factors: the step is tagged bad");
}

// A hub's folder has to be imported first: the step names a base of ours.
ExportSource base_source(const std::string& base, const Log& log) {
  if (is_hub_folder(base)) {
    fail(Code::kBadValue, base,
         "is a Hugging Face folder; an adapter is imported beside a run: `troupe import", base,
         "BASE`, then name BASE here");
  }
  ExportSource out = export_source(base, log);
  if (out.adapters > 0) {
    fail(Code::kStateMismatch, out.checkpoint, "has", out.adapters,
         "factors of adapters; name the run that it began from");
  }
  return out;
}

}  // namespace

AdapterImport import_adapter(const std::string& folder, const std::string& base,
                             const std::string& run, const Log& log, Fs& fs) {
  const ExportSource source = base_source(base, log);
  const PeftAdapterRead read =
      read_peft(folder, source.config, tensors_of_checkpoint(source.checkpoint));
  for (const std::string& note : read.notes) log.warning(note);
  Sources sources;
  const Recipe of_base = load_recipe(run_path(base).run + "/recipe.yaml", {}, sources);
  prepare_run_folder(fs, run);
  if (!steps_in(run).empty()) {
    fail(Code::kFileFailed, run, "holds", step_name(steps_in(run).front()),
         "already; import into a folder of its own");
  }
  write_factors(fs, log, run, base_of(source.checkpoint, read_manifest(source.checkpoint), run),
                read.factors);
  write_adapter_recipe(fs, run, source.checkpoint, of_base, read.lora);
  AdapterImport out{.checkpoint = run + '/' + step_name(0),
                    .base = source.checkpoint,
                    .rank = read.lora.factors.rank,
                    .alpha = read.lora.factors.alpha,
                    .tensors = read.tensors,
                    .factors = std::ssize(read.factors),
                    .added = read.added};
  for (const LoraTarget target : read.lora.targets) out.targets.emplace_back(to_text(target));
  return out;
}

}  // namespace troupe
