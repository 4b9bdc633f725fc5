#include "troupe/data/tokenizer/chat_template.h"

#include <filesystem>

#include "troupe/core/file/file.h"
#include "troupe/data/tokenizer/json_node.h"
#include "troupe/data/tokenizer/tokenizer.h"

namespace troupe {

std::string chat_template_file(const std::string& tokenizer) {
  const FileKind kind = file_kind(tokenizer);
  if (kind == FileKind::kNothing) return {};  // a word
  const std::filesystem::path path(tokenizer);
  const std::filesystem::path folder = kind == FileKind::kFolder ? path : path.parent_path();
  std::string own = (folder / "chat_template.jinja").string();
  if (is_there(own)) return own;
  std::string config = (folder / "tokenizer_config.json").string();
  if (!is_there(config)) return {};
  const std::string text = read_file(config, Code::kUnreadableData, kLongestTokenizerFile);
  return parse_small_json(text, config).contains("chat_template") ? config : std::string();
}

}  // namespace troupe
