#include "troupe/data/tokens/token_index.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/core/file/hash.h"

namespace troupe {
namespace {

constexpr int64_t kBlock = 1 << 16;  // entries read at a time

template <class T>
T value_at(std::string_view bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

std::string at_byte(const DataFile& file, int64_t offset) {
  return file.path() + " at byte " + std::to_string(offset);
}

// f(first, count) over [0, n) in blocks.
template <class F>
void in_blocks(int64_t n, F&& f) {
  for (int64_t first = 0; first < n; first += kBlock) f(first, std::min(kBlock, n - first));
}

uint64_t hash_of(const DataFile& file) {
  Hasher hasher;
  std::vector<std::byte> block;
  in_blocks(file.size(), [&](int64_t first, int64_t count) {
    block.resize(static_cast<size_t>(count));
    file.read(first, block);
    hasher.update(block);
  });
  return hasher.digest64();
}

}  // namespace

TokenIndex::TokenIndex(const std::string& path, int64_t bin_bytes, const RemoteAccess& remote)
    : file_(open_data_file(path, remote)) {
  read_header();
  check_sequences(bin_bytes);
  check_documents();
  hash_ = hash_of(*file_);
}

void TokenIndex::read_header() {
  if (file_->size() < kIndexHeaderBytes) {
    fail(Code::kBadTokenFile, file_->path(), "has", file_->size(), "bytes; the header alone has",
         kIndexHeaderBytes);
  }
  char bytes[kIndexHeaderBytes];
  file_->read(0, std::as_writable_bytes(std::span(bytes)));
  const std::string_view header(bytes, kIndexHeaderBytes);
  if (!header.starts_with(kIndexMagic)) {
    fail(Code::kBadTokenFile, at_byte(*file_, 0),
         "does not begin with MMIDIDX: not the index of a Megatron data set");
  }
  const auto version = value_at<uint64_t>(header, 9);
  if (version != 1) fail(Code::kBadTokenFile, at_byte(*file_, 9), "version", version, "is not 1");
  const int code = static_cast<unsigned char>(header[17]);
  if (code < 1 || code > 8) {
    fail(Code::kBadTokenFile, at_byte(*file_, 17), "token type", code, "is none of 1 to 8");
  }
  type_ = static_cast<TokenType>(code);
  if (type_ == TokenType::kF32 || type_ == TokenType::kF64) {
    fail(Code::kBadTokenFile, at_byte(*file_, 17), "token type", code, "is", name(type_),
         "which holds no token ids");
  }
  const auto S = value_at<uint64_t>(header, 18), D = value_at<uint64_t>(header, 26);
  const auto room = static_cast<uint64_t>(file_->size() - kIndexHeaderBytes);
  // Divided, not multiplied: no count can overflow.
  if (S > room / 12 || D > (room - 12 * S) / 8) {
    fail(Code::kBadTokenFile, at_byte(*file_, 18), S, "sequences and", D,
         "document entries need more than the", file_->size(), "bytes of the file. Was it cut?");
  }
  if (D == 0) fail(Code::kBadTokenFile, at_byte(*file_, 26), "no document entries; expected >= 1");
  const uint64_t needed = 12 * S + 8 * D;
  has_modes_ = S > 0 && room == needed + S;
  if (room != needed && !has_modes_) {
    fail(Code::kBadTokenFile, file_->path(), "has", file_->size(), "bytes;", S, "sequences and", D,
         "document entries make", needed + kIndexHeaderBytes);
  }
  num_sequences_ = static_cast<int64_t>(S);
  num_document_entries_ = static_cast<int64_t>(D);
}

void TokenIndex::check_sequences(int64_t bin_bytes) {
  const int64_t item = size_bytes(type_);
  int64_t sum = 0, previous = 0;
  std::vector<int32_t> lens;
  std::vector<int64_t> offs;
  in_blocks(num_sequences_, [&](int64_t first, int64_t count) {
    lens.resize(static_cast<size_t>(count));
    offs.resize(static_cast<size_t>(count));
    lengths(first, lens);
    offsets(first, offs);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t length = lens[static_cast<size_t>(i)], offset = offs[static_cast<size_t>(i)];
      const int64_t sequence = first + i;
      const auto refuse = [&](int64_t at, const auto&... what) {
        fail(Code::kBadTokenFile, at_byte(*file_, at), "sequence", sequence, what...);
      };
      const int64_t length_at = kIndexHeaderBytes + 4 * sequence;
      const int64_t offset_at = offsets_at() + 8 * sequence;
      if (length < 0) refuse(length_at, "has length", length);
      if (offset < previous)
        refuse(offset_at, "begins at", offset, "before its neighbor's", previous);
      if (length > 0 && offset < end_in_bin_) {
        refuse(offset_at, "begins at", offset, "inside one before it, which ends at", end_in_bin_);
      }
      if (offset % item != 0) refuse(offset_at, "begins at", offset, "no multiple of", item);
      if (offset > bin_bytes || length > (bin_bytes - offset) / item) {
        refuse(offset_at, "begins at", offset, "and has", length, "tokens of", item,
               "bytes; the .bin has", bin_bytes, "bytes. Was it cut?");
      }
      is_contiguous_ = is_contiguous_ && offset == sum * item;
      previous = offset;
      sum += length;  // No overflow: each is at most 2^31, and 12 bytes of the file say so.
      num_empty_ += length == 0;
      end_in_bin_ = std::max(end_in_bin_, offset + length * item);
    }
  });
  num_tokens_ = sum;
}

void TokenIndex::check_documents() const {
  int64_t previous = 0;
  std::vector<int64_t> docs;
  in_blocks(num_document_entries_, [&](int64_t first, int64_t count) {
    docs.resize(static_cast<size_t>(count));
    documents(first, docs);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t entry = docs[static_cast<size_t>(i)], document = first + i;
      const bool ends = document == num_document_entries_ - 1;
      if (entry >= previous && (document > 0 || entry == 0) && (!ends || entry == num_sequences_)) {
        previous = entry;
        continue;
      }
      fail(Code::kBadTokenFile, at_byte(*file_, documents_at() + 8 * document), "document entry",
           document, "is", entry, "after", previous,
           "; entries begin with 0, never fall, and end with", num_sequences_, "sequences");
    }
  });
}

void TokenIndex::lengths(int64_t first, std::span<int32_t> out) const {
  read_array(*file_, kIndexHeaderBytes + 4 * first, out);
}

void TokenIndex::offsets(int64_t first, std::span<int64_t> out) const {
  read_array(*file_, offsets_at() + 8 * first, out);
}

void TokenIndex::documents(int64_t first, std::span<int64_t> out) const {
  read_array(*file_, documents_at() + 8 * first, out);
}

}  // namespace troupe
