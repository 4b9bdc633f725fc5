#include "troupe/checkpoint/tensors/compare_tensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "troupe/checkpoint/files/names.h"
#include "troupe/core/check.h"
#include "troupe/core/number/bf16.h"
#include "troupe/core/number/f16.h"

namespace troupe {
namespace {

template <class T>
T load(const std::byte* from) {
  T out;
  std::memcpy(&out, from, sizeof(T));
  return out;
}

using ValueOf = double (*)(const std::byte*);

template <class T>
double number(const std::byte* at) {
  return static_cast<double>(load<T>(at));
}
template <class T>
double small_float(const std::byte* at) {
  return static_cast<double>(static_cast<float>(load<T>(at)));
}

// How an element's value is read; nullptr: it is not.
ValueOf value_of(Element element) {
  switch (element) {
    case Element::kF64: return number<double>;
    case Element::kF32: return number<float>;
    case Element::kBF16: return small_float<BF16>;
    case Element::kF16: return small_float<F16>;
    case Element::kI64: return number<int64_t>;
    case Element::kU64: return number<uint64_t>;
    case Element::kI32: return number<int32_t>;
    case Element::kU32: return number<uint32_t>;
    case Element::kI16: return number<int16_t>;
    case Element::kU16: return number<uint16_t>;
    case Element::kI8: return number<int8_t>;
    case Element::kU8:
    case Element::kBool: return number<uint8_t>;
    default: return nullptr;
  }
}

std::string shown(ValueOf value, const std::byte* at, size_t bytes) {
  if (value != nullptr) {
    const double x = value(at);
    return std::isnan(x) ? "nan" : std::isinf(x) ? (x > 0 ? "inf" : "-inf") : to_text(x);
  }
  std::string out = "0x";
  for (size_t i = bytes; i-- > 0;) {
    constexpr char kDigits[] = "0123456789abcdef";
    const auto byte = std::to_integer<unsigned>(at[i]);
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}

Sizes index_of(int64_t element, const Sizes& shape) {
  Sizes out(shape.size());
  for (size_t d = shape.size(); d-- > 0;) {
    out[d] = element % shape[d];
    element /= shape[d];
  }
  return out;
}

double distance(double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  const double d = std::abs(a - b);
  return std::isnan(d) ? std::numeric_limits<double>::infinity() : d;
}

void flatten_into(const Yaml& y, const std::string& path, std::map<std::string, std::string>& out) {
  const auto inner = [&](const std::string& name) {
    return path.empty() ? name : path + '.' + name;
  };
  for (const Yaml::Field& field : y.fields) flatten_into(field.value, inner(field.name), out);
  for (size_t i = 0; i < y.items.size(); ++i) {
    flatten_into(y.items[i], path + '[' + std::to_string(i) + ']', out);
  }
  if (y.kind == Yaml::Kind::kScalar) out[path] = y.text;
  if (y.kind == Yaml::Kind::kNull) out[path] = "null";
}

std::string text_of(const TensorSet::Tensor& t) {
  return std::string(name_of(t.element)) + ' ' + to_text(t.shape);
}

}  // namespace

ValueDifference compare_values(Element a, std::span<const std::byte> a_bytes, Element b,
                               std::span<const std::byte> b_bytes, const Sizes& shape) {
  // Elements under a byte are compared by the byte.
  const size_t a_size = static_cast<size_t>(std::max(1, bits_of(a) / 8));
  const size_t b_size = static_cast<size_t>(std::max(1, bits_of(b) / 8));
  const size_t count = a_bytes.size() / a_size;
  TROUPE_CHECK(count == b_bytes.size() / b_size, count, b_bytes.size(), b_size);
  const ValueOf value_a = value_of(a), value_b = value_of(b);
  const bool same_type = a == b, values = value_a != nullptr && value_b != nullptr;
  ValueDifference out{.elements = Box::whole(shape).numel()};
  if (values) out.max_abs = 0;
  if (same_type && std::memcmp(a_bytes.data(), b_bytes.data(), a_bytes.size()) == 0) return out;
  for (size_t i = 0; i < count; ++i) {
    const std::byte* const at_a = a_bytes.data() + i * a_size;
    const std::byte* const at_b = b_bytes.data() + i * b_size;
    const double apart = values ? distance(value_a(at_a), value_b(at_b)) : 0;
    const bool equal = same_type ? std::memcmp(at_a, at_b, a_size) == 0 : values && apart == 0;
    if (equal) continue;
    if (values) out.max_abs = std::max(*out.max_abs, apart);
    if (out.different++ > 0) continue;
    if (bits_of(a) >= 8) out.first = index_of(static_cast<int64_t>(i), shape);
    out.first_a = shown(value_a, at_a, a_size);
    out.first_b = shown(value_b, at_b, b_size);
  }
  return out;
}

std::vector<std::string> changes(const Yaml& a, const Yaml& b,
                                 const std::vector<std::string>& ignored) {
  std::map<std::string, std::string> in_a, in_b;
  flatten_into(a, "", in_a);
  flatten_into(b, "", in_b);
  std::map<std::string, std::string> all = in_a;
  all.insert(in_b.begin(), in_b.end());
  std::vector<std::string> out;
  for (const auto& [path, text] : all) {
    const auto said = [&, name = path](const std::map<std::string, std::string>& in) {
      const auto at = in.find(name);
      return at == in.end() ? std::string("nothing") : at->second;
    };
    const bool passed = std::ranges::any_of(ignored, [&, name = path](const std::string& end) {
      return name == end || name.ends_with('.' + end);
    });
    if (!passed && said(in_a) != said(in_b)) {
      out.push_back(path + ": " + said(in_a) + " and " + said(in_b));
    }
  }
  return out;
}

TensorComparison compare_tensors(const TensorSet& a, const TensorSet& b,
                                 const std::vector<std::string>& only) {
  std::set<std::string> names;
  for (const TensorSet* set : {&a, &b}) {
    for (const auto& [name, tensor] : set->tensors()) {
      if (only.empty() || matches_any(only, name)) names.insert(name);
    }
  }
  TensorComparison out{.tensors = std::ssize(names)};
  for (const std::string& name : names) {
    const auto in_a = a.tensors().find(name), in_b = b.tensors().find(name);
    if (in_a == a.tensors().end() || in_b == b.tensors().end()) {
      const bool is_a = in_b == b.tensors().end();
      out.differences.push_back({name, std::string("only in ") + (is_a ? "A" : "B") + ", " +
                                           text_of(is_a ? in_a->second : in_b->second)});
      continue;
    }
    const TensorSet::Tensor &t = in_a->second, &u = in_b->second;
    if (t.shape != u.shape) {
      out.differences.push_back({name, "is " + text_of(t) + " and " + text_of(u)});
      continue;
    }
    TensorDifference found{.name = name, .what = "values"};
    if (t.element != u.element) {
      found.what =
          "is " + std::string(name_of(t.element)) + " and " + std::string(name_of(u.element));
    }
    found.values = compare_values(t.element, a.read(name), u.element, b.read(name), t.shape);
    out.elements += found.values.elements;
    out.different += found.values.different;
    out.max_abs = std::max(out.max_abs, found.values.max_abs.value_or(0));
    if (t.element == u.element && found.values.different == 0) {
      ++out.equal;
    } else {
      out.differences.push_back(std::move(found));
    }
  }
  return out;
}

}  // namespace troupe
