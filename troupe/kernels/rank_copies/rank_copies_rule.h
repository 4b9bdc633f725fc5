// One token's part of the rule, as the CPU and the CUDA path share it.
#pragma once

#include <cstdint>

#include "troupe/core/host_device.h"
#include "troupe/kernels/rank_copies/rank_copies.h"

namespace troupe {

TROUPE_INLINE int32_t row_target(const ListCopies& a, int64_t t, int32_t id, int64_t part) {
  if (id < 0 || id >= a.experts) return -1;
  const int64_t index = a.index == nullptr ? t : a.index[t];
  const int64_t column = a.slices ? part : index % a.replicas[id];
  const int64_t place = a.owners[id * a.owners_each + column] - a.first;
  return place >= 0 && place < a.targets * a.per ? static_cast<int32_t>(place / a.per) : -1;
}

// Into a rising list without repetitions; returns its new length.
TROUPE_INLINE int insert(int32_t* list, int length, int32_t target) {
  int at = length;
  while (at > 0 && list[at - 1] > target) --at;
  if (at > 0 && list[at - 1] == target) return length;
  for (int i = length; i > at; --i) list[i] = list[i - 1];
  list[at] = target;
  return length + 1;
}

// Writes a token's lines of both lists and calls count_row(target) for each of its rows. Returns
// the number of its copies, which the list begins with.
template <class F>
TROUPE_INLINE int list_token(const ListCopies& a, int64_t t, F&& count_row) {
  const int64_t parts = a.slices ? a.owners_each : 1, rows = a.choices * parts;
  const int64_t width = a.targets < rows ? a.targets : rows;
  int32_t* const list = a.copy_target + t * width;
  int length = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const int32_t target = row_target(a, t, a.ids[t * a.choices + r / parts], r % parts);
    a.row_target[t * rows + r] = target;
    if (target < 0) continue;
    count_row(target);
    length = insert(list, length, target);
  }
  for (int64_t i = length; i < width; ++i) list[i] = -1;
  return length;
}

TROUPE_INLINE int32_t message_id(const TellCopies& a, int64_t t, int64_t k, int32_t target) {
  bool goes_there = false;
  for (int64_t s = 0; s < a.parts; ++s) {
    goes_there |= a.row_target[(t * a.choices + k) * a.parts + s] == target;
  }
  if (!goes_there) return -1;
  const int32_t id = a.ids[t * a.choices + k];
  if (a.local == nullptr) return id;
  return 0 <= id && id < a.experts && target >= 0 ? a.local[target * a.experts + id] : -1;
}

// Whose copy a slot holds, and for whom; -1 twice where there is none.
struct CopyOf {
  int64_t token;
  int32_t target;
};
TROUPE_INLINE CopyOf copy_of(const TellCopies& a, int64_t c) {
  const int32_t slot = a.copy_slot[c];
  return slot < 0 ? CopyOf{-1, -1} : CopyOf{slot / a.width, a.copy_target[slot]};
}

// Column j of a copy's line.
TROUPE_INLINE int32_t message_word(const TellCopies& a, const CopyOf& copy, int64_t j) {
  const int64_t t = copy.token;
  if (t < 0) return 0;
  if (j < a.choices) return message_id(a, t, j, copy.target);
  if (j < a.choices + a.words) return a.scores[t * a.words + j - a.choices];
  return static_cast<int32_t>(t);
}

}  // namespace troupe
