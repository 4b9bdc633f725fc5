#include "troupe/checkpoint/tensors/tensor_set.h"

#include <filesystem>
#include <system_error>

#include "troupe/checkpoint/files/base.h"
#include "troupe/checkpoint/files/foreign.h"
#include "troupe/checkpoint/files/model_index.h"
#include "troupe/checkpoint/files/reader.h"
#include "troupe/checkpoint/folder/find_resume.h"
#include "troupe/core/check.h"
#include "troupe/core/file/file.h"

namespace troupe {
namespace {

namespace stdfs = std::filesystem;

class CheckpointTensors : public TensorSet {
 public:
  explicit CheckpointTensors(const std::string& folder)
      : reader_(folder, with_base(check_complete(folder), folder)) {
    for (const auto& [name, tensor] : reader_.tensors()) {
      tensors_.emplace(name, Tensor{tensor.element, tensor.global});
    }
  }

  std::string_view kind() const override { return "checkpoint"; }
  std::string place() const override { return reader_.folder(); }
  const Manifest* manifest() const override { return &reader_.manifest(); }
  std::vector<std::string> warnings() const override {
    std::vector<std::string> out;
    for (const std::string& file : reader_.extra_files()) {
      out.push_back(reader_.folder() + '/' + file + " is in no manifest");
    }
    return out;
  }
  std::vector<std::byte> read(const std::string& name) const override {
    const CheckpointReader::Tensor& tensor = *reader_.find(name);
    const Box box = Box::whole(tensor.global);
    std::vector<std::byte> out(static_cast<size_t>(tensors_.at(name).bytes()));
    reader_.read(tensor, name, box, out, Faults());
    return out;
  }

 private:
  CheckpointReader reader_;
};

class ModelTensors : public TensorSet {
 public:
  explicit ModelTensors(const std::string& folder) : files_(folder) {
    for (const auto& [name, tensor] : files_.tensors()) {
      tensors_.emplace(name, Tensor{tensor.entry->element, tensor.entry->shape});
    }
  }

  std::string_view kind() const override { return "model folder"; }
  std::string place() const override { return files_.folder(); }
  std::vector<std::string> warnings() const override { return files_.warnings(); }
  std::vector<std::byte> read(const std::string& name) const override {
    const ModelFiles::Tensor& tensor = *files_.find(name);
    std::vector<std::byte> out(static_cast<size_t>(tensor.entry->bytes()));
    tensor.read(0, out);
    return out;
  }

 private:
  ModelFiles files_;
};

class FileTensors : public TensorSet {
 public:
  explicit FileTensors(const std::string& path) : file_(path) {
    for (const SafetensorsEntry& entry : file_.tensors()) {
      tensors_.emplace(entry.name, Tensor{entry.element, entry.shape});
    }
  }

  std::string_view kind() const override { return "safetensors file"; }
  std::string place() const override { return file_.path(); }
  std::vector<std::string> warnings() const override { return file_.warnings(); }
  std::vector<std::byte> read(const std::string& name) const override {
    const SafetensorsEntry& entry = *file_.find(name);
    std::vector<std::byte> out(static_cast<size_t>(entry.bytes()));
    file_.read(entry, 0, out);
    return out;
  }

 private:
  SafetensorsFile file_;
};

bool is_model_folder(const std::string& folder) {
  return is_there(folder + "/model.safetensors") ||
         is_there(folder + "/model.safetensors.index.json");
}

}  // namespace

bool holds_tensors(const std::string& path) {
  std::error_code error;
  if (!stdfs::is_directory(path, error)) return path.ends_with(".safetensors") && is_there(path);
  return is_there(path + '/' + kManifestName) || is_model_folder(path) || !steps_in(path).empty();
}

std::unique_ptr<TensorSet> open_tensors(const std::string& path) {
  std::error_code error;
  if (!stdfs::is_directory(path, error)) return std::make_unique<FileTensors>(path);
  if (is_there(path + '/' + kManifestName)) return std::make_unique<CheckpointTensors>(path);
  if (is_model_folder(path)) return std::make_unique<ModelTensors>(path);
  refuse_foreign(path);
  refuse_pickles(path);
  const auto point = find_resume(path, {.kind = Resume::kMust});
  return std::make_unique<CheckpointTensors>(point->folder);
}

}  // namespace troupe
