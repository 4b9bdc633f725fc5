// Words that were encoded before. A text repeats its words: on English 19 of 20 pieces are found
// here and cost one comparison. One thread uses one cache; a new word replaces whichever had its
// place.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "troupe/data/tokenizer/tokenizer.h"

namespace troupe {

class WordCache {
 public:
  static constexpr size_t kMostBytes = 31;  // of a word that is kept
  static constexpr size_t kMostIds = 7;

  // A word of 1 to kMostBytes bytes, zeros behind it and its length last: compared as it is.
  struct Key {
    std::array<uint64_t, 4> words{};
    bool operator==(const Key&) const = default;
  };

  struct Entry {  // a line of the processor's cache
    Key key;
    std::array<TokenId, kMostIds> ids;
    uint32_t count;
  };

  WordCache() : entries_(size_t{1} << kBits) {}

  // `end`: where the memory that holds the word may be read to.
  static Key key_of(std::string_view word, const char* end) {
    Key key;
    if (end - word.data() >= 32) {
      std::memcpy(key.words.data(), word.data(), 32);
      for (size_t i = 0; i < 4; ++i) key.words[i] &= mask(word.size(), i);
    } else {
      std::memcpy(key.words.data(), word.data(), word.size());
    }
    key.words[3] |= uint64_t{word.size()} << 56;
    return key;
  }

  Entry& place_of(const Key& key) {
    constexpr uint64_t kOdd = 0x9E3779B97F4A7C15;
    uint64_t hash = (key.words[0] ^ (key.words[1] << 23 | key.words[1] >> 41)) * kOdd;
    hash = (hash ^ hash >> 32 ^ key.words[2] ^ key.words[3]) * kOdd;
    return entries_[hash >> (64 - kBits)];
  }

  static void put(Entry& entry, const Key& key, std::span<const TokenId> ids) {
    entry.key = key;
    entry.count = static_cast<uint32_t>(ids.size());
    std::copy(ids.begin(), ids.end(), entry.ids.begin());
  }

 private:
  static constexpr int kBits = 15;

  // Selects the bytes below `size` among the 8 that begin at 8 * i.
  static uint64_t mask(size_t size, size_t i) {
    const size_t begin = 8 * i;
    if (size >= begin + 8) return ~uint64_t{0};
    return size <= begin ? 0 : (uint64_t{1} << 8 * (size - begin)) - 1;
  }

  std::vector<Entry> entries_;
};

}  // namespace troupe
