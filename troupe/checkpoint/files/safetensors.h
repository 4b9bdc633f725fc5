// safetensors files: 8 bytes N (little-endian), N bytes of JSON, the tensors' data.
//   "name":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}   offsets from where the data begins
//
// Reading trusts nothing: the header's size is checked before it is read, sizes are multiplied with
// overflow checks, the tensors must cover the data without hole or overlap, and a name stands once
// (the reference takes the last). Every refusal is E4003 and names the file and the tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "troupe/checkpoint/files/box.h"
#include "troupe/core/file/file.h"
#include "troupe/core/file/publish.h"

namespace troupe {

struct SafetensorsEntry {
  std::string name;
  Element element;
  Sizes shape;
  int64_t begin = 0, end = 0;  // bytes, from the start of the data
  int64_t bytes() const { return end - begin; }
};

using Metadata = std::vector<std::pair<std::string, std::string>>;

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors;  // in the order of their data
  Metadata metadata;                      // "__metadata__", in written order
  std::vector<std::string> warnings;      // what the format allows and nobody means
};

inline constexpr int64_t kMaxSafetensorsHeader = 100'000'000;  // bytes; the reference's limit
inline constexpr size_t kMaxSafetensorsTensors = 500'000;      // bounds a hostile header's memory

// The N bytes of JSON of a file that has `data_bytes` after them.
SafetensorsHeader parse_safetensors_header(std::string_view json, int64_t data_bytes,
                                           const std::string& file);

// A file open for reading; several threads may read at once.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::vector<SafetensorsEntry>& tensors() const { return header_.tensors; }
  const Metadata& metadata() const { return header_.metadata; }
  const std::vector<std::string>& warnings() const { return header_.warnings; }
  const std::string* find_metadata(std::string_view key) const;
  const SafetensorsEntry* find(std::string_view name) const;  // nullptr: none
  uint64_t header_hash() const { return header_hash_; }       // XXH3 of all before the data
  int64_t data_begin() const { return data_; }                // bytes before it

  // Fills `out` with the tensor's bytes from `from` on.
  void read(const SafetensorsEntry& tensor, int64_t from, std::span<std::byte> out) const;

 private:
  InputFile file_;
  int64_t data_ = 0;  // where the data starts
  uint64_t header_hash_ = 0;
  SafetensorsHeader header_;
  std::vector<const SafetensorsEntry*> by_name_;
};

// What is written: first `header`, then the tensors' data in the order of `tensors` (the widest
// type first, then by name), so that each is aligned.
struct SafetensorsLayout {
  std::string header;  // with its 8 bytes; padded, so that the data starts at a multiple of 8
  std::vector<SafetensorsEntry> tensors;
  int64_t data_bytes = 0;
};

// `tensors` give name, element and shape. Metadata: {"format", "pt"} is what other readers ask for.
SafetensorsLayout layout_safetensors(std::vector<SafetensorsEntry> tensors,
                                     const Metadata& metadata = {{"format", "pt"}});

// Writes the header, then asks for each tensor's bytes in turn; `write` may be called many times.
using WriteBytes = std::function<void(std::span<const std::byte>)>;
using TensorSource = std::function<void(const SafetensorsEntry& tensor, const WriteBytes& write)>;
void write_safetensors(NewFile& file, const SafetensorsLayout& layout, const TensorSource& source);

// How many of the numbers are NaN or infinite; 0 for whole numbers and types below 16 bits. Of
// BOOL, the bytes that are neither 0 nor 1.
int64_t count_unsound(Element element, std::span<const std::byte> bytes);

}  // namespace troupe
