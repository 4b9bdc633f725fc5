// The header's reader: events of the JSON parser and a small machine, so that a hostile header
// costs no more than the entries it really has.
#include <nlohmann/json.hpp>

#include <algorithm>

#include "troupe/checkpoint/files/safetensors.h"
#include "troupe/core/check.h"

namespace troupe {
namespace {

constexpr int kMaxDepth = 64;
constexpr std::string_view kMetadataKey = "__metadata__";

class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderReader(const std::string& file, SafetensorsHeader& out) : file_(file), out_(out) {}

  bool null() override { return in_ == In::kMetadata ? pair("") : scalar("null"); }
  bool boolean(bool) override { return scalar("true or false"); }
  bool number_integer(number_integer_t value) override {  // the negative ones
    return scalar("the number " + std::to_string(value));
  }
  bool number_float(number_float_t, const string_t& text) override {
    return scalar("the number " + text.substr(0, 40));
  }
  bool number_unsigned(number_unsigned_t value) override;
  bool string(string_t& text) override;
  bool binary(binary_t&) override { return false; }
  bool key(string_t& name) override;
  bool start_object(size_t) override;
  bool end_object() override;
  bool start_array(size_t) override;
  bool end_array() override;
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& e) override {
    const std::string what = e.what();
    refuse("invalid JSON in the header: " + what.substr(what.find(']') + 2, 200));
  }

 private:
  enum class In { kFile, kTop, kMetadata, kEntry, kShape, kOffsets };

  [[noreturn]] void refuse(const std::string& what) const {
    fail(Code::kBadModelFile, file_, what);
  }
  [[noreturn]] void refuse_entry(const std::string& what) const {
    refuse("tensor \"" + entry_.name.substr(0, 200) + "\": " + what);
  }
  // A value where only its kind is said to be wrong, or one of an unknown field.
  bool scalar(const std::string& what);
  bool pair(const std::string& value) { return out_.metadata.emplace_back(key_, value), true; }
  bool skips() {  // inside an unknown field's value
    return skip_depth_ > 0 || (in_ == In::kEntry && !known());
  }
  bool known() const { return key_ == "dtype" || key_ == "shape" || key_ == "data_offsets"; }
  void open_unknown() {
    if (++skip_depth_ > kMaxDepth) refuse_entry("nested deeper than " + std::to_string(kMaxDepth));
  }

  const std::string& file_;
  SafetensorsHeader& out_;
  In in_ = In::kFile;
  std::string key_;
  int skip_depth_ = 0;
  SafetensorsEntry entry_;
  Sizes offsets_;
  int fields_ = 0;  // bit 0: dtype, 1: shape, 2: data_offsets
  bool has_metadata_ = false;
};

bool HeaderReader::scalar(const std::string& what) {
  switch (in_) {
    case In::kFile: refuse("the header is " + what + " and not an object");
    case In::kTop: entry_.name = key_; refuse_entry(what + " where an object is expected");
    case In::kMetadata: refuse("__metadata__ \"" + key_ + "\" is " + what + " and not text");
    case In::kEntry:
      if (skips()) return true;
      refuse_entry("invalid " + key_ + ": " + what);
    case In::kShape: refuse_entry("invalid shape: " + what + " is not a size");
    case In::kOffsets: refuse_entry("invalid data_offsets: " + what + " is not an offset");
  }
  return true;
}

bool HeaderReader::number_unsigned(number_unsigned_t value) {
  if (skips() || (in_ != In::kShape && in_ != In::kOffsets)) {
    return scalar("the number " + std::to_string(value));
  }
  if (value > static_cast<uint64_t>(INT64_MAX)) {
    return scalar("the number " + std::to_string(value));
  }
  Sizes& sizes = in_ == In::kShape ? entry_.shape : offsets_;
  if (sizes.size() >= 64) refuse_entry("more than 64 numbers in " + key_);
  sizes.push_back(static_cast<int64_t>(value));
  return true;
}

bool HeaderReader::string(string_t& text) {
  if (in_ == In::kMetadata) return pair(text);
  if (in_ != In::kEntry || key_ != "dtype" || skip_depth_ > 0) {
    return scalar("the text \"" + text.substr(0, 40) + "\"");
  }
  if (!element_of(text, entry_.element)) {
    refuse_entry("unknown dtype \"" + text.substr(0, 40) + "\"");
  }
  fields_ |= 1;
  return true;
}

bool HeaderReader::key(string_t& name) {
  if (skip_depth_ > 0) return true;
  key_ = name;
  if (name.find('\0') != std::string::npos) refuse("a name holds a NUL byte");
  if (in_ == In::kEntry) {
    const int bit = name == "dtype" ? 1 : name == "shape" ? 2 : name == "data_offsets" ? 4 : 0;
    const bool twice = (fields_ & bit) != 0 || (bit == 2 && !entry_.shape.empty());
    if (bit != 0 && twice) refuse_entry("the field " + name + " is written twice");
  }
  return true;
}

bool HeaderReader::start_object(size_t) {
  if (skips()) return open_unknown(), true;
  if (in_ == In::kFile) {
    in_ = In::kTop;
  } else if (in_ == In::kTop && key_ == kMetadataKey) {
    if (std::exchange(has_metadata_, true)) refuse("__metadata__ is written twice");
    in_ = In::kMetadata;
  } else if (in_ == In::kTop) {
    in_ = In::kEntry;
    entry_ = {};
    entry_.name = key_;
    fields_ = 0;
    offsets_.clear();
    key_.clear();
  } else {
    return scalar("an object");
  }
  return true;
}

bool HeaderReader::end_object() {
  if (skip_depth_ > 0) return --skip_depth_, true;
  if (in_ == In::kEntry) {
    if (fields_ != 7) {
      refuse_entry(std::string("missing field ") + ((fields_ & 1) == 0   ? "dtype"
                                                    : (fields_ & 2) == 0 ? "shape"
                                                                         : "data_offsets"));
    }
    if (offsets_.size() != 2) {
      refuse_entry("data_offsets has " + std::to_string(offsets_.size()) + " numbers, not 2");
    }
    entry_.begin = offsets_[0], entry_.end = offsets_[1];
    if (entry_.name.empty()) out_.warnings.push_back(file_ + ": a tensor has an empty name");
    out_.tensors.push_back(std::move(entry_));
    if (out_.tensors.size() > kMaxSafetensorsTensors) {
      refuse("more than " + std::to_string(kMaxSafetensorsTensors) + " tensors");
    }
  }
  in_ = in_ == In::kTop ? In::kFile : In::kTop;
  return true;
}

bool HeaderReader::start_array(size_t) {
  if (skips()) return open_unknown(), true;
  if (in_ != In::kEntry || key_ == "dtype") return scalar("a list");
  in_ = key_ == "shape" ? In::kShape : In::kOffsets;
  fields_ |= in_ == In::kShape ? 2 : 4;
  return true;
}

bool HeaderReader::end_array() {
  if (skip_depth_ > 0) return --skip_depth_, true;
  in_ = In::kEntry;
  return true;
}

// The bytes of an entry are those its shape and type ask for.
void check_entry(const SafetensorsEntry& t, const std::string& file) {
  const std::string place =
      file + ": " + to_text(Code::kBadModelFile) + " tensor \"" + t.name + "\": ";
  const auto refuse = [&](const std::string& what) {
    throw Error(place + what, Code::kBadModelFile);
  };
  int64_t bits = bits_of(t.element);
  for (const int64_t size : t.shape) {
    if (__builtin_mul_overflow(bits, size, &bits)) {
      refuse("the shape " + to_text(t.shape) + " overflows");
    }
  }
  const std::string offsets =
      "data_offsets [" + std::to_string(t.begin) + ", " + std::to_string(t.end) + "]";
  if (t.end < t.begin) refuse(offsets + " end before they begin");
  if (bits % 8 != 0 || bits / 8 != t.bytes()) {
    refuse(offsets + " hold " + std::to_string(t.bytes()) + " bytes, but " +
           std::string(name_of(t.element)) + ' ' + to_text(t.shape) + " needs " +
           (bits % 8 == 0 ? std::to_string(bits / 8) + " bytes" : std::to_string(bits) + " bits"));
  }
}

void check_cover(const std::vector<SafetensorsEntry>& tensors, int64_t data_bytes,
                 const std::string& file) {
  int64_t at = 0;
  const std::string* before = nullptr;
  for (const SafetensorsEntry& t : tensors) {
    if (t.begin != at) {
      fail(Code::kBadModelFile, file, "tensor \"" + t.name + "\":",
           t.begin > at ? "a hole: it begins at byte" : "an overlap: it begins at byte", t.begin,
           before ? "and \"" + *before + "\" ends at" : std::string("and the data begins at"), at);
    }
    at = t.end;
    before = &t.name;
  }
  if (at != data_bytes) {
    fail(Code::kBadModelFile, file, "the tensors end at byte", at, "of the data, which has",
         data_bytes, at > data_bytes ? "(was the file cut?)" : "(is something appended?)");
  }
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view json, int64_t data_bytes,
                                           const std::string& file) {
  if (json.empty()) fail(Code::kBadModelFile, file, "invalid JSON in the header: it is empty");
  if (json.front() != '{') {
    fail(Code::kBadModelFile, file, "the header must begin with {, not with byte",
         static_cast<int>(static_cast<unsigned char>(json.front())));
  }
  if (const size_t nul = json.find('\0'); nul != std::string_view::npos) {
    fail(Code::kBadModelFile, file, "a NUL byte at byte", nul, "of the header");
  }
  SafetensorsHeader out;
  HeaderReader reader(file, out);
  nlohmann::json::sax_parse(json.begin(), json.end(), &reader);
  std::vector<const std::string*> names;
  for (const SafetensorsEntry& t : out.tensors) {
    check_entry(t, file);
    names.push_back(&t.name);
  }
  const auto less = [](const std::string* a, const std::string* b) { return *a < *b; };
  std::ranges::sort(names, less);
  const auto twice = std::ranges::adjacent_find(
      names, [](const std::string* a, const std::string* b) { return *a == *b; });
  if (twice != names.end()) {
    fail(Code::kBadModelFile, file, "duplicate name: tensor \"" + **twice + "\" is there twice");
  }
  // Empty tensors share their place with a neighbor: by end too.
  std::ranges::sort(out.tensors, [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  check_cover(out.tensors, data_bytes, file);
  return out;
}

}  // namespace troupe
