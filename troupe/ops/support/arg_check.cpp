#include "troupe/ops/support/arg_check.h"

#include <string>
#include <string_view>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace detail {
namespace {

std::vector<c10::SymInt> wanted_sizes(std::string_view letters, const DimSizes& sizes) {
  std::vector<c10::SymInt> want;
  for (const char letter : letters) {
    const c10::SymInt* known = sizes.find(letter);
    want.push_back(letter == '1' ? c10::SymInt(1) : known != nullptr ? *known : c10::SymInt(-1));
  }
  return want;
}

// A letter that is new gets its size.
bool fits(const at::Tensor& x, std::string_view letters, bool any_before, DimSizes& sizes) {
  if (!x.defined()) return false;
  const int64_t n = static_cast<int64_t>(letters.size()), before = x.dim() - n;
  if (before < 0 || (before > 0 && !any_before)) return false;
  for (int64_t i = 0; i < n; ++i) {
    const char letter = letters[static_cast<size_t>(i)];
    const c10::SymInt* known = sizes.find(letter);
    if (letter == '*') continue;
    const c10::SymInt size = x.sym_size(before + i);
    if (letter != '1' && known == nullptr) {
      sizes.set(letter, size);
      continue;
    }
    const c10::SymBool same = size.sym_eq(letter == '1' ? c10::SymInt(1) : *known);
    if (!same.expect_true(__FILE__, __LINE__)) return false;
  }
  return true;
}

at::ScalarType wanted_type(const OfType& type, const at::Tensor& x, const at::Tensor& lead) {
  switch (type.rule) {
    case OfType::Rule::kAny: return x.scalar_type();
    case OfType::Rule::kGiven: return type.given;
    case OfType::Rule::kLead: return lead.scalar_type();
    case OfType::Rule::kWide: return wide_type(lead);
  }
  return type.given;
}

}  // namespace

void check_arg(const CheckedArg& one, const at::Tensor& lead, DimSizes& sizes) {
  std::string_view letters = one.letters;
  const bool any_before = letters.starts_with("...");
  if (any_before) letters.remove_prefix(3);
  const auto name = [&] { return std::string(one.op) + ": " + one.name; };
  TROUPE_CHECK(fits(one.x, letters, any_before, sizes), name(), "must have sizes",
               c10::SymIntArrayRef(wanted_sizes(letters, sizes)), "(-1: any)",
               any_before ? "behind any others" : "", "; it is", tensor_text(one.x));
  const at::ScalarType type = wanted_type(one.type, one.x, lead);
  if (one.x.scalar_type() != type) check_dtype(one.x, type, name().c_str());
  if (one.x.device() != lead.device()) check_same_device(one.x, lead, name().c_str());
}

}  // namespace detail

DimSizes::DimSizes(std::initializer_list<std::pair<char, c10::SymInt>> known) {
  for (const auto& [letter, size] : known) set(letter, size);
}

const c10::SymInt* DimSizes::find(char letter) const {
  for (size_t i = 0; i < used_; ++i) {
    if (letters_[i] == letter) return &sizes_[i];
  }
  return nullptr;
}

void DimSizes::set(char letter, const c10::SymInt& size) {
  TROUPE_CHECK(used_ < kMost, "an operator's arguments have more than", kMost, "sizes");
  letters_[used_] = letter;
  sizes_[used_++] = size;
}

const c10::SymInt& DimSizes::operator[](char letter) const {
  const c10::SymInt* size = find(letter);
  TROUPE_CHECK(size != nullptr, "no argument that is given has a size", letter);
  return *size;
}

}  // namespace troupe
