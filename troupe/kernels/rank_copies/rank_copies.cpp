// The contract, and the reference: written to be read beside the rule, not to be fast.
#include "troupe/kernels/rank_copies/rank_copies.h"

#include <algorithm>
#include <limits>
#include <set>

#include "troupe/core/check.h"

namespace troupe {
namespace {

constexpr int64_t kInts = std::numeric_limits<int32_t>::max();

void check_there(const void* data, int64_t elements, const char* name) {
  TROUPE_CHECK(data != nullptr || elements == 0, name, "is missing:", elements, "elements");
}

int64_t target_of(const ListCopies& a, int64_t owner) {
  const int64_t place = owner - a.first;
  return place < 0 || place >= a.targets * a.per ? -1 : place / a.per;
}

}  // namespace

void validate(const ListCopies& a) {
  TROUPE_CHECK(a.tokens >= 0 && a.choices >= 0 && a.experts >= 0 && a.targets >= 0, "tokens",
               a.tokens, "choices", a.choices, "experts", a.experts, "targets", a.targets);
  TROUPE_CHECK(a.owners_each > 0 && a.per > 0 && a.first >= 0, "owners", a.owners_each, "per",
               a.per, "first", a.first);
  TROUPE_CHECK(a.tokens * a.choices * a.parts() <= kInts && a.targets <= kInts,
               "too many rows:", a.tokens, "x", a.choices, "x", a.parts());
  TROUPE_CHECK(a.capacity >= 0 && a.capacity <= kInts, "capacity", a.capacity);
  check_there(a.ids, a.tokens * a.choices, "ids");
  check_there(a.owners, a.experts * a.owners_each, "owners");
  check_there(a.replicas, a.slices ? 0 : a.experts, "replicas");
  check_there(a.row_target, a.tokens * a.choices * a.parts(), "row_target");
  check_there(a.copy_target, a.tokens * a.width(), "copy_target");
  check_there(a.counts, a.targets, "counts");
}

void validate(const TellCopies& a) {
  TROUPE_CHECK(a.tokens >= 0 && a.choices >= 0 && a.experts >= 0 && a.copies >= 0, "tokens",
               a.tokens, "choices", a.choices, "experts", a.experts, "copies", a.copies);
  TROUPE_CHECK(a.parts > 0 && a.words >= 0 && a.width >= 0, "parts", a.parts, "words", a.words,
               "width", a.width);
  TROUPE_CHECK(a.tokens * a.width <= kInts, "too many copies:", a.tokens, "x", a.width);
  const int64_t copies = a.copies;
  check_there(a.ids, a.tokens * a.choices, "ids");
  check_there(a.scores, a.tokens * a.words, "scores");
  check_there(a.row_target, a.tokens * a.choices * a.parts, "row_target");
  check_there(a.copy_target, a.tokens * a.width, "copy_target");
  check_there(a.copy_slot, copies, "copy_slot");
  check_there(a.token, copies, "token");
  check_there(a.message, copies * a.columns(), "message");
}

int64_t bytes_moved(const ListCopies& a) {
  const int64_t index = a.index == nullptr ? 0 : 2;
  return 4 * a.tokens * (a.choices * (1 + a.parts()) + a.width() + index) + 12 * a.targets;
}

int64_t bytes_moved(const TellCopies& a) {
  const int64_t read = a.choices * (1 + a.parts) + a.words + 2;
  return 4 * a.copies * (read + a.columns() + 2);
}

void list_copies_ref(const ListCopies& a) {
  validate(a);
  for (int64_t w = 0; w < a.targets; ++w) {
    a.counts[3 * w] = a.counts[3 * w + 1] = 0;
    a.counts[3 * w + 2] = static_cast<int32_t>(a.capacity);
  }
  for (int64_t t = 0; t < a.tokens; ++t) {
    std::set<int64_t> targets;
    for (int64_t k = 0; k < a.choices; ++k) {
      const int64_t e = a.ids[t * a.choices + k];
      for (int64_t s = 0; s < a.parts(); ++s) {
        int64_t target = -1;
        if (0 <= e && e < a.experts) {
          const int64_t of = a.index == nullptr ? t : a.index[t];
          const int64_t column = a.slices ? s : of % a.replicas[e];
          target = target_of(a, a.owners[e * a.owners_each + column]);
        }
        a.row_target[(t * a.choices + k) * a.parts() + s] = static_cast<int32_t>(target);
        if (target < 0) continue;
        targets.insert(target);
        ++a.counts[3 * target + 1];
      }
    }
    int32_t* const list = a.copy_target + t * a.width();
    std::fill_n(list, a.width(), -1);
    std::ranges::copy(targets, list);
    for (const int64_t target : targets) ++a.counts[3 * target];
  }
}

void tell_copies_ref(const TellCopies& a) {
  validate(a);
  for (int64_t c = 0; c < a.copies; ++c) {
    int32_t* const line = a.message + c * a.columns();
    std::fill_n(line, a.columns(), 0);
    a.token[c] = 0;
    if (a.copy_slot[c] < 0) continue;
    const int64_t t = a.copy_slot[c] / a.width, target = a.copy_target[a.copy_slot[c]];
    a.token[c] = t;
    for (int64_t k = 0; k < a.choices; ++k) {
      const int32_t* const parts = a.row_target + (t * a.choices + k) * a.parts;
      const int32_t id = a.ids[t * a.choices + k];
      const bool there = std::find(parts, parts + a.parts, target) != parts + a.parts;
      line[k] = !there ? -1 : a.local == nullptr ? id : a.local[target * a.experts + id];
    }
    std::copy_n(a.scores + t * a.words, a.words, line + a.choices);
    if (a.with_token) line[a.choices + a.words] = static_cast<int32_t>(t);
  }
}

}  // namespace troupe
