// Cutting a text into the pieces that are encoded one by one: the pre-tokenizers of tokenizer.json.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/data/tokenizer/regex.h"

namespace troupe {

class JsonNode;

struct Cut {
  size_t begin = 0, end = 0;
};

// A text and its pieces; none is empty. A step may rewrite the text.
struct Pieces {
  // One piece. `at_start`: the text begins where the whole input does.
  void reset(std::string_view all, bool is_at_start);
  std::string_view piece(const Cut& cut) const {
    return text.substr(cut.begin, cut.end - cut.begin);
  }

  std::string_view text;
  bool at_start = true;
  std::vector<Cut> cuts;
  size_t most = 0;        // bytes that a step may make of the text
  std::string storage;    // of the text, once a step rewrote it
  std::vector<Cut> next;  // scratch of the steps
};

class PreTokenizer {
 public:
  PreTokenizer() = default;  // all of it is one piece
  // Split, ByteLevel, Digits, Metaspace, Whitespace, WhitespaceSplit, Punctuation,
  // CharDelimiterSplit, Sequence. Any other type is refused by its name, and so are a step behind
  // ByteLevel, which would see bytes as characters of another alphabet, and more than
  // kMostTextSteps.
  explicit PreTokenizer(const JsonNode& node);

  // One pattern, each match a piece, and the rest between them too; then bytes.
  static PreTokenizer pattern(const std::string& regex, const std::string& place);

  // The pieces are bytes, not characters, to the model.
  bool byte_level() const { return byte_level_; }
  // E3201 where a step makes more of the text than most_after_steps.
  void run(Pieces& pieces, Regex::Scratch& scratch) const;

  using Step = std::function<void(Pieces&, Regex::Scratch&)>;

 private:
  void add(const JsonNode& node);
  void add_byte_level(const JsonNode& node);

  std::string place_;
  std::vector<Step> steps_;
  bool byte_level_ = false;
};

}  // namespace troupe
