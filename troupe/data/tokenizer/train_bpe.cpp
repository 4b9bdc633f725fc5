#include "troupe/data/tokenizer/train_bpe.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <limits>
#include <mutex>
#include <queue>
#include <sstream>
#include <unordered_map>
#include <utility>

#include "troupe/core/check.h"
#include "troupe/core/file/hash.h"
#include "troupe/core/text/text.h"
#include "troupe/core/text/utf8.h"
#include "troupe/data/tokenizer/byte_level.h"
#include "troupe/data/tokenizer/patterns.h"
#include "troupe/data/tokenizer/pre_tokenizer.h"

namespace troupe {
namespace {

struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return hash64(text); }
};
using Counts = std::unordered_map<std::string, int64_t, TextHash, std::equal_to<>>;

void count_words(std::string_view text, const PreTokenizer& cutter, Pieces& pieces,
                 Regex::Scratch& scratch, Counts& counts) {
  std::string repaired;
  if (!is_utf8(text)) text = repaired = repaired_utf8(text);
  pieces.reset(text, true);
  cutter.run(pieces, scratch);
  for (const Cut& cut : pieces.cuts) {
    const std::string_view word = pieces.piece(cut);
    const auto at = counts.find(word);
    if (at != counts.end()) {
      ++at->second;
    } else {
      counts.emplace(word, 1);
    }
  }
}

// (word, how often) of all texts, by word.
std::vector<std::pair<std::string, int64_t>> count_all(const std::vector<std::string_view>& texts,
                                                       const PreTokenizer& cutter,
                                                       const Pool& pool) {
  Counts all;
  std::mutex mutex;
  std::atomic<size_t> next = 0;
  pool(static_cast<int64_t>(texts.size()), 1, [&](int64_t, int64_t) {
    Counts mine;
    Pieces pieces;
    Regex::Scratch scratch;
    for (size_t i = next++; i < texts.size(); i = next++) {
      count_words(texts[i], cutter, pieces, scratch, mine);
    }
    const std::lock_guard lock(mutex);
    for (const auto& [word, count] : mine) all[word] += count;
  });
  std::vector<std::pair<std::string, int64_t>> out(all.begin(), all.end());
  std::sort(out.begin(), out.end());
  return out;
}

// How often each pair of neighbors occurs, and in which words.
class Merger {
 public:
  using Pair = std::pair<int32_t, int32_t>;

  Merger(const std::vector<std::pair<std::string, int64_t>>& words, const BpeTraining& settings,
         int32_t first_byte)
      : settings_(settings), sizes_(static_cast<size_t>(first_byte) + 256, 1) {
    for (const auto& [text, count] : words) {
      Word word{.count = count};
      for (const char c : text) word.ids.push_back(first_byte + static_cast<unsigned char>(c));
      const auto index = static_cast<int32_t>(words_.size());
      for (size_t i = 0; i + 1 < word.ids.size(); ++i) {
        change({word.ids[i], word.ids[i + 1]}, count, index);
      }
      words_.push_back(std::move(word));
    }
    changed_.clear();
    for (const auto& [key, place] : pairs_) push(key, place.count);
  }

  // The most frequent pair; false: none occurs twice. It must be merged or dropped.
  bool next(Pair& pair) {
    while (!queue_.empty()) {
      const Entry top = queue_.top();
      queue_.pop();
      // An entry is out of date when its pair became rarer since: it comes back with what is true.
      const int64_t count = pairs_.at(top.key).count;
      if (count == top.count) return pair = pair_of(top.key), true;
      push(top.key, count);
    }
    return false;
  }

  // Makes it the token `id`: the next one, or one that another pair made and that says the same.
  void merge(Pair pair, int32_t id) {
    if (static_cast<size_t>(id) == sizes_.size()) {
      sizes_.push_back(size_of(pair.first) + size_of(pair.second));
    }
    apply(pair, id, std::exchange(pairs_.at(key_of(pair)).words, {}));
  }

  void drop(Pair pair) { pairs_.at(key_of(pair)).count = std::numeric_limits<int64_t>::min() / 2; }

 private:
  struct Word {
    std::vector<int32_t> ids = {};
    int64_t count = 0;
  };
  struct Place {
    int64_t count = 0;
    std::vector<int32_t> words;  // where it was seen, maybe twice, maybe no more
  };
  struct Entry {
    int64_t count;
    uint64_t key;
    // The top is the most frequent, of equals the one with the smaller ids.
    bool operator<(const Entry& o) const {
      return count != o.count ? count < o.count : key > o.key;
    }
  };
  struct KeyHash {
    size_t operator()(uint64_t key) const { return key * 0x9E3779B97F4A7C15 >> 7; }
  };

  static uint64_t key_of(Pair p) {
    return uint64_t{static_cast<uint32_t>(p.first)} << 32 | static_cast<uint32_t>(p.second);
  }
  static Pair pair_of(uint64_t key) {
    return {static_cast<int32_t>(key >> 32), static_cast<int32_t>(key & 0xFFFFFFFF)};
  }
  int64_t size_of(int32_t id) const { return sizes_[static_cast<size_t>(id)]; }

  void push(uint64_t key, int64_t count) {
    const auto [left, right] = pair_of(key);
    const bool fits = size_of(left) + size_of(right) <= settings_.max_token_bytes;
    if (count >= 2 && fits) queue_.push({count, key});
  }

  void change(Pair pair, int64_t by, int32_t word) {
    const uint64_t key = key_of(pair);
    Place& place = pairs_[key];
    place.count += by;
    if (by > 0 && (place.words.empty() || place.words.back() != word)) place.words.push_back(word);
    if (by > 0) changed_.push_back(key);
  }

  void apply(Pair pair, int32_t id, std::vector<int32_t> where) {
    std::sort(where.begin(), where.end());
    where.erase(std::unique(where.begin(), where.end()), where.end());
    changed_.clear();
    for (const int32_t index : where) apply_in(index, pair, id);
    std::sort(changed_.begin(), changed_.end());
    changed_.erase(std::unique(changed_.begin(), changed_.end()), changed_.end());
    for (const uint64_t key : changed_) push(key, pairs_[key].count);
  }

  void apply_in(int32_t index, Pair pair, int32_t id) {
    Word& word = words_[static_cast<size_t>(index)];
    std::vector<int32_t>& ids = word.ids;
    size_t kept = 0;
    for (size_t i = 0; i < ids.size();) {
      if (i + 1 == ids.size() || ids[i] != pair.first || ids[i + 1] != pair.second) {
        ids[kept++] = ids[i++];
        continue;
      }
      change(pair, -word.count, index);
      if (kept > 0) {
        change({ids[kept - 1], pair.first}, -word.count, index);
        change({ids[kept - 1], id}, word.count, index);
      }
      if (i + 2 < ids.size()) {
        change({pair.second, ids[i + 2]}, -word.count, index);
        change({id, ids[i + 2]}, word.count, index);
      }
      ids[kept++] = id;
      i += 2;
    }
    ids.resize(kept);
  }

  const BpeTraining& settings_;
  std::vector<int64_t> sizes_;  // bytes of each token
  std::vector<Word> words_;
  std::unordered_map<uint64_t, Place, KeyHash> pairs_;
  std::vector<uint64_t> changed_;  // pairs that became more frequent in this merge
  std::priority_queue<Entry> queue_;
};

std::string pattern_of(const std::string& name) {
  std::vector<std::string_view> names;
  for (const NamedPattern& p : kPatterns) {
    if (p.name == name) return std::string(p.pattern);
    names.push_back(p.name);
  }
  fail(Code::kBadValue, "pattern", "is", to_text(name) + ", one of", joined(names), "is expected");
}

std::string pre_tokenizer_json(const std::string& name) {
  if (name == "gpt2") {
    return R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true})";
  }
  return R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":)" +
         to_text(pattern_of(name)) +
         R"(},"behavior":"Isolated","invert":false},{"type":"ByteLevel","add_prefix_space":false,)"
         R"("trim_offsets":true,"use_regex":false}]})";
}

// The file, a token and a merge a line.
std::string file_of(const BpeTraining& settings, const std::vector<std::string>& tokens,
                    const std::vector<std::pair<std::string, std::string>>& merges) {
  std::ostringstream os;
  os << "{\n\"version\": \"1.0\",\n\"truncation\": null,\n\"padding\": null,\n\"added_tokens\": [";
  for (size_t i = 0; i < settings.special.size(); ++i) {
    os << (i == 0 ? "\n" : ",\n") << "{\"id\":" << i
       << ",\"content\":" << to_text(settings.special[i])
       << R"(,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true})";
  }
  os << "\n],\n\"normalizer\": null,\n\"pre_tokenizer\": " << pre_tokenizer_json(settings.pattern)
     << ",\n\"post_processor\": null,\n\"decoder\": "
     << R"({"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true})"
     << ",\n\"model\": {\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,"
     << R"("continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":false,)"
     << R"("byte_fallback":false,"ignore_merges":false,)"
     << "\n\"vocab\": {";
  for (size_t i = 0; i < tokens.size(); ++i) {
    os << (i == 0 ? "\n" : ",\n") << to_text(tokens[i]) << ':' << i;
  }
  os << "\n},\n\"merges\": [";
  for (size_t i = 0; i < merges.size(); ++i) {
    os << (i == 0 ? "\n" : ",\n") << '[' << to_text(merges[i].first) << ','
       << to_text(merges[i].second) << ']';
  }
  os << "\n]\n}\n}\n";
  return os.str();
}

void validate(const BpeTraining& s) {
  const auto least = static_cast<int64_t>(256 + s.special.size());
  constexpr int64_t kMost = int64_t{1} << 24;
  if (s.vocab < least || s.vocab > kMost) {
    fail(Code::kBadValue, "vocab", "is", s.vocab, "where", least,
         "(256 bytes and the special tokens)", "to", kMost, "is expected");
  }
  for (size_t i = 0; i < s.special.size(); ++i) {
    const bool again = std::find(s.special.begin(), s.special.begin() + static_cast<int64_t>(i),
                                 s.special[i]) != s.special.begin() + static_cast<int64_t>(i);
    if (s.special[i].size() < 2 || !is_utf8(s.special[i]) || again) {
      fail(Code::kBadValue, "special", "has", to_text(s.special[i]) + ": each is UTF-8 of at least",
           "two bytes, and given once");
    }
  }
}

}  // namespace

std::string train_bpe(const std::vector<std::string_view>& texts, const BpeTraining& settings,
                      const Pool& pool) {
  validate(settings);
  const PreTokenizer cutter = PreTokenizer::pattern(pattern_of(settings.pattern), "pattern");
  const auto words = count_all(texts, cutter, pool);
  const auto first_byte = static_cast<int32_t>(settings.special.size());
  std::vector<std::string> tokens = settings.special;
  for (int byte = 0; byte < 256; ++byte) {
    tokens.push_back(to_byte_alphabet(std::string(1, static_cast<char>(byte))));
  }
  std::unordered_map<std::string, int32_t> ids;
  for (size_t id = 0; id < tokens.size(); ++id) ids.emplace(tokens[id], static_cast<int32_t>(id));
  std::vector<std::pair<std::string, std::string>> merges;
  Merger merger(words, settings, first_byte);
  Merger::Pair pair;
  while (static_cast<int64_t>(tokens.size()) < settings.vocab && merger.next(pair)) {
    const std::string& left = tokens[static_cast<size_t>(pair.first)];
    const std::string& right = tokens[static_cast<size_t>(pair.second)];
    const auto [at, is_new] = ids.emplace(left + right, static_cast<int32_t>(tokens.size()));
    if (at->second < first_byte) {  // text that spells a special token is none
      merger.drop(pair);
      continue;
    }
    merges.emplace_back(left, right);
    merger.merge(pair, at->second);
    if (is_new) tokens.push_back(at->first);
  }
  return file_of(settings, tokens, merges);
}

}  // namespace troupe
