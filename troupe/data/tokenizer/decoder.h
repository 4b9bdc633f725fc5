// Tokens back to text: the decoders of tokenizer.json.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace troupe {

class JsonNode;

class Decoder {
 public:
  Decoder() = default;  // the tokens with spaces between them
  // ByteLevel, ByteFallback, Fuse, Metaspace, Replace, Strip, Sequence. Any other type is refused
  // by its name, and so are more than kMostTextSteps.
  explicit Decoder(const JsonNode& node);
  static Decoder byte_level();

  // A character may be spread over tokens; with only_bytes nothing else happens to them.
  bool joins_bytes() const { return joins_bytes_; }
  bool only_bytes() const { return joins_bytes_ && steps_.size() == 1; }
  // A run of byte tokens is text or not as a whole.
  bool joins_byte_tokens() const { return joins_byte_tokens_; }
  // E3201 where a step makes more of the tokens than most_after_steps.
  std::string run(std::vector<std::string> tokens) const;

  // `most`: the bytes that may become of them.
  using Step = std::function<void(std::vector<std::string>&, size_t most)>;

 private:
  void add(const JsonNode& node);

  std::vector<Step> steps_;
  bool joined_ = false, joins_bytes_ = false, joins_byte_tokens_ = false;
};

// What a token says in bytes: those of its alphabet, or of its spelling where it has another one.
std::string bytes_of_token(const std::string& token);

// The byte of "<0xE2>", or -1.
int byte_of_token(const std::string& token);

}  // namespace troupe
