#include "troupe/train/observe/tensorboard.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <memory>

#include "troupe/core/file/host_name.h"
#include "troupe/core/file/secrets.h"
#include "troupe/core/unix_seconds.h"

namespace troupe {
namespace {

static_assert(std::endian::native == std::endian::little, "events are little-endian");

constexpr auto kCrcTable = [] {
  std::array<uint32_t, 256> out{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t c = i;
    for (int bit = 0; bit < 8; ++bit) c = (c & 1) != 0 ? 0x82F63B78u ^ c >> 1 : c >> 1;
    out[i] = c;
  }
  return out;
}();

template <class T>
std::string bytes_of(T value) {
  std::string out(sizeof(T), '\0');
  std::memcpy(out.data(), &value, sizeof(T));
  return out;
}

// Protocol buffers: a field is its number and wire type, then a varint (0), 8 bytes (1), a length
// and that many bytes (2), or 4 bytes (5).
std::string varint(uint64_t value) {
  std::string out;
  for (; value >= 128; value >>= 7) out += static_cast<char>(value | 128);
  return out + static_cast<char>(value);
}
std::string key(int field, int type) {
  return varint(static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(type));
}
std::string integer(int field, int64_t value) {
  return key(field, 0) + varint(static_cast<uint64_t>(value));
}
std::string real(int field, double value) {
  return key(field, 1) + bytes_of(value);
}
std::string text(int field, std::string_view bytes) {
  return key(field, 2) + varint(bytes.size()) + std::string(bytes);
}
std::string packed(int field, std::span<const double> values) {
  std::string bytes;
  for (const double value : values) bytes += bytes_of(value);
  return text(field, bytes);
}

std::string event(double time, int64_t step, std::string_view rest) {
  return tensorboard::framed(real(1, time) + (step == 0 ? "" : integer(2, step)) +
                             std::string(rest));
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t c = 0xFFFFFFFFu;
  for (const char byte : bytes) c = kCrcTable[(c ^ static_cast<uint8_t>(byte)) & 255] ^ c >> 8;
  return ~c;
}

uint32_t masked_crc32c(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xA282EAD8u;
}

namespace tensorboard {

std::string framed(std::string_view event) {
  const std::string length = bytes_of(static_cast<uint64_t>(event.size()));
  return length + bytes_of(masked_crc32c(length)) + std::string(event) +
         bytes_of(masked_crc32c(event));
}

std::string version_event(double time) {
  return event(time, 0, text(3, "brain.Event:2"));
}

std::string session_start_event(double time, int64_t step) {
  return event(time, step, text(7, integer(1, 1)));
}

std::string scalars_event(double time, int64_t step,
                          const std::vector<std::pair<std::string, double>>& scalars) {
  std::string summary;
  for (const auto& [tag, value] : scalars) {
    summary += text(1, text(1, tag) + key(2, 5) + bytes_of(static_cast<float>(value)));
  }
  return event(time, step, text(5, summary));
}

std::string text_event(double time, int64_t step, std::string_view tag, std::string_view content) {
  const std::string plugin = text(1, text(1, "text"));
  const std::string shape = text(2, integer(1, 1));  // one dimension of size 1
  const std::string tensor = integer(1, 7) + text(2, shape) + text(8, content);  // 7: strings
  return event(time, step, text(5, text(1, text(1, tag) + text(8, tensor) + text(9, plugin))));
}

std::string counts_event(double time, int64_t step, std::string_view tag,
                         std::span<const double> counts) {
  double num = 0, sum = 0, squares = 0;
  std::vector<double> limits;
  for (size_t i = 0; i < counts.size(); ++i) {
    const auto x = static_cast<double>(i);
    num += counts[i];
    sum += counts[i] * x;
    squares += counts[i] * x * x;
    limits.push_back(x + 0.5);
  }
  const double last = counts.empty() ? 0 : static_cast<double>(counts.size() - 1);
  const std::string histogram = real(1, 0) + real(2, last) + real(3, num) + real(4, sum) +
                                real(5, squares) + packed(6, limits) + packed(7, counts);
  return event(time, step, text(5, text(1, text(1, tag) + text(5, histogram))));
}

}  // namespace tensorboard

TensorBoard::TensorBoard(std::string folder, int64_t resumed_step, Log log)
    : folder_(std::move(folder)), log_(std::move(log)) {
  open(resumed_step);
}

void TensorBoard::open(int64_t resumed_step) {
  const double time = unix_seconds();
  const std::string seconds = std::to_string(static_cast<int64_t>(time));
  const std::string stem = folder_ + "/events.out.tfevents." +
                           std::string(10 - std::min<size_t>(10, seconds.size()), '0') + seconds +
                           '.' + host_name("unknown") + '.' + std::to_string(::getpid()) + '.';
  std::string path;
  do {
    path = stem + std::to_string(files_++);
  } while (::access(path.c_str(), F_OK) == 0);
  file_ = std::make_unique<AppendFile>(path, log_, AppendFile::Holds::kRecords);
  file_->append(tensorboard::version_event(time) +
                (resumed_step >= 0 ? tensorboard::session_start_event(time, resumed_step) : ""));
}

void TensorBoard::write(int64_t step, std::string_view bytes) {
  // At most one new file a thousand failures would still be a thousand files: after 16 it stays.
  if (!file_->append(bytes) && files_ < 16) open(step);
}

void TensorBoard::scalars(int64_t step,
                          const std::vector<std::pair<std::string, double>>& scalars) {
  write(step, tensorboard::scalars_event(unix_seconds(), step, scalars));
}

void TensorBoard::text(int64_t step, std::string_view tag, std::string_view text) {
  write(step, tensorboard::text_event(unix_seconds(), step, tag, without_secrets(text)));
}

void TensorBoard::counts(int64_t step, std::string_view tag, std::span<const double> counts) {
  write(step, tensorboard::counts_event(unix_seconds(), step, tag, counts));
}

}  // namespace troupe
