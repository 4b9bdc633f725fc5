#include "troupe/data/text/build_info.h"

#include <span>

#include "troupe/core/check.h"
#include "troupe/core/config/config.h"
#include "troupe/core/config/json.h"

namespace troupe {

std::optional<BuildInfo> read_build_info(const std::string& prefix, const RemoteAccess& remote) {
  const std::string path = prefix + ".json";
  const DataFilePtr file = find_data_file(path, remote);
  if (!file) return std::nullopt;
  constexpr int64_t kMostBytes = 1 << 20;
  if (file->size() > kMostBytes) {
    fail(Code::kUnreadableData, file->path(), "has", file->size(), "bytes; at most", kMostBytes,
         "are read");
  }
  std::string text(static_cast<size_t>(file->size()), '\0');
  file->read(0, std::as_writable_bytes(std::span(text)));
  BuildInfo info;
  read_config(parse_json(text, path), info);
  return info;
}

void require_pairs(const std::string& prefix, bool wanted, const RemoteAccess& remote) {
  const std::optional<BuildInfo> info = read_build_info(prefix, remote);
  const bool pairs = info && info->pairs;
  if (pairs == wanted) return;
  if (pairs) {
    fail(Code::kBadValue, prefix,
         "holds preference pairs, half of which are rejected answers: set train.loss: dpo, or take "
         "other data");
  }
  fail(Code::kBadValue, prefix,
       "holds no preference pairs, which train.loss: dpo learns from: make them with troupe data "
       "build --format chat --layout preference");
}

void require_tokenizer(const std::string& prefix, const std::string& tokenizer,
                       const RemoteAccess& remote) {
  const std::optional<BuildInfo> info = read_build_info(prefix, remote);
  if (!info || info->tokenizer.empty() || tokenizer.empty() || info->tokenizer == tokenizer) return;
  fail(Code::kOtherTokenizer, prefix + ".json", "the tokens were made with tokenizer",
       info->tokenizer, "; the recipe's is", tokenizer);
}

}  // namespace troupe
