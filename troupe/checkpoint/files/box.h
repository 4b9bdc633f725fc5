// A box of a global tensor: what one rank holds of it, or one shard file. Plain arithmetic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "troupe/checkpoint/files/element.h"

namespace troupe {

using Sizes = std::vector<int64_t>;

std::string to_text(const Sizes& sizes);  // "[4, 8]"

struct Box {
  Sizes global, offset, size;  // of one length; [] is a single number

  static Box whole(const Sizes& global) { return {global, Sizes(global.size(), 0), global}; }
  int64_t numel() const;
  bool is_whole() const { return size == global; }
  bool operator==(const Box&) const = default;
};

std::string to_text(const Box& box);  // "[0:4, 8:16] of [4, 16]"

// Whether lengths agree, offset + size is within global, and global's elements can be counted.
bool is_inside(const Box& box);
// Throws (TROUPE_CHECK) unless it is.
void validate(const Box& box);

// A named box and its element type: a tensor as a rank or a checkpoint holds it.
struct TensorBox {
  std::string name;
  Element element;
  Box box;
  int64_t bytes() const { return box.numel() * bits_of(element) / 8; }
};

// Elements from .. to - 1 of a box, in its row-major order, as boxes, each a run of them, in order.
std::vector<Box> boxes_of_range(const Box& box, int64_t from, int64_t to);

bool overlap(const Box& a, const Box& b, Box& out);  // false: they share no element

// Calls f(from, to, count) for the runs of elements that are contiguous in both row-major boxes and
// cover `part`, which is in both: element from + i of `source` is element to + i of `target`.
void for_each_run(const Box& source, const Box& target, const Box& part,
                  const std::function<void(int64_t from, int64_t to, int64_t count)>& f);

// True if the boxes, all of one tensor, cover `whole` and no element is in two of them.
bool tiles(const std::vector<Box>& boxes, const Box& whole);

}  // namespace troupe
