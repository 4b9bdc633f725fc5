#include "troupe/checkpoint/files/box.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <vector>

#include "troupe/core/check.h"

namespace troupe {
namespace {

int64_t product(const Sizes& sizes, size_t from) {
  return std::accumulate(sizes.begin() + static_cast<int64_t>(from), sizes.end(), int64_t{1},
                         std::multiplies<>());
}

int64_t position(const Box& box, const Sizes& at) {  // in the row-major order of the box
  int64_t index = 0;
  for (size_t d = 0; d < at.size(); ++d) index = index * box.size[d] + at[d] - box.offset[d];
  return index;
}

}  // namespace

std::string to_text(const Sizes& sizes) {
  std::string out = "[";
  for (size_t d = 0; d < sizes.size(); ++d) out += (d ? ", " : "") + std::to_string(sizes[d]);
  return out + ']';
}

std::string to_text(const Box& box) {
  if (box.is_whole()) return to_text(box.global);
  std::string out = "[";
  for (size_t d = 0; d < box.size.size(); ++d) {
    out += (d ? ", " : "") + std::to_string(box.offset[d]) + ':' +
           std::to_string(box.offset[d] + box.size[d]);
  }
  return out + "] of " + to_text(box.global);
}

int64_t Box::numel() const {
  return product(size, 0);
}

bool is_inside(const Box& box) {
  if (box.offset.size() != box.global.size() || box.size.size() != box.global.size()) return false;
  int64_t elements = 1;
  for (size_t d = 0; d < box.size.size(); ++d) {
    const int64_t global = box.global[d], offset = box.offset[d], size = box.size[d];
    const bool inside =
        global >= 0 && 0 <= size && size <= global && 0 <= offset && offset <= global - size;
    if (!inside || __builtin_mul_overflow(elements, global, &elements)) return false;
  }
  return true;
}

void validate(const Box& box) {
  TROUPE_CHECK(is_inside(box), "global", to_text(box.global), "offset", to_text(box.offset), "size",
               to_text(box.size));
}

std::vector<Box> boxes_of_range(const Box& box, int64_t from, int64_t to) {
  if (from == 0 && to == box.numel()) return {box};
  std::vector<Box> out;
  if (from >= to) return out;
  int64_t inner = 1;
  for (size_t d = 1; d < box.size.size(); ++d) inner *= box.size[d];
  // Rows first .. first + count - 1 of the box.
  const auto rows = [&](int64_t first, int64_t count) {
    Box part = box;
    part.offset[0] += first;
    part.size[0] = count;
    return part;
  };
  // A part of row r: that row without its dimension is a box of its own.
  const auto part_of_row = [&](int64_t r, int64_t begin, int64_t end) {
    const auto tail = [](const Sizes& sizes) { return Sizes(sizes.begin() + 1, sizes.end()); };
    for (Box& piece :
         boxes_of_range({tail(box.global), tail(box.offset), tail(box.size)}, begin, end)) {
      Box part = rows(r, 1);
      std::copy(piece.offset.begin(), piece.offset.end(), part.offset.begin() + 1);
      std::copy(piece.size.begin(), piece.size.end(), part.size.begin() + 1);
      out.push_back(std::move(part));
    }
  };
  int64_t row = from / inner;
  if (from % inner != 0) {
    part_of_row(row, from % inner, std::min(inner, to - row * inner));
    ++row;
  }
  const int64_t whole = to / inner - row;
  if (whole > 0) out.push_back(rows(row, whole));
  if (to % inner != 0 && to / inner >= row) part_of_row(to / inner, 0, to % inner);
  return out;
}

bool overlap(const Box& a, const Box& b, Box& out) {
  TROUPE_CHECK(a.global == b.global, to_text(a.global), "and", to_text(b.global));
  out = a;
  for (size_t d = 0; d < a.size.size(); ++d) {
    const int64_t begin = std::max(a.offset[d], b.offset[d]);
    const int64_t end = std::min(a.offset[d] + a.size[d], b.offset[d] + b.size[d]);
    if (end <= begin) return false;
    out.offset[d] = begin;
    out.size[d] = end - begin;
  }
  return true;
}

void for_each_run(const Box& source, const Box& target, const Box& part,
                  const std::function<void(int64_t from, int64_t to, int64_t count)>& f) {
  if (part.numel() == 0) return;
  // Dimensions from `inner` on are whole in both boxes, so that a run goes on through them.
  size_t inner = part.size.size();
  while (inner > 0 && part.size[inner - 1] == source.size[inner - 1] &&
         part.size[inner - 1] == target.size[inner - 1]) {
    --inner;
  }
  if (inner > 0) --inner;  // and one more, of which a part is contiguous
  const int64_t count = product(part.size, inner);
  Sizes at = part.offset;
  while (true) {
    f(position(source, at), position(target, at), count);
    size_t d = inner;
    while (d > 0) {
      --d;
      if (++at[d] < part.offset[d] + part.size[d]) break;
      at[d] = part.offset[d];
      if (d == 0) return;
    }
    if (inner == 0) return;
  }
}

namespace {

// Where the region can be cut so that about as many boxes begin or end on each side; of a tiling
// of two boxes or more there is such a place.
struct Cut {
  size_t d = 0;
  int64_t at = 0;
};
std::optional<Cut> best_cut(const std::vector<Box>& boxes, const Box& region) {
  std::optional<Cut> out;
  size_t most = 0;
  std::vector<int64_t> places;
  for (size_t d = 0; d < region.size.size(); ++d) {
    const int64_t begin = region.offset[d], end = begin + region.size[d];
    places.clear();
    for (const Box& box : boxes) {
      for (const int64_t at : {box.offset[d], box.offset[d] + box.size[d]}) {
        if (begin < at && at < end) places.push_back(at);
      }
    }
    if (places.size() <= most) continue;
    most = places.size();
    const auto middle = places.begin() + static_cast<std::ptrdiff_t>(places.size() / 2);
    std::nth_element(places.begin(), middle, places.end());
    out = Cut{d, *middle};
  }
  return out;
}

bool are_disjoint(const std::vector<Box>& boxes) {
  Box common;
  for (size_t i = 0; i < boxes.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (overlap(boxes[j], boxes[i], common)) return false;
    }
  }
  return true;
}

// Boxes inside a region tile it if they have its size and tile both halves of any cut: pairs are
// compared where few are left, and a part that is not tiled ends the search.
bool tiles_region(const std::vector<Box>& boxes, const Box& region) {
  int64_t left = region.numel();
  for (const Box& box : boxes) {
    if ((left -= box.numel()) < 0) return false;
  }
  if (left != 0) return false;
  constexpr size_t kFew = 16;
  if (boxes.size() <= kFew) return are_disjoint(boxes);
  const std::optional<Cut> cut = best_cut(boxes, region);
  if (!cut) return false;
  Box lower = region, upper = region;
  lower.size[cut->d] = cut->at - region.offset[cut->d];
  upper.offset[cut->d] = cut->at;
  upper.size[cut->d] -= lower.size[cut->d];
  for (const Box& half : {lower, upper}) {
    std::vector<Box> parts;
    for (const Box& box : boxes) {
      if (Box part; overlap(box, half, part)) parts.push_back(std::move(part));
    }
    if (!tiles_region(parts, half)) return false;
  }
  return true;
}

}  // namespace

bool tiles(const std::vector<Box>& boxes, const Box& whole) {
  std::vector<Box> parts;
  for (const Box& box : boxes) {
    if (Box part; overlap(box, whole, part)) parts.push_back(std::move(part));
  }
  return tiles_region(parts, whole);
}

}  // namespace troupe
