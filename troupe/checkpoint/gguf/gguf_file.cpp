#include "troupe/checkpoint/gguf/gguf_file.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <string_view>

#include "troupe/core/check.h"
#include "troupe/core/number/f16.h"
#include "troupe/core/number/round.h"

namespace troupe {

static_assert(std::endian::native == std::endian::little, "the file's numbers are little-endian");

namespace {

constexpr uint32_t kVersion = 3;

// The format's numbers for the types of values.
enum : uint32_t { kUint32 = 4, kInt32 = 5, kFloat32 = 6, kBool = 7, kText = 8, kList = 9 };

template <class T>
void put_number(std::string& out, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out.append(bytes, sizeof(T));
}

void put_text(std::string& out, std::string_view text) {
  put_number<uint64_t>(out, text.size());
  out += text;
}

// Type and value.
class PutValue {
 public:
  explicit PutValue(std::string& out) : out_(out) {}

  void operator()(uint32_t value) { single(kUint32, value); }
  void operator()(float value) { single(kFloat32, value); }
  void operator()(bool value) { single(kBool, static_cast<uint8_t>(value)); }
  void operator()(const std::string& text) {
    put_number<uint32_t>(out_, kText);
    put_text(out_, text);
  }
  void operator()(const std::vector<int32_t>& list) { numbers(kInt32, list); }
  void operator()(const std::vector<float>& list) { numbers(kFloat32, list); }
  void operator()(const std::vector<std::string>& list) {
    begin_list(kText, list.size());
    for (const std::string& text : list) put_text(out_, text);
  }

 private:
  template <class T>
  void single(uint32_t type, T value) {
    put_number(out_, type);
    put_number(out_, value);
  }
  template <class T>
  void numbers(uint32_t type, const std::vector<T>& list) {
    begin_list(type, list.size());
    for (const T value : list) put_number(out_, value);
  }
  void begin_list(uint32_t type, size_t count) {
    put_number<uint32_t>(out_, kList);
    put_number(out_, type);
    put_number<uint64_t>(out_, count);
  }

  std::string& out_;
};

void put_entry(std::string& out, const GgufEntry& tensor, int64_t offset) {
  put_text(out, tensor.name);
  put_number<uint32_t>(out, static_cast<uint32_t>(tensor.shape.size()));
  for (auto size = tensor.shape.rbegin(); size != tensor.shape.rend(); ++size) {
    put_number<uint64_t>(out, static_cast<uint64_t>(*size));
  }
  put_number<uint32_t>(out, static_cast<uint32_t>(tensor.type));
  put_number<uint64_t>(out, static_cast<uint64_t>(offset));
}

float largest(std::span<const float> block) {
  float most = 0;
  for (const float x : block) {
    if (!std::isfinite(x)) return x;
    most = std::max(most, std::abs(x));
  }
  return most;
}

}  // namespace

int64_t gguf_bytes(const GgufEntry& tensor) {
  const int64_t numbers =
      std::accumulate(tensor.shape.begin(), tensor.shape.end(), int64_t{1}, std::multiplies<>());
  switch (tensor.type) {
    case GgufType::kF32: return numbers * 4;
    case GgufType::kBF16: return numbers * 2;
    case GgufType::kQ8_0: break;
  }
  TROUPE_CHECK(!tensor.shape.empty() && tensor.shape.back() % kQ8Block == 0, tensor.name);
  return numbers / kQ8Block * kQ8Bytes;
}

std::string gguf_header(const std::vector<GgufField>& fields,
                        const std::vector<GgufEntry>& tensors) {
  std::string out = "GGUF";
  put_number(out, kVersion);
  put_number<uint64_t>(out, tensors.size());
  put_number<uint64_t>(out, fields.size());
  for (const GgufField& field : fields) {
    put_text(out, field.key);
    std::visit(PutValue(out), field.value);
  }
  int64_t offset = 0;
  for (const GgufEntry& tensor : tensors) {
    put_entry(out, tensor, offset);
    offset += round_up(gguf_bytes(tensor), kGgufAlignment);
  }
  out.resize(static_cast<size_t>(round_up(std::ssize(out), kGgufAlignment)), '\0');
  return out;
}

bool append_q8_0(std::span<const float> numbers, std::vector<std::byte>& out) {
  TROUPE_CHECK(std::ssize(numbers) % kQ8Block == 0, std::ssize(numbers), "numbers");
  const size_t before = out.size();
  out.resize(before + numbers.size() / kQ8Block * kQ8Bytes);
  std::byte* to = out.data() + before;
  for (; !numbers.empty(); numbers = numbers.subspan(kQ8Block)) {
    const std::span<const float> block = numbers.first(kQ8Block);
    const float scale = largest(block) / 127;
    const F16 stored(scale);
    if (!std::isfinite(static_cast<float>(stored))) {
      out.resize(before);
      return false;
    }
    const float inverse = scale == 0 ? 0 : 1 / scale;
    std::memcpy(to, &stored.bits, sizeof(stored.bits));
    to += sizeof(stored.bits);
    for (const float x : block) *to++ = static_cast<std::byte>(std::lround(x * inverse));
  }
  return true;
}

}  // namespace troupe
