// Which rank reads which stored slice. A slice that several ranks, or several parts of one rank,
// need something of is read by one of those ranks, which sends the others what is theirs: so each
// byte is read once. All ranks make the same plan out of what all of them want. Plain arithmetic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "troupe/checkpoint/files/box.h"

namespace troupe {

// A tensor as it is stored: the boxes of its slices, which tile it.
struct StoredBoxes {
  int64_t bytes = 0;  // of an element
  std::vector<Box> slices;
};

// A box that a rank holds, of the tensor with that number.
struct Want {
  size_t tensor = 0;
  Box box;
};
std::string to_text(const std::vector<Want>& wants);
std::vector<Want> wants_from(const std::string& text, const std::vector<StoredBoxes>& stored);

struct SharedSlice {
  // What a want of a rank has of the slice.
  struct Cut {
    int rank = 0;
    size_t want = 0;
    Box box;
  };
  size_t tensor = 0, slice = 0;
  int reader = 0;         // the rank of a cut; of those the one with the least to read so far
  std::vector<Cut> cuts;  // two or more, by rank and want
};

// The shared slices, by tensor and slice, in rounds: in each a rank reads `round_bytes` at most, or
// one slice. A slice in no round is needed by one part, and its rank reads it.
std::vector<std::vector<SharedSlice>> plan_reads(const std::vector<StoredBoxes>& stored,
                                                 const std::vector<std::vector<Want>>& wants,
                                                 int64_t round_bytes);

}  // namespace troupe
