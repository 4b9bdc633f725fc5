#include "troupe/data/tokenizer/chat_template.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>

#include "troupe/core/check.h"
#include "troupe/core/file/file.h"
#include "troupe/core/text/utf8.h"
#include "troupe/data/tokenizer/json_node.h"
#include "troupe/data/tokenizer/tokenizer.h"

namespace troupe {
namespace {

constexpr std::string_view kJinja = ".jinja";

// The folder of what open_tokenizer takes; empty for a word, as bytes.
std::string folder_of(const std::string& tokenizer) {
  const FileKind kind = file_kind(tokenizer);
  if (kind == FileKind::kNothing) return {};
  const std::filesystem::path path(tokenizer);
  if (kind == FileKind::kFolder) return path.string();
  const std::string parent = path.parent_path().string();
  return parent.empty() ? "." : parent;
}

std::string in_folder(const std::string& folder, const std::string& name) {
  return folder == "." ? name : (std::filesystem::path(folder) / name).string();
}

std::string template_text(const std::string& path) {
  std::string text = read_file(path, Code::kBadTokenizer, kLongestTokenizerFile);
  if (!is_utf8(text)) fail(Code::kBadTokenizer, path, "is not UTF-8 text");
  return text;
}

nlohmann::json small_json(const std::string& path) {
  return parse_small_json(read_file(path, Code::kUnreadableData, kLongestTokenizerFile), path);
}

// Those of the key chat_template; none where it is not there.
std::vector<NamedText> templates_in(const std::string& path) {
  const nlohmann::json document = small_json(path);
  const JsonNode root(document, path, "");
  if (!root.is_map() || !root.has("chat_template")) return {};
  const JsonNode found = root.at("chat_template");
  if (found.is_text()) return {{"default", found.text()}};
  std::vector<NamedText> out;
  if (found.is_map()) {
    for (const auto& [name, text] : found.fields()) out.push_back({name, text.text()});
  } else {
    for (const JsonNode& item : root.items("chat_template")) {
      out.push_back({item.text("name"), item.text("template")});
    }
  }
  if (out.empty()) found.refuse("is empty");
  return out;
}

// Templates in files of their own, which come before those of a config.
ModelTemplate jinja_files(const std::string& folder) {
  ModelTemplate out;
  const std::string own = in_folder(folder, "chat_template.jinja");
  if (is_there(own)) {
    out.file = own;
    out.templates.push_back({"default", template_text(own)});
  }
  const std::string more = in_folder(folder, "additional_chat_templates");
  if (file_kind(more) != FileKind::kFolder) return out;
  for (const std::string& name : names_in(more)) {
    if (!name.ends_with(kJinja)) continue;
    if (out.file.empty()) out.file = more;
    out.templates.push_back(
        {name.substr(0, name.size() - kJinja.size()), template_text(in_folder(more, name))});
  }
  return out;
}

ModelTemplate templates_of(const std::string& folder) {
  ModelTemplate out = jinja_files(folder);
  for (const char* name : {"tokenizer_config.json", "chat_template.json"}) {
    const std::string path = in_folder(folder, name);
    if (!out.templates.empty() || !is_there(path)) continue;
    out.file = path;
    out.templates = templates_in(path);
  }
  return out;
}

// The names that transformers hands to a template.
void add_tokens(const std::string& path, std::vector<NamedText>& out) {
  constexpr std::array kNames{"bos_token", "eos_token", "unk_token", "sep_token",
                              "pad_token", "cls_token", "mask_token"};
  if (!is_there(path)) return;
  const nlohmann::json document = small_json(path);
  const JsonNode root(document, path, "");
  if (!root.is_map()) root.refuse("is not an object");
  for (const char* name : kNames) {
    if (!root.has(name)) continue;
    const JsonNode token = root.at(name);
    const std::string text = token.is_map() ? token.text("content") : token.text();
    const auto known = std::ranges::find(out, name, &NamedText::name);
    if (known == out.end()) out.push_back({name, text});
  }
}

void finish(ModelTemplate& found, const std::string& folder) {
  constexpr size_t kMostTemplateBytes = size_t{256} << 10;
  size_t bytes = 0;
  for (const NamedText& one : found.templates) bytes += one.text.size();
  if (bytes > kMostTemplateBytes) {
    fail(Code::kBadTokenizer, found.file, "has", bytes, "bytes of chat templates; at most",
         kMostTemplateBytes, "are read");
  }
  if (folder.empty()) return;
  add_tokens(in_folder(folder, "tokenizer_config.json"), found.tokens);
  add_tokens(in_folder(folder, "special_tokens_map.json"), found.tokens);
}

std::string names_of(const ModelTemplate& found) {
  std::string out;
  for (const NamedText& one : found.templates) out += (out.empty() ? "" : ", ") + one.name;
  return out;
}

ModelTemplate of_file(const std::string& path) {
  if (!path.ends_with(".json"))
    return {.file = path, .templates = {{"default", template_text(path)}}};
  return {.file = path, .templates = templates_in(path)};
}

}  // namespace

std::optional<ModelTemplate> find_model_template(const std::string& tokenizer) {
  const std::string folder = folder_of(tokenizer);
  if (folder.empty()) return std::nullopt;
  ModelTemplate found = templates_of(folder);
  if (found.templates.empty()) return std::nullopt;
  finish(found, folder);
  return found;
}

ModelTemplate open_model_template(const std::string& name, const std::string& tokenizer) {
  const FileKind kind = file_kind(name);
  if (kind == FileKind::kNothing) {
    std::optional<ModelTemplate> found = find_model_template(tokenizer);
    if (!found) {
      fail(Code::kBadValue, "template", name, "is no file and no folder, and", tokenizer,
           "has no chat template beside it");
    }
    if (std::ranges::find(found->templates, name, &NamedText::name) == found->templates.end()) {
      fail(Code::kBadValue, "template", name, "is no file, no folder and no template of",
           found->file + "; it has", names_of(*found));
    }
    found->chosen = name;
    return *std::move(found);
  }
  ModelTemplate found = kind == FileKind::kFolder ? templates_of(name) : of_file(name);
  if (found.templates.empty()) {
    fail(Code::kBadValue, "template", name,
         "has no chat template: chat_template.jinja, chat_template.json or chat_template in "
         "tokenizer_config.json");
  }
  finish(found, folder_of(tokenizer));
  return found;
}

}  // namespace troupe
