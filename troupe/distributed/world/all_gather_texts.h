// All-gather of texts through the key-value store, up and down a tree: the children of rank r are
// r k + 1 .. r k + k, k = kTreeWidth.
//   rank r   waits for its children, adds its own text to theirs, and writes TOPIC/r
//   rank 0   writes TOPIC/all instead, which every rank reads
// Equal texts travel once, with the list of their ranks. So a rank asks for k + 1 keys however many
// ranks there are, and where all say the same, a value has a few bytes however many they are.
//
// Keys are used again in each round of a topic, and each value begins with its round's name: the
// store holds one round of a topic, not all of them. That is safe because a rank begins a round only
// once it has read what rank 0 wrote in the one before, by which time all that led to it was read.
// A text of more than kLongestInline bytes is written in pieces of kLongestPiece at TOPIC/r/0, ..,
// and TOPIC/r says how many: a poll reads no text of an earlier round, and no value is longer.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "troupe/distributed/world/key_value_store.h"

namespace troupe {

inline constexpr int64_t kTreeWidth = 16;
inline constexpr size_t kLongestInline = size_t{1} << 10, kLongestPiece = size_t{1} << 19;

struct TextAllGather {
  int64_t rank = 0, size = 1;
  std::string topic;  // of the keys and of messages: one call at a time
  std::string round;  // a name that no earlier call of the topic had
  // Absent: waits as long as the missing ranks are alive, whatever they do.
  std::optional<std::chrono::milliseconds> timeout = {};
  // Without a timeout: how long the heartbeat of a missing rank may pause before it counts as
  // lost.
  std::chrono::milliseconds silence{600'000};
  // Whether that rank is known to have exited. True for this rank: it has posted its last text and
  // waits for no other.
  std::function<bool(int64_t rank)> has_ended;
};

// The texts in rank order. E6001 as soon as a rank that has not written is known to have exited or
// has no heartbeat any more, and after the timeout, naming the first rank on the way down the tree
// from which nothing came although it waits for no child.
std::vector<std::string> all_gather_texts(KeyValueStore& store, const TextAllGather& gathering,
                                          const std::string& mine);

// Writes a text of any length under a key, and reads it once it is there with that mark.
void post_marked(KeyValueStore& store, const std::string& key, const std::string& mark,
                 const std::string& text);
std::optional<std::string> peek_marked(KeyValueStore& store, const std::string& key,
                                       const std::string& mark);

// Texts of ranks as one: each text that differs once, with its ranks.
struct TextOfRank {
  int64_t rank = 0;
  std::string text;
  bool operator==(const TextOfRank&) const = default;
};
std::string packed_texts(const std::vector<TextOfRank>& texts);
// By rank. E6001 for a text that packed_texts() did not make.
std::vector<TextOfRank> unpacked_texts(const std::string& text, int64_t size);

}  // namespace troupe
