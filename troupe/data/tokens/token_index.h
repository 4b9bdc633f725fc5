// Megatron's `.idx`: which sequences and documents the tokens of the `.bin` beside it form.
//
//   offset      size   content, little-endian, arrays unaligned
//   0           9      "MMIDIDX" and two NULs
//   9           8      version, 1
//   17          1      code of the token type (token_type.h)
//   18          8      S, sequences
//   26          8      D, documents + 1
//   34          4 S    length of each sequence, in tokens
//   34 + 4 S    8 S    its byte offset in `.bin`
//   34 + 12 S   8 D    the first sequence of each document, and S at the end
//   at the end  S      modes, in multimodal files: only the size tells
//
// Opening reads the whole file once, block by block, and refuses (E3101) what is not of this form;
// no count is believed before the size of the file allows it. Later reads go to the file: nothing
// of it is kept in memory, and a file that is cut is an Error, never a signal.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "troupe/data/files/data_file.h"
#include "troupe/data/tokens/token_type.h"

namespace troupe {

inline constexpr std::string_view kIndexMagic{"MMIDIDX\0\0", 9};
inline constexpr int64_t kIndexHeaderBytes = 34;

class TokenIndex {
 public:
  // `bin_bytes` is the size of the `.bin`, which no sequence may exceed.
  TokenIndex(const std::string& path, int64_t bin_bytes, const RemoteAccess& remote = {});

  const DataFile& file() const { return *file_; }
  TokenType type() const { return type_; }
  int64_t num_sequences() const { return num_sequences_; }
  int64_t num_documents() const { return num_document_entries_ - 1; }
  int64_t num_tokens() const { return num_tokens_; }  // the sum of all lengths
  int64_t num_empty() const { return num_empty_; }    // sequences of no token
  bool has_modes() const { return has_modes_; }
  // Whether each sequence begins where the one before it ends, and the first at 0.
  bool is_contiguous() const { return is_contiguous_; }
  int64_t end_in_bin() const { return end_in_bin_; }  // the first byte behind all sequences
  uint64_t hash() const { return hash_; }             // of the whole file

  void lengths(int64_t first, std::span<int32_t> out) const;
  void offsets(int64_t first, std::span<int64_t> out) const;
  void documents(int64_t first, std::span<int64_t> out) const;

 private:
  void read_header();
  void check_sequences(int64_t bin_bytes);
  void check_documents() const;
  int64_t offsets_at() const { return kIndexHeaderBytes + 4 * num_sequences_; }
  int64_t documents_at() const { return kIndexHeaderBytes + 12 * num_sequences_; }

  DataFilePtr file_;
  TokenType type_ = TokenType::kU16;
  int64_t num_sequences_ = 0, num_document_entries_ = 0;
  int64_t num_tokens_ = 0, num_empty_ = 0, end_in_bin_ = 0;
  bool has_modes_ = false, is_contiguous_ = true;
  uint64_t hash_ = 0;
};

}  // namespace troupe
