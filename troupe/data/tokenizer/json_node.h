// JSON of tokenizer files: vocabulary and merges, which are long, as plain lists; the rest as
// values that know where they stand, so that a fault names its place. For the sources of this
// folder alone.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <initializer_list>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe {

// A value of the document. Every fault is E3101 "FILE: E3101 model.vocab ...".
class JsonNode {
 public:
  JsonNode(const nlohmann::json& value, const std::string& file, std::string where)
      : value_(value), file_(file), where_(std::move(where)) {}

  template <class... Args>
  [[noreturn]] void refuse(const Args&... what) const {
    std::ostringstream os;
    os << (where_.empty() ? "the document" : where_);
    ((os << ' ' << what), ...);
    refuse_text(os.str());
  }

  bool has(const std::string& key) const;  // there, and not null
  JsonNode at(const std::string& key) const;
  std::vector<JsonNode> items(const std::string& key) const;
  std::vector<std::pair<std::string, JsonNode>> fields() const;

  // Where it stands, as a fault says it.
  std::string place() const { return file_ + ": " + (where_.empty() ? "the document" : where_); }
  bool is_text() const { return value_.is_string(); }
  bool is_list() const { return value_.is_array(); }
  bool is_map() const { return value_.is_object(); }
  std::string text() const;
  int64_t integer() const;
  bool is_zero() const { return value_.is_number() && value_.get<double>() == 0; }

  std::string text(const std::string& key) const { return at(key).text(); }
  std::string character(const std::string& key) const;  // a text of one, as UTF-8
  bool flag(const std::string& key) const;
  bool flag(const std::string& key, bool absent) const { return has(key) ? flag(key) : absent; }

  // Refuses any other field by its name: it may change what the tokenizer says.
  void only(std::initializer_list<std::string_view> known) const;

 private:
  [[noreturn]] void refuse_text(const std::string& what) const;

  const nlohmann::json& value_;
  const std::string& file_;
  std::string where_;
};

struct TokenizerJson {
  nlohmann::json document;                                  // without what follows
  std::vector<std::pair<std::string, int64_t>> vocab;       // model.vocab, in written order
  std::vector<std::pair<std::string, std::string>> merges;  // model.merges; "#version" left out
  bool has_vocab = false, has_merges = false;
};

// Refused: malformed text (also bad UTF-8), nesting over 64, a name given twice, more than a
// million values beside vocabulary and merges.
TokenizerJson parse_tokenizer_json(const std::string& text, const std::string& file);

// A small document of another file.
nlohmann::json parse_small_json(const std::string& text, const std::string& file);

}  // namespace troupe
