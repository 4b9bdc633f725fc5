#include "troupe/data/build_info.h"

#include <filesystem>

#include "troupe/core/config.h"
#include "troupe/core/file.h"
#include "troupe/core/json.h"

namespace troupe {

std::optional<BuildInfo> read_build_info(const std::string& prefix) {
  const std::string path = prefix + ".json";
  if (!std::filesystem::exists(path)) return std::nullopt;
  constexpr int64_t kMostBytes = 1 << 20;
  BuildInfo info;
  read_config(parse_json(read_file(path, Code::kUnreadableData, kMostBytes), path), info);
  return info;
}

void require_tokenizer(const std::string& prefix, const std::string& tokenizer) {
  const std::optional<BuildInfo> info = read_build_info(prefix);
  if (!info || info->tokenizer.empty() || tokenizer.empty() || info->tokenizer == tokenizer) return;
  fail(Code::kOtherTokenizer, prefix + ".json", "the tokens were made with tokenizer",
       info->tokenizer, "; the recipe's is", tokenizer);
}

}  // namespace troupe
