// A model's own way to write chats: the Jinja templates beside its tokenizer, and the tokens that
// they name. What they write is rendered by data/text/chat_renderer.h.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace troupe {

struct NamedText {
  std::string name, text;
  static void visit(auto& c, auto&& f) {
    f("name", c.name);
    f("text", c.text);
  }
  bool operator==(const NamedText&) const = default;
};

struct ModelTemplate {
  std::string file;                  // where the templates were found
  std::vector<NamedText> templates;  // a template that stands alone is called "default"
  // The one that writes every chat. Empty: of several "tool_use" where a chat has tools, else
  // "default".
  std::string chosen = {};
  std::vector<NamedText> tokens = {};  // bos_token and its like, by these names
  static void visit(auto& c, auto&& f) {
    f("file", c.file);
    f("templates", c.templates);
    f("chosen", c.chosen);
    f("tokens", c.tokens);
  }
  bool operator==(const ModelTemplate&) const = default;
};

// The template of a tokenizer's folder, as transformers finds it: chat_template.jinja (with those
// in additional_chat_templates/), else "chat_template" of tokenizer_config.json, a text or a list of
// named ones, else chat_template.json. Nothing: the folder has none. `tokenizer` is what
// open_tokenizer takes. E3201 for a file that is malformed, is no UTF-8 or has over 256 KiB of
// templates.
std::optional<ModelTemplate> find_model_template(const std::string& tokenizer);

// The template that `name` says: a folder's, that of a file (Jinja, or one of the two JSON files),
// or one of several in the tokenizer's folder by its name. The tokens are the tokenizer's. E2005
// where there is none.
ModelTemplate open_model_template(const std::string& name, const std::string& tokenizer);

}  // namespace troupe
