// MDS, the shards of the `streaming` package, as far as tokens need it:
//   shard         u32 n; u32 offsets[n + 1] from the file's start; JSON; samples
//   sample        a u32 size for each column of no fixed size, then the columns' bytes
//   ndarray:T     dims: u8 (ndim << 2 | log2 of the bytes of a size), the sizes, then the values
//   ndarray:T:S   the values;   ndarray: the same two behind a u8 that names T;   bytes: the values
#include <unistd.h>

#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <string_view>

#include "troupe/core/config/json.h"
#include "troupe/core/file/file.h"
#include "troupe/core/file/hash.h"
#include "troupe/data/build/convert.h"

namespace troupe {
namespace {

const std::map<std::string, TokenType, std::less<>> kTypes{
    {"uint8", TokenType::kU8},  {"int8", TokenType::kI8},    {"uint16", TokenType::kU16},
    {"int16", TokenType::kI16}, {"uint32", TokenType::kU32}, {"int32", TokenType::kI32},
    {"int64", TokenType::kI64}};
const std::map<int, TokenType> kTypeCodes{
    {8, TokenType::kU8},   {9, TokenType::kI8},   {16, TokenType::kU16}, {17, TokenType::kI16},
    {32, TokenType::kU32}, {33, TokenType::kI32}, {65, TokenType::kI64}};

const Yaml* find(const Yaml& map, std::string_view name) {
  for (const Yaml::Field& field : map.fields) {
    if (field.name == name && field.value.kind != Yaml::Kind::kNull) return &field.value;
  }
  return nullptr;
}

// What index.json says of a shard.
class ShardEntry {
 public:
  ShardEntry(const Yaml& y, const std::string& index, size_t number)
      : y_(y), place_(index + " shards[" + std::to_string(number) + ']') {}

  const Yaml& at(const Yaml& map, std::string_view name) const {
    const Yaml* found = find(map, name);
    if (found == nullptr) fail(Code::kBadShard, place_, "has no", name);
    return *found;
  }
  const Yaml& at(std::string_view name) const { return at(y_, name); }
  int64_t number(const Yaml& value) const {
    int64_t out = 0;
    if (!from_text(value.text, out))
      fail(Code::kBadShard, place_, to_text(value.text), "is no size");
    return out;
  }
  const std::string& place() const { return place_; }

 private:
  const Yaml& y_;
  std::string place_;
};

// The column that holds the tokens, and the sizes of all.
struct Columns {
  std::vector<std::optional<int64_t>> sizes;
  size_t wanted = 0;
  std::string encoding;
};

Columns columns_of(const ShardEntry& entry, const std::string& wanted) {
  Columns out;
  const auto& names = entry.at("column_names").items;
  const auto& encodings = entry.at("column_encodings").items;
  const auto& sizes = entry.at("column_sizes").items;
  if (names.size() != encodings.size() || names.size() != sizes.size()) {
    fail(Code::kBadShard, entry.place(), names.size(), "column names,", encodings.size(),
         "encodings and", sizes.size(), "sizes");
  }
  for (const Yaml& size : sizes) {
    const bool is_null = size.kind == Yaml::Kind::kNull || size.text == "0";
    out.sizes.push_back(is_null ? std::nullopt : std::optional(entry.number(size)));
  }
  while (out.wanted < names.size() && names[out.wanted].text != wanted) ++out.wanted;
  if (out.wanted == names.size()) {
    std::string all;
    for (const Yaml& name : names) all += ' ' + name.text;
    fail(Code::kBadShard, entry.place(), "has no column", wanted + "; it has" + all);
  }
  out.encoding = encodings[out.wanted].text;
  return out;
}

// A shard in memory, and reading from it within its bounds.
class Shard {
 public:
  Shard(const ShardEntry& entry, const std::string& folder, const Log& log) {
    if (entry.at("format").text != "mds") {
      fail(Code::kBadShard, entry.place(), "format", entry.at("format").text, "is not mds");
    }
    const Yaml& raw = entry.at("raw_data");
    const std::string& name = entry.at(raw, "basename").text;
    if (name.empty() || name.find('/') != name.npos || name == "..") {
      fail(Code::kBadShard, entry.place(), "basename", to_text(name), "leaves the folder");
    }
    path_ = folder + '/' + name;
    const int64_t size = entry.number(entry.at(raw, "bytes"));
    {
      const InputFile file(path_);
      if (file.size() != size) {
        fail(Code::kBadShard, path_, "has", file.size(), "bytes; index.json says", size);
      }
    }
    bytes_ = read_file(path_, Code::kUnreadableData, kMostBytes);
    check_hashes(entry.at(raw, "hashes"), log);
    n_ = u32(0);
    const int64_t samples = entry.number(entry.at("samples"));
    if (n_ != samples)
      fail(Code::kBadShard, path_, "holds", n_, "samples; index.json says", samples);
  }

  int64_t num_samples() const { return n_; }
  std::string place(int64_t sample) const { return path_ + " sample " + std::to_string(sample); }

  std::string_view sample(int64_t i) const {
    const int64_t begin = u32(4 * (1 + i)), end = u32(4 * (2 + i));
    if (begin < 4 * (n_ + 2) || begin > end || end > std::ssize(bytes_)) {
      fail(Code::kBadShard, place(i), "is at bytes", begin, "to", end, "of", bytes_.size());
    }
    return std::string_view(bytes_).substr(static_cast<size_t>(begin),
                                           static_cast<size_t>(end - begin));
  }

  // The bytes of the wanted column of a sample.
  std::string_view column(int64_t i, const Columns& columns) const {
    std::string_view rest = sample(i);
    std::vector<uint64_t> sizes;
    for (const auto& size : columns.sizes) {
      if (!size && rest.size() < 4) fail(Code::kBadShard, place(i), "ends in the columns' sizes");
      sizes.push_back(size ? static_cast<uint64_t>(*size) : value<uint32_t>(rest, 0));
      if (!size) rest.remove_prefix(4);
    }
    for (size_t c = 0;; rest.remove_prefix(sizes[c++])) {
      if (sizes[c] > rest.size()) {
        fail(Code::kBadShard, place(i), "column", c, "needs", sizes[c], "bytes of", rest.size());
      }
      if (c == columns.wanted) return rest.substr(0, sizes[c]);
    }
  }

 private:
  static constexpr int64_t kMostBytes = int64_t{1} << 32;  // Offsets have 32 bits.

  template <class T>
  static T value(std::string_view bytes, size_t at) {
    T out;
    std::memcpy(&out, bytes.data() + at, sizeof(T));
    return out;
  }

  int64_t u32(int64_t at) const {
    if (at + 4 > std::ssize(bytes_)) {
      fail(Code::kBadShard, path_, "has", bytes_.size(), "bytes; an offset is at", at);
    }
    return value<uint32_t>(bytes_, static_cast<size_t>(at));
  }

  void check_hashes(const Yaml& hashes, const Log& log) const {
    const auto bytes = std::as_bytes(std::span(bytes_));
    bool checked = false;
    for (const Yaml::Field& hash : hashes.fields) {
      std::string found;
      if (hash.name == "xxh64") found = hex(xxh64(bytes));
      if (hash.name == "xxh3_64") found = hex(hash64(bytes));
      if (hash.name == "xxh128" || hash.name == "xxh3_128") found = hex(hash128(bytes));
      if (found.empty()) continue;
      checked = true;
      if (found == hash.value.text) continue;
      fail(Code::kBadShard, path_, hash.name, "is", found + "; index.json says", hash.value.text);
    }
    if (!checked && !hashes.fields.empty()) {
      log.warning(path_ + ": " + hashes.fields[0].name + " is not checked");
    }
  }

  std::string path_, bytes_;
  int64_t n_ = 0;
};

// The values of an encoded column as ids.
class TokenColumn {
 public:
  TokenColumn(const std::string& encoding, const std::string& bytes_are, const std::string& place) {
    const size_t colon = encoding.find(':');
    const std::string kind = encoding.substr(0, colon);
    const std::string rest = colon == encoding.npos ? "" : encoding.substr(colon + 1);
    const std::string type = rest.substr(0, rest.find(':'));
    has_shape_ = kind == "ndarray" && rest.find(':') == rest.npos;
    if (kind == "bytes") {
      set_type(bytes_are == "i64" ? "int64" : bytes_are == "i32" ? "int32" : "uint16");
    } else if (kind == "ndarray") {
      if (!type.empty()) set_type(type);
    }
    if (!type_ && !(kind == "ndarray" && type.empty())) {
      fail(Code::kBadShard, place, "encoding", encoding, "holds no tokens");
    }
  }

  void append(std::string_view bytes, const std::string& place, std::vector<int32_t>& ids) const {
    const auto need = [&](size_t n) {
      if (bytes.size() < n) fail(Code::kBadShard, place, "ends in its header");
    };
    TokenType type = type_.value_or(TokenType::kI32);
    if (!type_) {
      need(1);
      const auto found = kTypeCodes.find(static_cast<unsigned char>(bytes[0]));
      if (found == kTypeCodes.end()) fail(Code::kBadShard, place, "has values that are no tokens");
      type = found->second;
      bytes.remove_prefix(1);
    }
    if (has_shape_) {
      need(1);
      const auto header = static_cast<unsigned char>(bytes[0]);
      const size_t size = 1 + (static_cast<size_t>(header >> 2) << (header & 3));
      need(size);
      bytes.remove_prefix(size);
    }
    const auto item = static_cast<size_t>(size_bytes(type));
    if (bytes.size() % item != 0) {
      fail(Code::kBadShard, place, bytes.size(), "bytes are no whole number of", name(type));
    }
    ids.resize(bytes.size() / item);
    widen(type, std::as_bytes(std::span(bytes)), ids);
  }

 private:
  void set_type(const std::string& type) {
    const auto found = kTypes.find(type);
    if (found != kTypes.end()) type_ = found->second;
  }

  std::optional<TokenType> type_;  // absent: each value names it
  bool has_shape_ = false;
};

void convert_shard(const ShardEntry& entry, const MdsConfig& config, TokenWriter& writer,
                   const Log& log) {
  if (find(entry.at("raw_data"), "basename") == nullptr) return;
  const Shard shard(entry, config.input, log);
  const Columns columns = columns_of(entry, config.column);
  const TokenColumn column(columns.encoding, config.bytes_are, entry.place());
  const int64_t limit = config.vocab > 0 ? config.vocab : int64_t{1} << 31;
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < shard.num_samples(); ++i) {
    column.append(shard.column(i, columns), shard.place(i), ids);
    for (const int32_t id : ids) {
      if (id >= 0 && id < limit && id != std::numeric_limits<int32_t>::max()) continue;
      fail(Code::kBadToken, shard.place(i), "has the token id", id, "; expected 0 to", limit - 1);
    }
    if (!ids.empty()) {
      writer.add_tokens(ids);
      writer.end_sequence();
    }
    writer.end_document();
  }
}

}  // namespace

TokenCounts convert_mds(const MdsConfig& config, Fs& fs, const Log& log) {
  if (config.bytes_are != "i64" && config.bytes_are != "i32" && config.bytes_are != "u16") {
    fail(Code::kBadValue, "bytes_are", to_text(config.bytes_are), "is none of i64, i32, u16");
  }
  constexpr int64_t kMostBytes = 64 << 20;
  const std::string path = config.input + "/index.json";
  const Yaml index = parse_json(read_file(path, Code::kUnreadableData, kMostBytes), path);
  const Yaml* shards = find(index, "shards");
  if (shards == nullptr || shards->items.empty()) fail(Code::kBadShard, path, "names no shards");
  for (size_t i = 0; i < shards->items.size(); ++i) {
    const Yaml* zip = find(shards->items[i], "zip_data");
    const Yaml* name = zip == nullptr ? nullptr : find(*zip, "basename");
    if (name == nullptr) continue;
    const Yaml* raw = find(shards->items[i], "raw_data");
    const Yaml* unpacked = raw == nullptr ? nullptr : find(*raw, "basename");
    const std::string file = config.input + '/' + (unpacked == nullptr ? "" : unpacked->text);
    if (unpacked == nullptr || ::access(file.c_str(), F_OK) != 0) {
      fail(Code::kBadShard, config.input + '/' + name->text,
           "is compressed: unpack all shards beside it first (zstd -d, or unzip)");
    }
  }
  TokenWriter writer(fs, {.prefix = config.output,
                          .type = config.vocab > 0 ? token_type_for(config.vocab) : TokenType::kI32,
                          .replace = config.replace});
  for (size_t i = 0; i < shards->items.size(); ++i) {
    convert_shard(ShardEntry(shards->items[i], path, i), config, writer, log);
  }
  writer.publish();
  return writer.counts();
}

}  // namespace troupe
