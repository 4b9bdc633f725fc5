#include "troupe/data/tokenizer/json_node.h"

#include <algorithm>

#include "troupe/core/check.h"
#include "troupe/core/text/text.h"
#include "troupe/core/text/utf8.h"

namespace troupe {
namespace {

using nlohmann::json;

constexpr size_t kDepth = 64;
constexpr size_t kMostOfMessage = 300;  // which quotes the document
constexpr int64_t kValues = 1000000;
constexpr size_t kIntegerDigits = 18;  // what an int64 holds for certain

enum class Part { kRest, kVocab, kMerges };

// Builds the document, and sends what is in model.vocab and model.merges elsewhere. Nothing here
// is recursive: a file may nest as it likes before it is refused.
class Builder : public nlohmann::json_sax<json> {
 public:
  Builder(const std::string& file, bool whole) : file_(file), whole_(whole) {}

  TokenizerJson take() { return std::move(out_); }

  bool null() override { return value(nullptr); }
  bool boolean(bool v) override { return value(v); }
  bool number_integer(number_integer_t v) override { return number(v, v); }
  bool number_unsigned(number_unsigned_t v) override {
    return number(v, static_cast<int64_t>(std::min<uint64_t>(v, INT64_MAX)));
  }
  bool number_float(number_float_t v, const string_t& text) override {
    if (part_ == Part::kVocab) refuse("model.vocab", "has the id", text, "for", quoted(key_));
    return value(v);
  }
  bool binary(binary_t&) override { return false; }
  bool key(string_t& name) override {
    key_ = std::move(name);
    if (part_ != Part::kVocab) names_.back() = key_;
    return true;
  }

  bool string(string_t& text) override {
    if (part_ == Part::kMerges) return merge_text(text);
    return value(std::move(text));
  }

  bool start_object(size_t) override {
    if (part_ != Part::kRest) refuse(path(), "holds an object where", wanted());
    if (is_of_model("vocab")) {
      part_ = Part::kVocab;
      return out_.has_vocab = true;
    }
    return open(json::object());
  }

  bool start_array(size_t) override {
    if (part_ == Part::kMerges && !in_pair_) {
      pair_.clear();
      return in_pair_ = true;
    }
    if (part_ != Part::kRest) refuse(path(), "holds a list where", wanted());
    if (is_of_model("merges")) {
      part_ = Part::kMerges;
      return out_.has_merges = true;
    }
    return open(json::array());
  }

  bool end_object() override {
    if (part_ == Part::kVocab) {
      part_ = Part::kRest;
    } else {
      close();
    }
    return true;
  }

  bool end_array() override {
    if (in_pair_) {
      in_pair_ = false;
      add_merge();
    } else if (part_ == Part::kMerges) {
      part_ = Part::kRest;
    } else {
      close();
    }
    return true;
  }

  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& e) override {
    const std::string what = e.what();  // "[json.exception.parse_error.101] parse error at ..."
    fail(Code::kBadJson, file_, what.substr(what.find(']') + 2, kMostOfMessage));
  }

 private:
  template <class... Args>
  [[noreturn]] void refuse(const Args&... what) const {
    fail(Code::kBadTokenizer, file_, what...);
  }
  static std::string quoted(const std::string& text) { return to_text(text); }
  const char* wanted() const {
    return part_ == Part::kVocab ? "an id is expected" : "\"a b\" or [\"a\", \"b\"] is expected";
  }

  std::string path() const {
    if (part_ == Part::kVocab) return "model.vocab";
    if (part_ == Part::kMerges) return "model.merges";
    std::string out;
    for (const std::string& name : names_) out += (out.empty() || name.empty() ? "" : ".") + name;
    return out;
  }

  // What opens now is model.`name`. (No path is put together: it may be as long as the file.)
  bool is_of_model(const char* name) const {
    return !whole_ && names_.size() == 2 && names_[0] == "model" && names_[1] == name;
  }

  bool number(json v, int64_t id) {
    if (part_ != Part::kVocab) return value(std::move(v));
    out_.vocab.emplace_back(std::move(key_), id);
    return true;
  }

  bool value(json v) {
    if (part_ != Part::kRest) refuse(path(), "holds a", v.type_name(), "where", wanted());
    place(std::move(v));
    return true;
  }

  json* place(json v) {
    if (++values_ > kValues) refuse("more than", kValues, "values");
    if (open_.empty()) return &(out_.document = std::move(v));
    json& parent = *open_.back();
    if (parent.is_array()) return &parent.emplace_back(std::move(v));
    const auto [at, fresh] = parent.get_ref<json::object_t&>().emplace(key_, std::move(v));
    if (!fresh) refuse(path(), "is given twice");
    return &at->second;
  }

  bool open(json empty) {
    if (open_.size() == kDepth) fail(Code::kBadJson, file_, "nested deeper than", kDepth);
    // The children of a list move when it grows, but only its last one is ever open.
    open_.push_back(place(std::move(empty)));
    names_.emplace_back();
    return true;
  }
  void close() {
    open_.pop_back();
    names_.pop_back();
  }

  bool merge_text(std::string& text) {
    if (in_pair_) return pair_.push_back(std::move(text)), true;
    if (text.starts_with("#version")) return true;
    pair_.clear();
    for (size_t at = 0; at <= text.size();) {
      const size_t end = std::min(text.find(' ', at), text.size());
      pair_.push_back(text.substr(at, end - at));
      at = end + 1;
    }
    add_merge();
    return true;
  }
  void add_merge() {
    if (pair_.size() != 2) {
      refuse("model.merges entry", out_.merges.size(), "has", pair_.size(),
             "parts, 2 are expected");
    }
    if (pair_[0].empty() || pair_[1].empty()) {
      refuse("model.merges entry", out_.merges.size(), "has an empty part");
    }
    out_.merges.emplace_back(std::move(pair_[0]), std::move(pair_[1]));
  }

  const std::string& file_;
  const bool whole_;  // no part of the document goes elsewhere
  TokenizerJson out_;
  std::vector<json*> open_;
  std::vector<std::string> names_;  // the last key of each open object; "" in lists
  std::string key_;
  Part part_ = Part::kRest;
  bool in_pair_ = false;
  std::vector<std::string> pair_;
  int64_t values_ = 0;
};

}  // namespace

TokenizerJson parse_tokenizer_json(const std::string& text, const std::string& file) {
  Builder builder(file, false);
  json::sax_parse(text, &builder);
  return builder.take();
}

json parse_small_json(const std::string& text, const std::string& file) {
  Builder builder(file, true);
  json::sax_parse(text, &builder);
  return builder.take().document;
}

bool JsonNode::has(const std::string& key) const {
  const auto at = value_.find(key);
  return at != value_.end() && !at->is_null();
}

JsonNode JsonNode::at(const std::string& key) const {
  if (!value_.is_object()) refuse("is not an object");
  const auto found = value_.find(key);
  if (found == value_.end()) refuse("has no field", to_text(key));
  return {*found, file_, where_.empty() ? key : where_ + "." + key};
}

std::vector<JsonNode> JsonNode::items(const std::string& key) const {
  const JsonNode list = at(key);
  if (!list.is_list()) list.refuse("is not a list");
  std::vector<JsonNode> out;
  for (const json& item : list.value_) {
    out.emplace_back(item, file_, list.where_ + '[' + std::to_string(out.size()) + ']');
  }
  return out;
}

std::vector<std::pair<std::string, JsonNode>> JsonNode::fields() const {
  if (!value_.is_object()) refuse("is not an object");
  std::vector<std::pair<std::string, JsonNode>> out;
  for (const auto& [name, value] : value_.items()) out.emplace_back(name, at(name));
  return out;
}

std::string JsonNode::text() const {
  if (!value_.is_string()) refuse("is not a string");
  return value_.get<std::string>();
}

std::string JsonNode::character(const std::string& key) const {
  const JsonNode node = at(key);
  std::string out = node.text();
  if (out.empty() || utf8_at(out, 0).bytes != out.size()) {
    node.refuse("is \"" + out + "\"; one character is expected");
  }
  return out;
}

int64_t JsonNode::integer() const {
  if (!value_.is_number_integer() || value_.dump().size() > kIntegerDigits) {
    refuse("is not an integer");
  }
  return value_.get<int64_t>();
}

bool JsonNode::flag(const std::string& key) const {
  const JsonNode node = at(key);
  if (!node.value_.is_boolean()) node.refuse("is neither true nor false");
  return node.value_.get<bool>();
}

void JsonNode::only(std::initializer_list<std::string_view> known) const {
  for (const auto& [name, node] : fields()) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      refuse("has a field that is not known,", to_text(name));
    }
  }
}

void JsonNode::refuse_text(const std::string& what) const {
  fail(Code::kBadTokenizer, file_, what);
}

}  // namespace troupe
