#include "troupe/train/report/read_events.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>

#include "troupe/core/file/file.h"
#include "troupe/train/observe/tensorboard.h"

namespace troupe {
namespace {

struct Malformed {};  // thrown inside a record that is no event

template <class T>
T load(std::string_view bytes) {
  if (bytes.size() < sizeof(T)) throw Malformed{};
  T out;
  bytes.copy(reinterpret_cast<char*>(&out), sizeof(T));
  return out;
}

// Protocol buffers, as tensorboard.cpp writes them.
struct Field {
  int number = 0;
  uint64_t integer = 0;         // wire type 0
  std::string_view bytes = {};  // types 1, 2, 5
};

class ProtobufMessage {
 public:
  explicit ProtobufMessage(std::string_view bytes) : left_(bytes) {}

  std::optional<Field> next() {
    if (left_.empty()) return std::nullopt;
    const uint64_t key = varint();
    Field out{.number = static_cast<int>(key >> 3 & 0x1FFFFFFF)};
    switch (key & 7) {
      case 0: out.integer = varint(); break;
      case 1: out.bytes = take(8); break;
      case 2: out.bytes = take(varint()); break;
      case 5: out.bytes = take(4); break;
      default: throw Malformed{};
    }
    return out;
  }

 private:
  uint64_t varint() {
    uint64_t out = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      out |= static_cast<uint64_t>(byte & 127) << shift;
      if (byte < 128) return out;
    }
    throw Malformed{};
  }
  std::string_view take(uint64_t n) {
    if (n > left_.size()) throw Malformed{};
    const std::string_view out = left_.substr(0, n);
    left_.remove_prefix(n);
    return out;
  }

  std::string_view left_;
};

class Events {
 public:
  explicit Events(EventsSummary& out) : out_(out) {}

  void add(std::string_view bytes) {
    int64_t step = 0;
    std::vector<std::string_view> summaries;
    ProtobufMessage event(bytes);
    bool starts = false;
    while (const auto field = event.next()) {
      if (field->number == 2) step = static_cast<int64_t>(field->integer);
      if (field->number == 3) out_.version = field->bytes;
      if (field->number == 5) summaries.push_back(field->bytes);
      if (field->number == 7) starts = is_start(field->bytes);
    }
    if (starts) out_.starts.push_back(step);
    for (const std::string_view summary : summaries) add_summary(step, summary);
    ++out_.events;
  }

  void finish() {
    for (auto& [name, tag] : tags_) out_.tags.push_back(std::move(tag));
  }

 private:
  static bool is_start(std::string_view bytes) {
    ProtobufMessage log(bytes);
    bool out = false;
    while (const auto field = log.next()) out |= field->number == 1 && field->integer == 1;
    return out;
  }

  void add_summary(int64_t step, std::string_view bytes) {
    ProtobufMessage summary(bytes);
    while (const auto field = summary.next()) {
      if (field->number == 1) add_value(step, field->bytes);
    }
  }

  void add_value(int64_t step, std::string_view bytes) {
    EventTag found{.tag = "", .kind = "other"};
    ProtobufMessage value(bytes);
    while (const auto field = value.next()) {
      if (field->number == 1) found.tag = field->bytes;
      if (field->number == 2) found.kind = "scalar", found.last = load<float>(field->bytes);
      if (field->number == 5) found.kind = "histogram";
      if (field->number == 8) read_tensor(field->bytes, found);
    }
    EventTag& tag = tags_[found.tag];
    if (tag.points == 0) tag.first_step = step;
    tag.tag = found.tag;
    tag.kind = found.kind;
    tag.last = found.last;
    tag.last_step = step;
    ++tag.points;
  }

  // Newer writers hold scalars and texts as tensors: field 1 is the type, 1 (f32) or 7 (strings).
  static void read_tensor(std::string_view bytes, EventTag& out) {
    ProtobufMessage tensor(bytes);
    uint64_t type = 0;
    while (const auto field = tensor.next()) {
      if (field->number == 1) type = field->integer;
      const bool number = type == 1 && (field->number == 4 || field->number == 5);
      if (number && field->bytes.size() == 4) {
        out.kind = "scalar";
        out.last = load<float>(field->bytes);
      }
    }
    if (type == 7) out.kind = "text";
  }

  EventsSummary& out_;
  std::map<std::string, EventTag> tags_;
};

// Reads records one by one; the next is absent at the end, and where one is cut off (`torn`).
class Records {
 public:
  explicit Records(const std::string& path) : file_(path) {}

  std::optional<std::string_view> next(std::string& torn) {
    constexpr int64_t kHead = 12, kTail = 4, kMost = int64_t{256} << 20;
    const int64_t left = file_.size() - at_;
    if (left == 0) return std::nullopt;
    if (left < kHead) return tear(torn, left, kHead);
    const std::string_view head = read(at_, kHead);
    const auto size = load<uint64_t>(head);
    if (load<uint32_t>(head.substr(8)) != masked_crc32c(head.substr(0, 8))) {
      refuse(at_, "the checksum of a record's length does not fit");
    }
    if (size > static_cast<uint64_t>(kMost)) {
      refuse(at_, "a record of " + std::to_string(size) + " bytes; the limit is " +
                      std::to_string(kMost));
    }
    const auto whole = kHead + static_cast<int64_t>(size) + kTail;
    if (left < whole) return tear(torn, left, whole);
    const std::string_view body = read(at_ + kHead, static_cast<int64_t>(size) + kTail);
    const std::string_view event = body.substr(0, size);
    if (load<uint32_t>(body.substr(size)) != masked_crc32c(event)) {
      refuse(at_, "the checksum of a record does not fit");
    }
    begin_ = at_;
    at_ += whole;
    return event;
  }

  int64_t size() const { return file_.size(); }
  [[noreturn]] void refuse_last() const { refuse(begin_, "a record holds no event"); }

 private:
  [[noreturn]] void refuse(int64_t at, const std::string& what) const {
    fail(Code::kUnreadableData, file_.path() + " at byte " + std::to_string(at), what,
         "(a TensorBoard event file is expected)");
  }
  std::nullopt_t tear(std::string& torn, int64_t left, int64_t wanted) const {
    torn = "at byte " + std::to_string(at_) + ": " + std::to_string(left) + " of " +
           std::to_string(wanted) + " bytes of a record";
    return std::nullopt;
  }
  std::string_view read(int64_t at, int64_t size) {
    buffer_.resize(static_cast<size_t>(size));
    file_.read_at(at, std::as_writable_bytes(std::span(buffer_)));
    return buffer_;
  }

  InputFile file_;
  int64_t at_ = 0, begin_ = 0;
  std::string buffer_;
};

}  // namespace

EventsSummary read_events(const std::string& path) {
  Records records(path);
  EventsSummary out{.path = path, .bytes = records.size()};
  Events events(out);
  while (const auto event = records.next(out.torn)) {
    try {
      events.add(*event);
    } catch (const Malformed&) {
      records.refuse_last();
    }
  }
  if (out.events == 0)
    fail(Code::kUnreadableData, path, "holds no whole event;", out.bytes, "bytes");
  events.finish();
  return out;
}

}  // namespace troupe
