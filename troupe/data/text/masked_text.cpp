#include "troupe/data/text/masked_text.h"

#include <algorithm>
#include <optional>
#include <string_view>

namespace troupe {
namespace {

constexpr std::string_view kSpaces = " \t\r\n";

// The bytes of the text that each id stands for. A decoder may put a space before a word that has
// none, and a special token take the white space beside it along; nothing where more is changed.
std::optional<std::vector<ByteSpan>> places_of(std::string_view text,
                                               const std::vector<std::string>& pieces) {
  std::vector<ByteSpan> out;
  size_t at = 0, waiting = 0;  // ids whose character goes on
  const auto take = [&](std::string_view piece) {
    if (text.substr(at).starts_with(piece)) return at += piece.size(), true;
    if (!piece.starts_with(' ') || !text.substr(at).starts_with(piece.substr(1))) return false;
    return at += piece.size() - 1, true;
  };
  for (const std::string& piece : pieces) {
    if (piece.empty()) {
      ++waiting;
      continue;
    }
    size_t begin = at;
    if (!take(piece)) {
      begin = at = std::min(text.find_first_not_of(kSpaces, at), text.size());
      if (!take(piece)) return std::nullopt;
    }
    out.resize(out.size() + waiting + 1, {begin, at});
    waiting = 0;
  }
  if (text.find_first_not_of(kSpaces, at) != std::string_view::npos) return std::nullopt;
  out.resize(pieces.size(), {at, at});
  return out;
}

// Where the text up to `at` ends in the ids of the whole; nothing where it is cut otherwise there.
std::optional<size_t> id_at(const std::string& text, size_t at, const Encode& encode,
                            std::span<const int32_t> whole) {
  std::vector<int32_t> ids;
  encode(std::string_view(text).substr(0, at), ids);
  if (ids.size() > whole.size() || !std::ranges::equal(ids, whole.first(ids.size()))) {
    return std::nullopt;
  }
  return ids.size();
}

// For tokenizers that normalize: what is learned begins and ends between two ids, or the text is refused.
void weigh_by_prefixes(const RenderedChat& chat, const Encode& encode, std::span<const int32_t> ids,
                       std::span<uint8_t> weights) {
  for (const ByteSpan& span : chat.learned) {
    const auto begin = id_at(chat.text, span.begin, encode, ids);
    const auto end = id_at(chat.text, span.end, encode, ids);
    if (!begin || !end || *end < *begin) {
      throw std::string(
          "the tokenizer changes the text, and an id is in part the assistant's: which ids are "
          "learned is not known");
    }
    std::ranges::fill(weights.subspan(*begin, *end - *begin), uint8_t{1});
  }
}

}  // namespace

void add_masked(const RenderedChat& chat, const Encode& encode, const Spell& spell,
                EncodedDocuments& out) {
  std::vector<int32_t> ids;
  encode(chat.text, ids);
  std::vector<uint8_t> weights(ids.size(), 0);
  const auto places = places_of(chat.text, spell(ids));
  if (places) {
    for (const ByteSpan& span : chat.learned) {
      for (size_t i = 0; i < ids.size(); ++i) {
        const ByteSpan& place = (*places)[i];
        if (place.begin < span.end && span.begin < place.end) weights[i] = 1;
      }
    }
  } else {
    weigh_by_prefixes(chat, encode, ids, weights);
  }
  out.ids.insert(out.ids.end(), ids.begin(), ids.end());
  out.weights.insert(out.weights.end(), weights.begin(), weights.end());
}

}  // namespace troupe
