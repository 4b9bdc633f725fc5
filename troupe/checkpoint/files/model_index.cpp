#include "troupe/checkpoint/files/model_index.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <set>
#include <system_error>

#include "troupe/checkpoint/files/foreign.h"
#include "troupe/core/check.h"
#include "troupe/core/config/json.h"
#include "troupe/core/file/hub_file.h"

namespace troupe {
namespace {

namespace stdfs = std::filesystem;

constexpr char kIndex[] = "model.safetensors.index.json", kSingle[] = "model.safetensors";
constexpr int64_t kLongestIndex = int64_t{128} << 20;  // bytes

bool is_plain_name(const std::string& name) {
  return !name.empty() && name.find_first_of("/\\") == std::string::npos &&
         name.find("..") == std::string::npos && name.find('\0') == std::string::npos;
}

const Yaml* field_of(const Yaml& y, std::string_view name) {
  const auto at = std::ranges::find(y.fields, name, &Yaml::Field::name);
  return at == y.fields.end() ? nullptr : &at->value;
}

void fail_all(const std::string& folder, const std::vector<std::string>& faults) {
  if (faults.empty()) return;
  std::string text = "is not a whole model:";
  for (const std::string& line : faults) text += "\n  " + line;
  fail(Code::kBadModelFile, folder, text);
}

}  // namespace

ModelFiles::ModelFiles(std::string folder) : folder_(std::move(folder)) {
  const std::string index = folder_ + '/' + kIndex;
  std::vector<std::string> faults;
  std::error_code error;
  if (stdfs::exists(index, error)) {
    open_mapped(index, faults);
  } else if (stdfs::exists(folder_ + '/' + kSingle, error)) {
    open_single(faults);
  } else {
    refuse_foreign(folder_);
    refuse_pickles(folder_);
    fail(Code::kBadModelFile, folder_, "holds neither", kSingle, "nor", kIndex);
  }
  fail_all(folder_, faults);
  for (const auto& file : files_) {
    warnings_.insert(warnings_.end(), file->warnings().begin(), file->warnings().end());
  }
}

const ModelFiles::Tensor* ModelFiles::find(std::string_view name) const {
  const auto at = tensors_.find(name);
  return at == tensors_.end() ? nullptr : &at->second;
}

const SafetensorsFile* ModelFiles::open(const std::string& name, std::vector<std::string>& faults) {
  const std::string path = folder_ + '/' + name;
  std::error_code error;
  if (!stdfs::exists(path, error)) {
    faults.push_back("the file " + name + " is missing");
  } else if (leaves_hub_folder(path, folder_)) {
    faults.push_back("the file " + name + " is a link that leaves the folder");
  } else {
    return files_.emplace_back(std::make_unique<SafetensorsFile>(path)).get();
  }
  return nullptr;
}

void ModelFiles::open_single(std::vector<std::string>& faults) {
  const SafetensorsFile* const file = open(kSingle, faults);
  if (file == nullptr) return;
  for (const SafetensorsEntry& entry : file->tensors()) tensors_[entry.name] = {file, &entry};
}

void ModelFiles::open_mapped(const std::string& index, std::vector<std::string>& faults) {
  const std::string text =
      read_hub_file(folder_, kIndex, Code::kUnreadableCheckpoint, kLongestIndex);
  const Yaml document = parse_json(text, index, Code::kBadModelFile);
  const Yaml* const map = field_of(document, "weight_map");
  if (map == nullptr || map->kind != Yaml::Kind::kMap) {
    fail(Code::kBadModelFile, index, "has no object \"weight_map\"");
  }
  std::map<std::string, const SafetensorsFile*> files;
  std::set<std::string_view> mapped;
  for (const Yaml::Field& field : map->fields) {
    mapped.insert(field.name);
    const std::string& name = field.value.text;
    if (!is_plain_name(name)) {
      faults.push_back("tensor " + field.name + " is said to be in \"" + name +
                       "\", which is no plain file name");
    } else if (!files.contains(name)) {
      files[name] = open(name, faults);
    }
  }
  int64_t total = 0;
  for (const auto& [name, file] : files) {
    if (file == nullptr) continue;
    for (const SafetensorsEntry& entry : file->tensors()) {
      total += entry.bytes();
      const auto [at, added] = tensors_.try_emplace(entry.name, Tensor{file, &entry});
      if (!added) {
        faults.push_back("tensor " + entry.name + " is in " + at->second.file->path() + " and in " +
                         file->path());
      }
      if (!mapped.contains(entry.name)) {
        faults.push_back("tensor " + entry.name + " of " + name + " is not in the index");
      }
    }
  }
  for (const Yaml::Field& field : map->fields) {
    const auto at = files.find(field.value.text);
    if (at != files.end() && at->second != nullptr && at->second->find(field.name) == nullptr) {
      faults.push_back("tensor " + field.name + " is not in " + field.value.text);
    }
  }
  const Yaml* const metadata = field_of(document, "metadata");
  const Yaml* const said = metadata == nullptr ? nullptr : field_of(*metadata, "total_size");
  if (said != nullptr && said->text != std::to_string(total)) {
    warnings_.push_back(index + ": total_size is " + said->text + ", the files hold " +
                        std::to_string(total) + " bytes");
  }
}

ModelFilePlan plan_model_files(const std::vector<SafetensorsEntry>& tensors, int64_t file_bytes) {
  ModelFilePlan out;
  int64_t filled = 0, total = 0;
  for (const SafetensorsEntry& tensor : tensors) {
    const int64_t bytes = TensorBox{"", tensor.element, Box::whole(tensor.shape)}.bytes();
    if (out.files.empty() || (filled > 0 && filled + bytes > file_bytes)) {
      out.files.emplace_back(), filled = 0;
    }
    out.files.back().second.push_back(tensor);
    filled += bytes;
    total += bytes;
  }
  if (out.files.size() <= 1) {
    if (out.files.empty()) out.files.emplace_back();
    out.files[0].first = kSingle;
    return out;
  }
  std::map<std::string, std::string> map;
  for (size_t i = 0; i < out.files.size(); ++i) {
    char name[64];
    std::snprintf(name, sizeof(name), "model-%05d-of-%05d.safetensors", static_cast<int>(i + 1),
                  static_cast<int>(out.files.size()));
    out.files[i].first = name;
    for (const SafetensorsEntry& tensor : out.files[i].second) map[tensor.name] = name;
  }
  out.index = "{\n  \"metadata\": {\n    \"total_size\": " + std::to_string(total) +
              "\n  },\n  \"weight_map\": {";
  const char* separator = "\n";
  for (const auto& [tensor, file] : map) {
    out.index +=
        std::exchange(separator, ",\n") + ("    " + to_text(tensor) + ": " + to_text(file));
  }
  out.index += "\n  }\n}\n";
  return out;
}

}  // namespace troupe
