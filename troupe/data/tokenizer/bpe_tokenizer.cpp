#include "troupe/data/tokenizer/bpe_tokenizer.h"

#include <algorithm>

#include "troupe/core/check.h"
#include "troupe/core/text/text.h"
#include "troupe/core/text/utf8.h"

namespace troupe {
namespace {

constexpr size_t kMostBytes = size_t{1} << 30;  // of a text

}  // namespace

struct BpeTokenizer::Scratch {
  Bpe::Scratch bpe;
  Regex::Scratch regex;
  Pieces pieces;
  std::string normalized;
  bool as_text = false;
};

// A call's own scratch, for as long as it runs.
class BpeTokenizer::Lease {
 public:
  explicit Lease(const BpeTokenizer& owner) : owner_(owner) {
    const std::lock_guard lock(owner_.mutex_);
    if (owner_.idle_.empty()) {
      scratch_ = std::make_unique<Scratch>();
    } else {
      scratch_ = std::move(owner_.idle_.back());
      owner_.idle_.pop_back();
    }
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  ~Lease() {
    const std::lock_guard lock(owner_.mutex_);
    owner_.idle_.push_back(std::move(scratch_));
  }
  Scratch& operator*() const { return *scratch_; }

 private:
  const BpeTokenizer& owner_;
  std::unique_ptr<Scratch> scratch_;
};

BpeTokenizer::BpeTokenizer(BpeTokenizerParts parts)
    : bpe_(std::move(parts.bpe)), parts_(std::move(parts)), is_special_(parts_.tokens.size()) {
  by_token_.reserve(parts_.tokens.size());
  for (size_t id = 0; id < parts_.tokens.size(); ++id) {
    if (!parts_.tokens[id].empty()) by_token_.add(parts_.tokens[id], static_cast<TokenId>(id));
  }
  Regex::Scratch scratch;
  std::string storage;
  std::vector<std::pair<std::string, AddedToken>> raw, normalized;
  for (const AddedToken& token : parts_.added) {
    is_special_[static_cast<size_t>(token.id)] = token.special;
    if (token.normalized) {
      const std::string text(parts_.normalizer.run(token.content, storage, scratch));
      if (text.size() > 4 * kLongestToken) {
        fail(Code::kBadTokenizer, std::string(parts_.kind), "the added token",
             to_text(token.content), "becomes", text.size(), "bytes when it is normalized;",
             4 * kLongestToken, "at most are supported");
      }
      normalized.emplace_back(text, token);
      if (!text.empty()) normalized_spelling_[token.id] = text;
    } else {
      raw.emplace_back(token.content, token);
    }
  }
  raw_ = TokenMatcher(std::move(raw));
  normalized_ = TokenMatcher(std::move(normalized));
  if (parts_.decoder.joins_bytes()) {
    for (TokenId id = 0; id < vocab_size(); ++id) bytes_.push_back(bytes_of_token(spelling(id)));
  }
}

BpeTokenizer::~BpeTokenizer() = default;

void BpeTokenizer::append(std::string_view text, const EncodeOptions& options,
                          std::vector<TokenId>& ids) const {
  TROUPE_CHECK(text.size() <= kMostBytes, "a text of", text.size(), "bytes");
  const Lease lease(*this);
  Scratch& scratch = *lease;
  scratch.as_text = options.special_as_text;
  std::string repaired;
  if (!is_utf8(text)) text = repaired = repaired_utf8(text);
  if (options.add_special) ids.insert(ids.end(), parts_.before.begin(), parts_.before.end());
  if (raw_.empty()) {
    append_raw(text, true, scratch, ids);
  } else {
    raw_.split(text, options.special_as_text, [&](std::string_view part, TokenId id) {
      if (id >= 0) return ids.push_back(id);
      append_raw(part, part.data() == text.data(), scratch, ids);
    });
  }
  if (options.add_special) ids.insert(ids.end(), parts_.after.begin(), parts_.after.end());
}

void BpeTokenizer::append_raw(std::string_view part, bool at_start, Scratch& scratch,
                              std::vector<TokenId>& ids) const {
  const std::string_view text = parts_.normalizer.run(part, scratch.normalized, scratch.regex);
  if (normalized_.empty()) return append_pieces(text, at_start, scratch, ids);
  normalized_.split(text, scratch.as_text, [&](std::string_view piece, TokenId id) {
    if (id >= 0) return ids.push_back(id);
    append_pieces(piece, at_start && piece.data() == text.data(), scratch, ids);
  });
}

void BpeTokenizer::append_pieces(std::string_view text, bool at_start, Scratch& scratch,
                                 std::vector<TokenId>& ids) const {
  Pieces& pieces = scratch.pieces;
  pieces.reset(text, at_start);
  parts_.pre_tokenizer.run(pieces, scratch.regex);
  const char* end = pieces.text.data() + pieces.text.size();
  for (const Cut& cut : pieces.cuts) bpe_.append(pieces.piece(cut), end, scratch.bpe, ids);
}

std::string BpeTokenizer::token(TokenId id) const {
  const bool known = id >= 0 && id < vocab_size();
  return known ? spelling(id) : std::string();
}

// The reference says a normalized added token as it seeks it.
const std::string& BpeTokenizer::spelling(TokenId id) const {
  const auto at = normalized_spelling_.find(id);
  return at != normalized_spelling_.end() ? at->second : parts_.tokens[static_cast<size_t>(id)];
}

bool BpeTokenizer::says_something(TokenId id, const DecodeOptions& options) const {
  return id >= 0 && id < vocab_size() && !parts_.tokens[static_cast<size_t>(id)].empty() &&
         !(options.skip_special && is_special_[static_cast<size_t>(id)]);
}

std::string BpeTokenizer::text_of(std::span<const TokenId> ids,
                                  const DecodeOptions& options) const {
  if (parts_.decoder.only_bytes()) {
    std::string bytes;
    for (const TokenId id : ids) {
      if (says_something(id, options)) bytes += bytes_[static_cast<size_t>(id)];
    }
    return is_utf8(bytes) ? bytes : repaired_utf8(bytes);
  }
  std::vector<std::string> tokens;
  for (const TokenId id : ids) {
    if (says_something(id, options)) tokens.push_back(spelling(id));
  }
  return parts_.decoder.run(std::move(tokens));
}

bool BpeTokenizer::open_ended(std::span<const TokenId> ids, const DecodeOptions& options) const {
  std::string tail;  // a character has at most four bytes, so three may wait for more
  for (size_t i = ids.size(); i-- > 0 && tail.size() < 4;) {
    const TokenId id = ids[i];
    if (!says_something(id, options)) continue;
    if (parts_.decoder.joins_byte_tokens()) {
      return byte_of_token(parts_.tokens[static_cast<size_t>(id)]) >= 0;
    }
    if (!parts_.decoder.joins_bytes()) return false;
    tail.insert(0, bytes_[static_cast<size_t>(id)]);
  }
  return incomplete_utf8_tail(tail) > 0;
}

}  // namespace troupe
