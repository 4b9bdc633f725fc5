// Whole folders: a model hub's to a checkpoint of ours, and back.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "troupe/checkpoint/files/base.h"
#include "troupe/checkpoint/files/reader.h"
#include "troupe/checkpoint/folder/run_folder.h"
#include "troupe/checkpoint/hf/hf_keys.h"
#include "troupe/checkpoint/hf/hf_weights.h"
#include "troupe/checkpoint/hf/tokenizer_files.h"
#include "troupe/checkpoint/hf/upcycle_hf.h"
#include "troupe/checkpoint/state/tensor_element.h"
#include "troupe/core/check.h"
#include "troupe/nn/model/model.h"

namespace troupe {
namespace {

namespace stdfs = std::filesystem;

void write_new(Fs& fs, const std::string& path, const std::string& text) {
  NewFile file(fs, path);
  file.write(text);
  file.finish();
}

void write_all_new(Fs& fs, const std::string& folder, const NamedTexts& files) {
  for (const auto& [name, text] : files) write_new(fs, folder + '/' + name, text);
}

std::string generation_config(const HfConfig& config) {
  const Json passed = parse_in_order(config.passed);
  Json out = Json::object();
  for (const char* name : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    if (passed.contains(name) && !passed[name].is_null()) out[name] = passed[name];
  }
  out["do_sample"] = false;
  return out.dump(2) + '\n';
}

// One tensor of theirs, with all pieces of ours that make it.
struct Theirs {
  const HfPiece* first;
  bool fp32 = false;
  std::vector<std::pair<const HfTensor*, const HfPiece*>> pieces;
  const HfTensor* copy_of = nullptr;
  std::string name;
};

class Export {
 public:
  Export(const HfConfig& config, const TensorOf& tensor_of, const ExportOptions& options)
      : config_(config), tensor_of_(tensor_of), table_(hf_names(*config.family, config.model)) {
    if (!options.dtype.empty()) config_.dtype = options.dtype;
    type_ = hf_scalar_type(config_.dtype);
    group();
  }

  int64_t num_theirs() const { return std::ssize(theirs_); }

  void write(Fs& fs, const std::string& staging, int64_t file_bytes) {
    std::vector<SafetensorsEntry> entries;
    for (const Theirs& t : theirs_) {
      entries.push_back({t.name, element_of(t.fp32 ? at::kFloat : type_), shape_of(t)});
    }
    const ModelFilePlan plan = plan_model_files(entries, file_bytes);
    const std::string into = staging + '/';
    for (const auto& [name, tensors] : plan.files) {
      NewFile file(fs, into + name);
      write_safetensors(file, layout_safetensors(tensors),
                        [&](const SafetensorsEntry& entry, const WriteBytes& write) {
                          const at::Tensor made = make(theirs_[by_name_.at(entry.name)]);
                          write(bytes_of(made));
                        });
      file.finish();
    }
    if (!plan.index.empty()) {
      write_new(fs, staging + "/model.safetensors.index.json", plan.index);
    }
    write_new(fs, staging + "/config.json", to_json(config_));
  }

  // What was written, read as any import would, is what was to be written.
  void verify(const std::string& staging) const {
    const HfWeights back(staging);
    for (const HfTensor& ours : table_) {
      const HfTensor* const found = back.find(ours.name);
      TROUPE_CHECK(found != nullptr, ours.name, "is not in the exported folder");
      const at::Tensor wanted = as_read(ours, back.type_of(*found)).view(ours.shape);
      if (!at::equal(back.read(*found), wanted)) {
        fail(Code::kDamagedCheckpoint, staging, "tensor", ours.name, "does not read back the same");
      }
    }
  }

 private:
  void group() {
    for (const HfTensor& ours : table_) {
      for (const HfPiece& piece : ours.pieces) {
        const auto [at, added] = by_name_.try_emplace(piece.name, theirs_.size());
        if (added) theirs_.push_back({&piece, ours.fp32, {}, nullptr, piece.name});
        theirs_[at->second].pieces.emplace_back(&ours, &piece);
      }
    }
    for (const HfTensor& ours : table_) {
      for (const std::string& copy : ours.copies) {
        by_name_.emplace(copy, theirs_.size());
        theirs_.push_back({&ours.pieces.at(0), ours.fp32, {}, &ours, copy});
      }
    }
  }

  static Sizes shape_of(const Theirs& t) {
    return t.copy_of != nullptr ? t.copy_of->pieces[0].shape : t.first->shape;
  }

  // The true rows: a padded vocabulary has more of them.
  at::Tensor matrix_of(const HfTensor& ours) const {
    const at::Tensor value = tensor_of_(ours.name);
    Sizes shape = value.sizes().vec();
    if (!shape.empty() && shape[0] == padded_vocab(config_.model) && ours.shape != shape) {
      shape[0] = ours.shape.at(0);
    }
    if (shape != ours.shape) {
      fail(Code::kStateMismatch, "the checkpoint", "tensor", ours.name, "is",
           to_text(value.sizes().vec()), "and should be", to_text(ours.shape));
    }
    return value.reshape({-1, ours.columns}).narrow(0, 0, ours.rows);
  }

  // Theirs of ours, but for what an export leaves in weights (HfTensor::factor).
  at::Tensor moved(const HfTensor& ours) const {
    const at::Tensor matrix = matrix_of(ours);
    return ours.offset == 0 ? matrix : matrix.to(at::kFloat) - ours.offset;
  }
  // Ours as they are read back from theirs.
  at::Tensor as_read(const HfTensor& ours, at::ScalarType type) const {
    if (ours.offset == 0) return matrix_of(ours).to(type);
    return moved(ours).to(ours.fp32 ? at::kFloat : type_).to(type) + ours.offset;
  }

  at::Tensor make(const Theirs& t) const {
    const at::ScalarType type = t.fp32 ? at::kFloat : type_;
    if (t.copy_of != nullptr) return make(theirs_[by_name_.at(t.copy_of->pieces[0].name)]);
    at::Tensor out = at::empty({Box::whole(t.first->shape).numel()}, at::TensorOptions(type));
    for (const auto& [ours, p] : t.pieces) {
      if (p->rows == 0 || ours->columns == 0) continue;
      const at::Tensor matrix = moved(*ours);
      out.as_strided({p->rows, ours->columns}, {p->row_stride, p->column_stride}, p->offset)
          .copy_(matrix.narrow(0, p->row, p->rows));
    }
    return out;
  }

  HfConfig config_;
  const TensorOf& tensor_of_;
  const std::vector<HfTensor> table_;
  at::ScalarType type_ = at::kBFloat16;
  std::vector<Theirs> theirs_;
  std::map<std::string, size_t> by_name_;
};

}  // namespace

at::ScalarType hf_scalar_type(const std::string& dtype) {
  if (dtype == "float32") return at::kFloat;
  if (dtype == "bfloat16") return at::kBFloat16;
  if (dtype == "float16") return at::kHalf;
  fail(Code::kBadValue, "dtype", to_text(dtype), "is none of bfloat16, float16, float32");
}

namespace {

// What a model has besides what their files hold: state of its routers, as a new run begins with.
std::vector<ShardPiece> state_pieces(const HfWeights& weights, const ModelConfig& model) {
  std::vector<ShardPiece> out;
  build_model(model)->for_each_param(-1, [&](const std::string& name, Param& p) {
    if (p.group != Group::kState || weights.find(name) != nullptr) return;
    initialize(p, name, 0);
    CheckpointState state;
    state.add("model." + name, p);
    for (const CheckpointState::Part& part : state.parts()) {
      ShardPiece piece{part.tensor};
      piece.make = [value = part.value](const WriteBytes& write) { write(bytes_of(value)); };
      out.push_back(std::move(piece));
    }
  });
  return out;
}

}  // namespace

ImportResult import_hf(const std::string& folder, const std::string& run, const Log& log, Fs& fs,
                       const ImportOptions& options) {
  const HfWeights weights(folder);
  const NamedTexts files = tokenizer_files(folder);  // before anything is written
  for (const std::string& line : weights.config().notes) log.warning(line);
  const auto type_of = [&](const HfTensor& ours) {
    const bool asked = !options.dtype.empty() && !ours.fp32;
    return asked ? hf_scalar_type(options.dtype) : weights.type_of(ours);
  };
  const ModelConfig model = options.upcycle
                                ? upcycled_model(weights.config().model, *options.upcycle)
                                : weights.config().model;
  prepare_run_folder(fs, run);
  if (!steps_in(run).empty()) {
    fail(Code::kFileFailed, run, "holds", step_name(steps_in(run).front()),
         "already; import into a folder of its own");
  }
  const std::string kept = make_staging_directory(fs, run + "/hf");
  if (!options.upcycle) write_new(fs, kept + "/config.json", to_json(weights.config()));
  write_all_new(fs, kept, files);
  std::error_code error;  // one that is there is of an import that was killed
  stdfs::exists(run + "/hf", error) ? replace_directory(fs, kept, run + "/hf")
                                    : publish_directory(fs, kept, run + "/hf");
  int64_t written = 0;              // besides state
  const HfTensor* dense = nullptr;  // whose type experts have
  std::vector<ShardPiece> pieces = state_pieces(weights, model);
  const auto add = [&](const std::string& name, const std::vector<int64_t>& shape,
                       at::ScalarType type, const std::function<at::Tensor()>& make) {
    ShardPiece piece{{"model." + name, element_of(type), Box::whole(shape)}};
    piece.make = [make, type](const WriteBytes& write) {
      write(bytes_of(make().to(type).contiguous()));
    };
    pieces.push_back(std::move(piece));
    ++written;
  };
  for (const HfTensor& ours : weights.table()) {
    if (options.upcycle && is_upcycled(model, ours.name)) {
      dense = &ours;
      continue;
    }
    add(ours.name, ours.shape, type_of(ours), [&weights, &ours] { return weights.read(ours); });
  }
  if (dense != nullptr) {
    for (const UpcycledTensor& t : upcycled_tensors(weights, model)) {
      add(t.name, t.shape, type_of(*dense), t.make);
    }
  }
  CheckpointConfig config;
  config.dir = run;
  const Faults none;
  const CheckpointGroup alone;
  SaveResult result;
  save_step({fs, none, alone, log, nullptr}, config, new_run_id(), {.step = 0}, pieces, result);
  if (!result.skipped.empty()) fail(Code::kFolderInUse, run, result.skipped);
  if (result.bad) log.warning(folder + " holds NaN or infinite weights: the step is tagged bad");
  return {.checkpoint = run + '/' + step_name(0),
          .tensors = written,
          .of = weights.num_theirs() - std::ssize(weights.skipped()),
          .skipped = weights.skipped(),
          .model = model};
}

int64_t export_hf(const HfConfig& config, const TensorOf& tensor_of, const std::string& folder,
                  const std::string& tokenizer, const ExportOptions& options, Fs& fs) {
  std::error_code error;
  const bool there = stdfs::exists(stdfs::symlink_status(folder, error));
  if (there && !options.force) {
    fail(Code::kFileFailed, folder, "is there already; --force replaces it");
  }
  const NamedTexts files = tokenizer_files(tokenizer);
  const std::string staging = make_staging_directory(fs, folder);
  try {
    Export out(config, tensor_of, options);
    out.write(fs, staging, options.file_bytes);
    write_all_new(fs, staging, files);
    const auto write_absent = [&](const std::string& name, const std::string& text) {
      if (!stdfs::exists(staging + '/' + name, error)) write_new(fs, staging + '/' + name, text);
    };
    write_absent("generation_config.json", generation_config(config));
    for (const auto& [name, text] : options.files) write_absent(name, text);
    out.verify(staging);
    if (options.check) options.check(staging);
    there ? replace_directory(fs, staging, folder) : publish_directory(fs, staging, folder);
    return out.num_theirs();
  } catch (...) {
    if (stdfs::exists(staging, error)) remove_tree(fs, staging);
    throw;
  }
}

TensorOf tensors_of_checkpoint(const std::string& folder) {
  const auto reader =
      std::make_shared<CheckpointReader>(folder, with_base(check_complete(folder), folder));
  return [reader](const std::string& ours) {
    const std::string name = "model." + ours;
    const CheckpointReader::Tensor* const t = reader->find(name);
    if (t == nullptr) fail(Code::kStateMismatch, reader->folder(), "has no tensor", name);
    at::Tensor out = at::empty(t->global, at::TensorOptions(scalar_of(t->element)));
    reader->read(*t, name, Box::whole(t->global), bytes_of(out), Faults());
    return out;
  };
}

}  // namespace troupe
