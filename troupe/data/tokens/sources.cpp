#include "troupe/data/tokens/sources.h"

#include <algorithm>
#include <array>

#include "troupe/core/check.h"
#include "troupe/core/file/hash.h"
#include "troupe/data/text/build_info.h"
#include "troupe/data/text/text_check.h"
#include "troupe/data/tokenizer/tokenizer.h"
#include "troupe/data/tokens/numpy.h"
#include "troupe/data/tokens/token_file.h"
#include "troupe/data/tokens/token_type.h"

namespace troupe {
namespace {

// All its tokens are one sequence.
class OneSequence : public TokenSource {
 public:
  int64_t num_sequences() const override { return 1; }
  void starts(int64_t first, std::span<int64_t> out) const override {
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = first + static_cast<int64_t>(i) == 0 ? 0 : num_tokens();
    }
  }
};

// Ids from `begin` to the end of a file.
class FlatSource : public OneSequence {
 public:
  FlatSource(DataFilePtr file, TokenType type, int64_t begin)
      : file_(std::move(file)), type_(type), begin_(begin) {
    const int64_t bytes = file_->size() - begin_;
    if (bytes % size_bytes(type_) != 0) {
      fail(Code::kBadTokenFile, file_->path(), "has", bytes, "bytes of tokens, no multiple of the",
           size_bytes(type_), "that one of type", name(type_), "has");
    }
    num_tokens_ = bytes / size_bytes(type_);
  }

  std::string place() const override { return file_->path(); }
  bool is_far() const override { return file_->is_far(); }
  int64_t num_tokens() const override { return num_tokens_; }
  void read(int64_t first, std::span<int32_t> out) const override {
    std::vector<std::byte> bytes(out.size() * static_cast<size_t>(size_bytes(type_)));
    file_->read(begin_ + first * size_bytes(type_), bytes);
    widen(type_, bytes, out);
  }
  void require_unchanged() const override { file_->require_unchanged(); }
  std::string fingerprint() const override {
    constexpr int64_t kBlocks = 64, kIds = 1024;
    Hasher hasher;
    std::vector<int32_t> ids;
    std::vector<std::byte> bytes;
    for (int64_t i = 0; i < kBlocks; ++i) {
      const int64_t first = num_tokens_ / kBlocks * i;
      ids.resize(static_cast<size_t>(std::min(kIds, num_tokens_ - first)));
      bytes.resize(ids.size() * static_cast<size_t>(size_bytes(type_)));
      file_->peek(begin_ + first * size_bytes(type_), bytes);
      widen(type_, bytes, ids);
      hasher.update(std::as_bytes(std::span(ids)));
    }
    return std::to_string(num_tokens_) + " tokens, " + hex(hasher.digest64());
  }

 private:
  DataFilePtr file_;
  TokenType type_;
  int64_t begin_, num_tokens_ = 0;
};

// A text file's ids in memory.
class EncodedSource : public OneSequence {
 public:
  EncodedSource(DataFilePtr file, const Tokenizer& tokenizer) : file_(std::move(file)) {
    if (file_->size() > kLongestText) {
      fail(Code::kBadTokenFile, file_->path(), "has", file_->size(), "bytes; `kind: text` encodes",
           kLongestText, "at most. Encode it once: troupe data build", file_->path(),
           "PREFIX --tokenizer FILE, and name PREFIX without a kind");
    }
    std::string text(static_cast<size_t>(file_->size()), '\0');
    file_->read(0, std::as_writable_bytes(std::span(text)));
    ids_ = tokenizer.encode(text, {.add_special = false, .special_as_text = true});
  }

  std::string place() const override { return file_->path(); }
  int64_t num_tokens() const override { return std::ssize(ids_); }
  void read(int64_t first, std::span<int32_t> out) const override {
    std::copy_n(ids_.begin() + first, out.size(), out.begin());
  }
  void require_unchanged() const override { file_->require_unchanged(); }
  std::string fingerprint() const override {
    Hasher hasher;
    hasher.update(std::as_bytes(std::span(ids_)));
    return std::to_string(num_tokens()) + " tokens, " + hex(hasher.digest64());
  }

 private:
  DataFilePtr file_;
  std::vector<TokenId> ids_;
};

class MockSource : public TokenSource {
 public:
  MockSource(int64_t documents, const SourceNeeds& needs)
      : vocab_(needs.vocab), eod_(needs.eod.value_or(0)), starts_{0} {
    for (const int32_t length : numpy_mock_lengths(documents)) {
      starts_.push_back(starts_.back() + length);
    }
  }

  std::string place() const override { return "mock data"; }
  int64_t num_sequences() const override { return std::ssize(starts_) - 1; }
  int64_t num_tokens() const override { return starts_.back(); }
  void starts(int64_t first, std::span<int64_t> out) const override {
    std::copy_n(starts_.begin() + first, out.size(), out.begin());
  }
  void read(int64_t first, std::span<int32_t> out) const override {
    auto next = std::upper_bound(starts_.begin(), starts_.end(), first);
    for (int32_t& id : out) {
      const int64_t position = first - *(next - 1);
      id = first + 1 == *next ? eod_ : static_cast<int32_t>((position + 1) % vocab_);
      if (++first == *next) ++next;  // No mock document is empty.
    }
  }
  std::string fingerprint() const override {
    return std::to_string(num_sequences()) + " mock documents, vocabulary " +
           std::to_string(vocab_) + ", end " + std::to_string(eod_);
  }

 private:
  int64_t vocab_;
  int32_t eod_;
  std::vector<int64_t> starts_;
};

void require_text(const DataFile& file) {
  std::string head(std::min(static_cast<size_t>(file.size()), kCheckedBytes), '\0');
  file.read(0, std::as_writable_bytes(std::span(head)));
  const std::string why = why_not_text(head);
  if (!why.empty()) fail(Code::kUnreadableData, file.path(), why);
}

}  // namespace

TokenSourcePtr MegatronFiles::open(const SourceNeeds& needs) const {
  auto source = std::make_shared<TokenFile>(path, needs.log, needs.remote);
  require_tokenizer(token_prefix(path), needs.tokenizer, needs.remote);
  require_pairs(token_prefix(path), needs.pairs, needs.remote);
  return source;
}

TokenSourcePtr FlatFile::open(const SourceNeeds& needs) const {
  const TokenType wide = type == FlatType::kU16 ? TokenType::kU16 : TokenType::kU32;
  return std::make_shared<FlatSource>(open_data_file(path, needs.remote), wide, 0);
}

TokenSourcePtr LlmcFile::open(const SourceNeeds& needs) const {
  constexpr int64_t kHeaderBytes = 1024;
  const DataFilePtr file = open_data_file(path, needs.remote);
  if (file->size() < kHeaderBytes) {
    fail(Code::kBadTokenFile, path, "has", file->size(), "bytes; the header has", kHeaderBytes);
  }
  std::array<int32_t, 3> header;
  read_array<int32_t>(*file, 0, header);
  const auto [magic, version, count] = header;
  const bool small = magic == 20240520 && version == 1;
  const bool large = magic == 20240801 && version == 7;
  if (!small && !large) {
    fail(Code::kBadTokenFile, path + " at byte 0", "magic", magic, "and version", version,
         "are neither 20240520, 1 (u16) nor 20240801, 7 (u32) of llm.c");
  }
  const TokenType type = small ? TokenType::kU16 : TokenType::kU32;
  if (count < 0 || file->size() - kHeaderBytes != count * size_bytes(type)) {
    fail(Code::kBadTokenFile, path + " at byte 8", count, "tokens of", size_bytes(type),
         "bytes and", kHeaderBytes, "of header are not the", file->size(), "bytes of the file");
  }
  return std::make_shared<FlatSource>(file, type, kHeaderBytes);
}

TokenSourcePtr TextFile::open(const SourceNeeds& needs) const {
  DataFilePtr file = open_data_file(path, needs.remote);
  if (!file->is_far()) require_text(*file);
  if (needs.encoder) return std::make_shared<EncodedSource>(std::move(file), *needs.encoder);
  return std::make_shared<FlatSource>(std::move(file), TokenType::kU8, 0);
}

TokenSourcePtr MockTokens::open(const SourceNeeds& needs) const {
  TROUPE_CHECK(documents > 0 && needs.vocab > 0, documents, needs.vocab);
  return std::make_shared<MockSource>(documents, needs);
}

std::string name_of(const SourceConfig& config) {
  return std::visit(
      [](const auto& c) -> std::string {
        if constexpr (requires { c.path; }) return c.path;
        return std::string(c.kKind);
      },
      config);
}

}  // namespace troupe
