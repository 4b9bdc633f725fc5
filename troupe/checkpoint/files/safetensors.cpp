#include "troupe/checkpoint/files/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "troupe/core/check.h"
#include "troupe/core/file/hash.h"
#include "troupe/core/text/text.h"

namespace troupe {

static_assert(std::endian::native == std::endian::little, "the file's numbers are little-endian");

namespace {

constexpr int64_t kLength = 8;  // bytes of N

[[noreturn]] void refuse(const std::string& file, const std::string& what) {
  fail(Code::kBadModelFile, file, what);
}

// N, checked against the file's size before anything is allocated.
int64_t header_size(const InputFile& file) {
  if (file.size() < kLength) {
    refuse(file.path(), "header too small: the file has " + std::to_string(file.size()) +
                            " bytes, a header begins with 8");
  }
  std::array<std::byte, kLength> bytes;
  file.read_at(0, bytes);
  const auto n = std::bit_cast<uint64_t>(bytes);
  if (n > static_cast<uint64_t>(kMaxSafetensorsHeader)) {
    refuse(file.path(), "header too large: " + std::to_string(n) + " bytes, at most " +
                            std::to_string(kMaxSafetensorsHeader));
  }
  const auto size = static_cast<int64_t>(n);
  if (size + kLength > file.size()) {
    refuse(file.path(), "invalid header length: " + std::to_string(size) + " bytes in a file of " +
                            std::to_string(file.size()));
  }
  return size;
}

void append_list(std::string& json, const Sizes& numbers) {
  json += '[';
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (i > 0) json += ',';
    json += std::to_string(numbers[i]);
  }
  json += ']';
}

template <class Bits>
int64_t count_exponent(std::span<const std::byte> bytes, Bits mask) {
  int64_t count = 0;
  for (size_t at = 0; at + sizeof(Bits) <= bytes.size(); at += sizeof(Bits)) {
    Bits bits;
    std::memcpy(&bits, bytes.data() + at, sizeof(Bits));
    count += (bits & mask) == mask;
  }
  return count;
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path)
    : file_(path, Code::kUnreadableCheckpoint) {
  const int64_t size = header_size(file_);
  std::string head(static_cast<size_t>(kLength + size), '\0');
  file_.read_at(0, std::as_writable_bytes(std::span(head)));
  data_ = kLength + size;
  header_hash_ = hash64(head);
  header_ =
      parse_safetensors_header(std::string_view(head).substr(kLength), file_.size() - data_, path);
  for (const SafetensorsEntry& tensor : header_.tensors) by_name_.push_back(&tensor);
  std::ranges::sort(by_name_, {},
                    [](const SafetensorsEntry* t) -> const std::string& { return t->name; });
}

const std::string* SafetensorsFile::find_metadata(std::string_view key) const {
  for (const auto& [name, value] : header_.metadata) {
    if (name == key) return &value;
  }
  return nullptr;
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  const auto at = std::ranges::lower_bound(
      by_name_, name, {}, [](const SafetensorsEntry* t) { return std::string_view(t->name); });
  return at != by_name_.end() && (*at)->name == name ? *at : nullptr;
}

void SafetensorsFile::read(const SafetensorsEntry& tensor, int64_t from,
                           std::span<std::byte> out) const {
  TROUPE_CHECK(0 <= from && static_cast<int64_t>(out.size()) <= tensor.bytes() - from, tensor.name,
               "bytes", from, "and", out.size(), "more of", tensor.bytes());
  file_.read_at(data_ + tensor.begin + from, out);
}

SafetensorsLayout layout_safetensors(std::vector<SafetensorsEntry> tensors,
                                     const Metadata& metadata) {
  std::ranges::sort(tensors, [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return a.element != b.element ? a.element > b.element : a.name < b.name;
  });
  SafetensorsLayout out;
  std::string json = "{";
  const auto open_field = [&](const std::string& name) {
    if (json.back() != '{') json += ',';
    json += to_text(name);
    json += ':';
  };
  if (!metadata.empty()) {
    open_field("__metadata__");
    json += '{';
    for (const auto& [name, value] : metadata) {
      open_field(name);
      json += to_text(value);
    }
    json += '}';
  }
  for (SafetensorsEntry& t : tensors) {
    const Box box = Box::whole(t.shape);
    validate(box);
    const int64_t bits = bits_of(t.element);
    TROUPE_CHECK(box.numel() <= INT64_MAX / 64 && box.numel() * bits % 8 == 0, t.name,
                 to_text(t.shape), name_of(t.element), "is no whole number of bytes");
    t.begin = out.data_bytes;
    t.end = out.data_bytes += box.numel() * bits / 8;
    open_field(t.name);
    json += "{\"dtype\":\"";
    json += name_of(t.element);
    json += "\",\"shape\":";
    append_list(json, t.shape);
    json += ",\"data_offsets\":";
    append_list(json, {t.begin, t.end});
    json += '}';
  }
  json += '}';
  json.append((8 - json.size() % 8) % 8, ' ');
  TROUPE_CHECK(static_cast<int64_t>(json.size()) <= kMaxSafetensorsHeader, "a header of",
               json.size(), "bytes: write several files");
  const auto n = std::bit_cast<std::array<char, 8>>(static_cast<uint64_t>(json.size()));
  out.header.assign(n.data(), n.size());
  out.header += json;
  out.tensors = std::move(tensors);
  return out;
}

void write_safetensors(NewFile& file, const SafetensorsLayout& layout, const TensorSource& source) {
  file.write(layout.header);
  for (const SafetensorsEntry& tensor : layout.tensors) {
    int64_t written = 0;
    source(tensor, [&](std::span<const std::byte> bytes) {
      written += static_cast<int64_t>(bytes.size());
      file.write(bytes);
    });
    TROUPE_CHECK(written == tensor.bytes(), tensor.name, "gave", written, "bytes of",
                 tensor.bytes());
  }
}

int64_t count_unsound(Element element, std::span<const std::byte> bytes) {
  switch (element) {
    case Element::kF16: return count_exponent<uint16_t>(bytes, 0x7c00);
    case Element::kBF16: return count_exponent<uint16_t>(bytes, 0x7f80);
    case Element::kF32:
    case Element::kC64: return count_exponent<uint32_t>(bytes, 0x7f800000);
    case Element::kF64: return count_exponent<uint64_t>(bytes, 0x7ff0000000000000);
    case Element::kBool:
      return std::ranges::count_if(bytes, [](std::byte b) { return b > std::byte{1}; });
    default: return 0;
  }
}

}  // namespace troupe
