// Text to ids and back. Any thread may use one tokenizer at any time; what it says depends on its
// arguments alone.
//
//   auto tokenizer = open_tokenizer("tokenizer.json");          // tokenizers.h
//   std::vector<TokenId> ids = tokenizer->encode("some text");
//   std::string text = tokenizer->decode(ids);
//
// Text is UTF-8. In bytes that are not, each maximal part of an invalid sequence becomes
// U+FFFD before anything else sees it (the bytes tokenizer alone takes them as they are). NUL is a
// character as any other.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/core/file/hash.h"

namespace troupe {

using TokenId = int32_t;

inline constexpr int64_t kLongestTokenizerFile = int64_t{256} << 20;  // more is refused unread

// What files may ask for, so that none is a bomb: memory in proportion to the file, time and memory
// in proportion to the text. The longest token of a published vocabulary is 512 spaces.
inline constexpr size_t kLongestToken = 1024;  // bytes
inline constexpr size_t kMostTextSteps = 64;   // normalizers, or pre-tokenizers, or decoders
// Bound of the ids of a vocabulary of `tokens` tokens: missing ids take memory too.
constexpr int64_t most_ids(size_t tokens) {
  return 4 * static_cast<int64_t>(tokens) + (int64_t{1} << 16);
}
// The most bytes that a text of `bytes` may become on its way to ids, or back.
constexpr size_t most_after_steps(size_t bytes) {
  return 64 * bytes + (size_t{64} << 10);
}

struct SpecialIds {  // -1: there is none
  TokenId bos = -1;  // before a text
  TokenId eos = -1;  // after it
  TokenId pad = -1;
  TokenId unk = -1;  // for what the vocabulary cannot spell
};

struct AddedToken {
  TokenId id = 0;
  std::string content;
  bool special = false;      // left out by skip_special; read as plain text by special_as_text
  bool single_word = false;  // only where no letter, digit or underscore touches it
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // and that after it
  bool normalized = true;    // looked for in the normalized text, not in the raw one
};

struct EncodeOptions {
  bool add_special = true;       // what the file puts around a text, such as <s> before it
  bool special_as_text = false;  // a special token spelled out in the text is no token: for text
                                 // from strangers, who must not end a document
};

struct DecodeOptions {
  bool skip_special = false;  // leave special tokens out
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options = {}) const {
    std::vector<TokenId> ids;
    append(text, options, ids);
    return ids;
  }
  // The same, behind what `ids` holds already.
  virtual void append(std::string_view text, const EncodeOptions& options,
                      std::vector<TokenId>& ids) const = 0;

  // Valid UTF-8 for any ids; those outside the vocabulary say nothing.
  std::string decode(std::span<const TokenId> ids, const DecodeOptions& options = {}) const {
    return text_of(ids, options);
  }

  virtual int64_t vocab_size() const = 0;                  // the largest id, and one
  virtual std::string token(TokenId id) const = 0;         // its spelling; "" outside
  virtual TokenId find(std::string_view token) const = 0;  // its id, by that spelling; -1: none
  virtual SpecialIds special() const = 0;
  virtual std::vector<AddedToken> added_tokens() const { return {}; }  // by id
  virtual std::string_view kind() const = 0;  // "tokenizer.json", "sentencepiece", ...
  // Hash of the files' bytes, which data made with this tokenizer records.
  virtual Hash128 fingerprint() const = 0;
  // What the file says and is not obeyed, because it means nothing here: a line each, for a log.
  virtual std::vector<std::string> warnings() const { return {}; }

 private:
  friend class TextStream;
  virtual std::string text_of(std::span<const TokenId> ids, const DecodeOptions& options) const = 0;
  // Whether ids that follow may still change the end of the text of these.
  virtual bool open_ended(std::span<const TokenId> ids, const DecodeOptions& options) const = 0;
};

// Ids to text as they come, for printing while a model writes. Never half a character: what add()
// and finish() return, put together, is decode() of all ids, and each part is valid UTF-8.
class TextStream {
 public:
  explicit TextStream(const Tokenizer& tokenizer, const DecodeOptions& options = {})
      : tokenizer_(tokenizer), options_(options) {}

  std::string add(TokenId id);  // the text that is certain now
  std::string finish();         // the rest; the stream is new again

 private:
  std::string flush();

  const Tokenizer& tokenizer_;
  const DecodeOptions options_;
  // Decoders treat the beginning of a text in their own ways (a first space goes), so what comes is
  // decoded behind the ids of the first words, whose text is cut off again.
  std::vector<TokenId> ids_;
  size_t first_ids_ = 0;
  size_t first_bytes_ = 0;
};

// For each id the text that it adds to the decoded whole. It is empty where the id's text is certain
// with a later one alone, as half a character's.
std::vector<std::string> spelled(const Tokenizer& tokenizer, std::span<const TokenId> ids);

// `vocab` made divisible, as the output matrix of a model wants it: by 128 x tensor parallel ranks.
inline int64_t padded_vocab(int64_t vocab, int64_t multiple) {
  return (vocab + multiple - 1) / multiple * multiple;
}

// Throws E3103 where an id of the tokenizer is none of the model's.
void require_fits(const Tokenizer& tokenizer, int64_t model_vocab, const std::string& place);

}  // namespace troupe
