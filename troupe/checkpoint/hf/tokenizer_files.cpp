#include "troupe/checkpoint/hf/tokenizer_files.h"

#include "troupe/core/check.h"
#include "troupe/core/file/file.h"
#include "troupe/core/file/hub_file.h"

namespace troupe {
namespace {

constexpr int64_t kLongestVocabulary = int64_t{256} << 20, kLongestConfig = int64_t{16} << 20;

NamedTexts files_of_folder(const std::string& folder) {
  NamedTexts out;
  std::string faults;
  Code code = Code::kBadModelFile;
  const auto take = [&](const char* name, int64_t limit) {
    try {
      if (!is_there(folder + '/' + name)) return;
      out.emplace_back(name, read_hub_file(folder, name, Code::kBadModelFile, limit));
    } catch (const Error& error) {
      if (faults.empty()) code = error.code();
      faults += (faults.empty() ? "" : "\n") + std::string(error.what());
    }
  };
  for (const char* name : {"tokenizer.json", "tokenizer.model"}) take(name, kLongestVocabulary);
  for (const char* name : kBesideTokenizer) take(name, kLongestConfig);
  if (!faults.empty()) throw Error(faults, code);
  return out;
}

}  // namespace

NamedTexts tokenizer_files(const std::string& from) {
  if (from.empty()) return {};
  if (file_kind(from, Code::kUnreadableCheckpoint) == FileKind::kFolder) {
    return files_of_folder(from);
  }
  const char* const name = from.ends_with(".model") ? "tokenizer.model" : "tokenizer.json";
  return {{name, read_file(from, Code::kUnreadableCheckpoint, kLongestVocabulary)}};
}

}  // namespace troupe
