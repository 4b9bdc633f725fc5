#include "troupe/data/tokenizer/bpe.h"

#include <algorithm>
#include <functional>

#include "troupe/core/check.h"
#include "troupe/core/text/utf8.h"

namespace troupe {
namespace {

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581, which stands for a space
// Above it a heap beats looking at all pairs again after each merge.
constexpr size_t kShort = 64;

}  // namespace

Bpe::Bpe(BpeSpec spec) : spec_(std::move(spec)), pairs_(spec_.merges.size()) {
  table_.reserve(spec_.tokens.size());
  first_.fill(-1);
  for (const auto& [text, id] : spec_.tokens) {
    table_.add(text, id);
    const bool one =
        text.size() == 1 && (spec_.bytes || static_cast<unsigned char>(text[0]) < 0x80);
    if (one) first_[static_cast<unsigned char>(text[0])] = id;
  }
  for (size_t rank = 0; rank < spec_.merges.size(); ++rank) {
    const auto [left, right, result] = spec_.merges[rank];
    pairs_.set(static_cast<uint32_t>(left), static_cast<uint32_t>(right),
               spec_.ranks.empty() ? static_cast<uint32_t>(rank) : spec_.ranks[rank],
               static_cast<uint32_t>(result));
  }
  cut_ = may_cut_before_spaces();
}

// Where a text is one piece, with U+2581 for its spaces, no token reaches over the beginning of a
// word as a rule. Then each word can be encoded alone, and remembered, with the same result.
bool Bpe::may_cut_before_spaces() const {
  if (spec_.bytes || spec_.whole_first || table_.find(kSpaceMark) < 0) return false;
  std::vector<std::string_view> text_of;
  for (const auto& [text, id] : spec_.tokens) {
    if (static_cast<size_t>(id) >= text_of.size()) text_of.resize(static_cast<size_t>(id) + 1);
    text_of[static_cast<size_t>(id)] = text;
  }
  return std::none_of(spec_.merges.begin(), spec_.merges.end(), [&](const BpeMerge& m) {
    return !text_of[static_cast<size_t>(m.left)].ends_with(kSpaceMark) &&
           text_of[static_cast<size_t>(m.right)].starts_with(kSpaceMark);
  });
}

void Bpe::append(std::string_view piece, const char* end, Scratch& scratch,
                 std::vector<TokenId>& out) const {
  while (cut_ && !piece.empty()) {
    size_t cut = 0;  // past the marks that the word begins with, then to the next mark
    while (piece.substr(cut).starts_with(kSpaceMark)) cut += kSpaceMark.size();
    cut = std::min(piece.find(kSpaceMark, cut), piece.size());
    append_uncut(piece.substr(0, cut), end, scratch, out);
    piece.remove_prefix(cut);
  }
  if (!piece.empty()) append_uncut(piece, end, scratch, out);
}

void Bpe::append_uncut(std::string_view piece, const char* end, Scratch& scratch,
                       std::vector<TokenId>& out) const {
  if (piece.size() > WordCache::kMostBytes) {
    encode(piece, scratch);
    out.insert(out.end(), scratch.ids.begin(), scratch.ids.end());
    return;
  }
  const WordCache::Key key = WordCache::key_of(piece, end);
  WordCache::Entry& entry = scratch.cache.place_of(key);
  if (!(entry.key == key)) {
    encode(piece, scratch);
    if (scratch.ids.size() > WordCache::kMostIds) {
      out.insert(out.end(), scratch.ids.begin(), scratch.ids.end());
      return;
    }
    WordCache::put(entry, key, scratch.ids);
  }
  out.insert(out.end(), entry.ids.begin(), entry.ids.begin() + entry.count);
}

void Bpe::encode(std::string_view piece, Scratch& scratch) const {
  scratch.ids.clear();
  if (spec_.whole_first) {
    const TokenId whole = table_.find(piece);
    if (whole >= 0) return scratch.ids.push_back(whole);
  }
  begin(piece, scratch.ids);
  if (scratch.ids.size() <= kShort) {
    merge_short(scratch.ids);
  } else {
    merge_long(scratch);
  }
}

void Bpe::begin(std::string_view piece, std::vector<TokenId>& ids) const {
  if (!spec_.bytes) return begin_characters(piece, ids);
  bool in_unk = false;
  for (const char c : piece) {
    const TokenId id = first_[static_cast<unsigned char>(c)];
    if (id >= 0) {
      ids.push_back(id);
    } else if (spec_.unk >= 0 && !(in_unk && spec_.fuse_unk)) {
      ids.push_back(spec_.unk);
    }
    in_unk = id < 0;
  }
}

void Bpe::begin_characters(std::string_view piece, std::vector<TokenId>& ids) const {
  bool unk_waits =
      false;  // it comes before the next token, but behind bytes: as the reference does
  const auto end_unk = [&] {
    if (unk_waits) ids.push_back(spec_.unk);
    unk_waits = false;
  };
  for (size_t at = 0; at < piece.size();) {
    const Utf8Char c = utf8_at(piece, at);
    const std::string_view text = piece.substr(at, c.bytes);
    at += c.bytes;
    const TokenId id = c.bytes == 1 ? first_[c.code] : table_.find(text);
    if (id >= 0) {
      end_unk();
      ids.push_back(id);
    } else if (!add_bytes_of(text, ids) && spec_.unk >= 0) {
      if (!spec_.fuse_unk) end_unk();
      unk_waits = true;
    }
  }
  end_unk();
}

bool Bpe::add_bytes_of(std::string_view character, std::vector<TokenId>& ids) const {
  const auto token = [&](char c) { return spec_.byte_tokens[static_cast<unsigned char>(c)]; };
  if (!spec_.byte_fallback ||
      !std::all_of(character.begin(), character.end(), [&](char c) { return token(c) >= 0; })) {
    return false;
  }
  for (const char c : character) ids.push_back(token(c));
  return true;
}

// merges[i] is what ids i and i + 1 make.
void Bpe::merge_short(std::vector<TokenId>& ids) const {
  std::array<PairTable::Merge, kShort> merges;
  const auto look = [&](size_t i) {
    return pairs_.find(static_cast<uint32_t>(ids[i]), static_cast<uint32_t>(ids[i + 1]));
  };
  size_t n = ids.size();
  for (size_t i = 0; i + 1 < n; ++i) merges[i] = look(i);
  while (n > 1) {
    const auto best = std::min_element(merges.begin(), merges.begin() + static_cast<int64_t>(n) - 1,
                                       [](auto a, auto b) { return a >> 32 < b >> 32; });
    if (*best == PairTable::kNone) break;
    const auto i = static_cast<size_t>(best - merges.begin());
    ids[i] = static_cast<TokenId>(*best & 0xFFFFFFFF);
    std::copy(ids.begin() + static_cast<int64_t>(i) + 2, ids.begin() + static_cast<int64_t>(n),
              ids.begin() + static_cast<int64_t>(i) + 1);
    std::copy(best + 1, merges.begin() + static_cast<int64_t>(n) - 1, best);
    --n;
    if (i > 0) merges[i - 1] = look(i - 1);
    if (i + 1 < n) merges[i] = look(i);
  }
  ids.resize(n);
}

// The same with a heap of (rank, place), linked symbols, and entries that are out of date passed
// over: n log n, so that a megabyte without a space takes no longer than one with them.
void Bpe::merge_long(Scratch& s) const {
  const auto n = static_cast<int32_t>(s.ids.size());
  const auto id = [&](int32_t i) { return static_cast<uint32_t>(s.ids[static_cast<size_t>(i)]); };
  const auto at = [](auto& list, int32_t i) -> auto& {
    return list[static_cast<size_t>(i)];
  };
  s.merges.assign(s.ids.size(), PairTable::kNone);
  s.next.resize(s.ids.size());
  s.before.resize(s.ids.size());
  s.heap.clear();
  const auto entry = [&](int32_t i) {
    return (at(s.merges, i) >> 32 << 32) | static_cast<uint32_t>(i);
  };
  const auto look = [&](int32_t i) {
    const int32_t j = at(s.next, i);
    at(s.merges, i) = j < n ? pairs_.find(id(i), id(j)) : PairTable::kNone;
    return at(s.merges, i) != PairTable::kNone;
  };
  const auto push = [&](int32_t i) {
    if (!look(i)) return;
    s.heap.push_back(entry(i));
    std::push_heap(s.heap.begin(), s.heap.end(), std::greater<>());
  };
  for (int32_t i = 0; i < n; ++i) {
    at(s.next, i) = i + 1;
    at(s.before, i) = i - 1;
  }
  for (int32_t i = 0; i < n; ++i) {
    if (look(i)) s.heap.push_back(entry(i));
  }
  std::make_heap(s.heap.begin(), s.heap.end(), std::greater<>());
  while (!s.heap.empty()) {
    std::pop_heap(s.heap.begin(), s.heap.end(), std::greater<>());
    const auto i = static_cast<int32_t>(s.heap.back() & 0xFFFFFFFF);
    const bool is_current = at(s.merges, i) != PairTable::kNone && entry(i) == s.heap.back();
    s.heap.pop_back();
    if (!is_current) continue;
    const int32_t gone = at(s.next, i);
    at(s.ids, i) = static_cast<TokenId>(at(s.merges, i) & 0xFFFFFFFF);
    at(s.merges, gone) = PairTable::kNone;
    at(s.next, i) = at(s.next, gone);
    if (at(s.next, i) < n) at(s.before, at(s.next, i)) = i;
    push(i);
    if (at(s.before, i) >= 0) push(at(s.before, i));
  }
  size_t kept = 0;
  for (int32_t i = 0; i < n; i = at(s.next, i)) s.ids[kept++] = at(s.ids, i);
  s.ids.resize(kept);
}

}  // namespace troupe
