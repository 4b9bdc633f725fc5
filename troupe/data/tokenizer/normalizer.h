// What a text becomes before it is cut: the normalizers of tokenizer.json.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/data/tokenizer/regex.h"

namespace troupe {

class JsonNode;

class Normalizer {
 public:
  Normalizer() = default;  // changes nothing
  // NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Prepend, Replace, Sequence. Any other
  // type is refused by its name, and so are more than kMostTextSteps.
  explicit Normalizer(const JsonNode& node);
  // SentencePiece's: U+2581 for each space, and, with `prefix`, before a text that is not empty.
  static Normalizer mark_spaces(bool prefix);

  // `text` as it is, or what it became, which `storage` holds. E3201 where that is longer than
  // most_after_steps of the text.
  std::string_view run(std::string_view text, std::string& storage, Regex::Scratch& scratch) const;

  // False: the text is as it should be. True: `out` is what it becomes; a step that finds it longer
  // than `most` may leave off.
  using Step =
      std::function<bool(std::string_view text, std::string& out, Regex::Scratch&, size_t most)>;

 private:
  void add(const JsonNode& node);

  std::string place_;
  std::vector<Step> steps_;
};

// The pattern of a Split or Replace: {"String": s}, which matches itself, or {"Regex": r}.
Regex read_pattern(const JsonNode& node);

}  // namespace troupe
