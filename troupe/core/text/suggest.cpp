#include "troupe/core/text/suggest.h"

#include <algorithm>

namespace troupe {
namespace {

// Edits between two words, where a swap of neighbors is one (optimal string alignment); `most` + 1
// where their lengths alone ask for more.
size_t distance(std::string_view a, std::string_view b, size_t most) {
  if (std::max(a.size(), b.size()) - std::min(a.size(), b.size()) > most) return most + 1;
  const size_t cols = b.size() + 1;
  std::vector<size_t> table((a.size() + 1) * cols);
  const auto at = [&](size_t i, size_t j) -> size_t& { return table[i * cols + j]; };
  for (size_t i = 0; i <= a.size(); ++i) at(i, 0) = i;
  for (size_t j = 0; j <= b.size(); ++j) at(0, j) = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = at(i - 1, j - 1) + (a[i - 1] != b[j - 1]);
      at(i, j) = std::min({replaced, at(i - 1, j) + 1, at(i, j - 1) + 1});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) at(i, j) = std::min(at(i, j), at(i - 2, j - 2) + 1);
    }
  }
  return table.back();
}

std::string without_marks(std::string_view word) {
  std::string out = normalized(word);
  std::erase(out, '_');
  return out;
}

}  // namespace

std::string normalized(std::string_view word) {
  std::string out(word);
  for (char& c : out) {
    if ('A' <= c && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    if (c == '-' || c == ' ') c = '_';
  }
  return out;
}

std::string_view nearest(std::string_view word, const std::vector<std::string_view>& known) {
  return nearest(word, known, std::max<size_t>(2, word.size() / 3));
}

std::string_view nearest(std::string_view word, const std::vector<std::string_view>& known,
                         size_t most) {
  constexpr size_t kLongest = 256;  // Nobody's field: not worth a table of its square.
  if (word.size() > kLongest) return {};
  const std::string wanted = normalized(word);
  std::string_view best;
  size_t best_distance = most + 1;
  for (const std::string_view name : known) {
    const size_t edits = distance(wanted, normalized(name), best_distance);
    // A word made of nothing but edits resembles everything.
    if (edits < best_distance && edits < name.size()) best = name, best_distance = edits;
  }
  return best;
}

std::string_view nearest_choice(std::string_view word, const std::vector<std::string_view>& known) {
  const std::string_view near = nearest(word, known);
  const std::string begin = without_marks(word);
  if (!near.empty() || begin.size() < 2) return near;
  std::string_view found;
  for (const std::string_view name : known) {
    if (!without_marks(name).starts_with(begin)) continue;
    if (!found.empty()) return {};
    found = name;
  }
  return found;
}

std::string joined(const std::vector<std::string_view>& words) {
  std::string out;
  for (const std::string_view word : words) out.append(out.empty() ? "" : ", ").append(word);
  return out;
}

}  // namespace troupe
