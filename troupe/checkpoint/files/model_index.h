// A folder of safetensors as model hubs lay them out: model.safetensors alone, or several files
// with model.safetensors.index.json = {"metadata":{"total_size":B},"weight_map":{tensor:file}}.
// File names are what the index says, never guessed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "troupe/checkpoint/files/safetensors.h"

namespace troupe {

class ModelFiles {
 public:
  struct Tensor {
    const SafetensorsFile* file;
    const SafetensorsEntry* entry;
    void read(int64_t from, std::span<std::byte> out) const { file->read(*entry, from, out); }
  };

  // Reads index and headers, no data. One E4003 lists all faults: a tensor that is not in its file,
  // in two files, in a file but not in the index; a file name with a path, a file that is missing
  // or a link out of the folder (core/file/hub_file.h). E4007: pickles alone.
  explicit ModelFiles(std::string folder);

  const std::string& folder() const { return folder_; }
  const std::map<std::string, Tensor, std::less<>>& tensors() const { return tensors_; }
  const Tensor* find(std::string_view name) const;  // nullptr: none
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  void open_single(std::vector<std::string>& faults);
  void open_mapped(const std::string& index, std::vector<std::string>& faults);
  const SafetensorsFile* open(const std::string& name, std::vector<std::string>& faults);

  std::string folder_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Tensor, std::less<>> tensors_;
  std::vector<std::string> warnings_;
};

// Which file holds which tensor, for files of at most `file_bytes` of data (a larger tensor has its
// own), in the order given; names "model-00001-of-00004.safetensors", or "model.safetensors" alone.
struct ModelFilePlan {
  std::vector<std::pair<std::string, std::vector<SafetensorsEntry>>> files;
  std::string index;  // the JSON text; empty for a single file
};
ModelFilePlan plan_model_files(const std::vector<SafetensorsEntry>& tensors, int64_t file_bytes);

}  // namespace troupe
