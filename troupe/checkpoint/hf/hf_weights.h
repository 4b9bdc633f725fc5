// The weights of a model hub's folder under our names, one tensor at a time: nothing larger than
// one tensor is held. FP8 blocks (DeepSeek) and MXFP4 (gpt-oss) are widened to f32 as they are
// read.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "troupe/checkpoint/files/model_index.h"
#include "troupe/checkpoint/hf/hf_config.h"
#include "troupe/checkpoint/state/checkpoint.h"

namespace troupe {

class HfWeights {
 public:
  // Reads config.json and headers and sees that every tensor is accounted for: each of ours has its
  // parts in the right shape, each of theirs is used, a copy, a scale or known to be without
  // meaning. Else one E4005 with the full list. Experts may be apart or joined as in memory; a
  // model whose MTP modules are not in the files has none, with a note.
  explicit HfWeights(const std::string& folder);

  const HfConfig& config() const { return config_; }
  const std::vector<HfTensor>& table() const { return table_; }
  const HfTensor* find(std::string_view ours) const;  // nullptr: none
  int64_t num_theirs() const { return std::ssize(files_.tensors()); }
  // Theirs that hold nothing to import (hf_skippable).
  const std::vector<std::string>& skipped() const { return skipped_; }

  // The type that a tensor of ours has in the files; of quantized ones bf16.
  at::ScalarType type_of(const HfTensor& ours) const;
  at::Tensor read(const HfTensor& ours) const;  // in that type, of ours.shape, on the CPU

 private:
  struct Part;
  void account();
  const ModelFiles::Tensor* theirs(const std::string& name) const;
  bool is_quantized(const std::string& name) const;
  bool fits(const HfPiece& piece, std::vector<std::string>& faults) const;
  at::Tensor range(const HfPiece& piece, int64_t first, int64_t count) const;
  at::Tensor fp8_range(const HfPiece& piece, int64_t first, int64_t count) const;
  at::Tensor mxfp4_range(const HfPiece& piece, int64_t first, int64_t count) const;

  ModelFiles files_;
  HfConfig config_;
  std::vector<HfTensor> table_;
  std::map<std::string, const HfTensor*, std::less<>> by_name_;
  std::vector<std::string> skipped_;
};

// Fills a state's parts "PREFIX" + name from the folder: weights alone, as init_from takes them. A
// part of another type is cast. Names of the state that the model has not, or the other way round,
// are one E4005; parts without the prefix are left alone. Returns lines for the log.
std::vector<std::string> load_hf(const HfWeights& weights, const CheckpointState& state,
                                 const std::string& prefix = "model.");

struct ImportOptions {
  std::string dtype = "";  // "bfloat16", "float16", "float32"; empty: as the files have it
  // A dense model's feed-forwards become this mixture (hf/upcycle_hf.h); RUN/hf has then no
  // config.json, which would be that of another model.
  std::optional<MoeConfig> upcycle = {};
};

struct ImportResult {
  std::string checkpoint;       // RUN/step-000000
  int64_t tensors = 0, of = 0;  // ours, and theirs that they were made from
  std::vector<std::string> skipped = {};
  ModelConfig model = {};  // of the checkpoint
};

// Writes the folder's weights as step 0 of a run folder, tensor by tensor, with config.json and the
// tokenizer's files beside the shards' manifest in RUN/hf. What a model keeps in f32 stays f32
// whatever type is asked for. State of the model that no hub's file has (BalanceConfig's past) is
// written as a new run begins with it, so that the step is a whole model to init_from.
ImportResult import_hf(const std::string& folder, const std::string& run, const Log& log, Fs& fs,
                       const ImportOptions& options = {});

struct ExportOptions {
  std::string dtype = "";  // "bfloat16", ..; empty: the config's
  int64_t file_bytes = int64_t{5'000'000'000};
  bool force = false;  // replaces the folder, if it is there
  // (name, text) of further files, where the tokenizer's folder has none of that name.
  std::vector<std::pair<std::string, std::string>> files = {};
  // Looks at the whole folder before it appears; where it throws, it does not.
  std::function<void(const std::string& staging)> check = {};
};

// Gives a tensor of ours, whole, in any floating type, on the CPU.
using TensorOf = std::function<at::Tensor(const std::string& ours)>;

// Writes a folder that AutoModelForCausalLM loads: config.json, generation_config.json, safetensors
// and the tokenizer's files, byte for byte: those of the folder `tokenizer`, or that one file
// (empty: none). It appears whole or not at all. Before it does, every tensor is read back and
// compared. Rows of a padded vocabulary are left out. Returns how many tensors of theirs there are.
int64_t export_hf(const HfConfig& config, const TensorOf& tensor_of, const std::string& folder,
                  const std::string& tokenizer, const ExportOptions& options, Fs& fs);

// "bfloat16" and its like; E2005 for anything else.
at::ScalarType hf_scalar_type(const std::string& dtype);

// The weights of a checkpoint of ours, "model." + name.
TensorOf tensors_of_checkpoint(const std::string& folder);

}  // namespace troupe
