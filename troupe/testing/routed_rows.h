// A routing plan for tests of kernels that read one: the fields of kernels/routing_plan, built here
// in plain loops, so that those tests depend on no kernel but their own.
//   RoutedRows rows({.tokens = 5, .choices = 2, .experts = 3});
//   const PlanRef plan = rows.read<PlanRef>();
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "troupe/testing/backend.h"

namespace troupe::testing {

struct RoutedShape {
  int64_t tokens, choices, experts;
  int64_t alignment = 1;
  int64_t spare_rows = 0;     // how far the host's bound is above the true row count
  double masked = 0.0;        // share of slots without an expert
  bool all_to_first = false;  // every slot that is not masked goes to expert 0
  unsigned seed = 7;
};

class RoutedRows {
 public:
  explicit RoutedRows(const RoutedShape& s) : RoutedRows(s, random_ids(s)) {}

  RoutedRows(const RoutedShape& s, const std::vector<int32_t>& expert_of_slot)
      : shape(s),
        rows(count_rows(s, expert_of_slot)),
        ids(std::max<size_t>(1, expert_of_slot.size())),
        expert_offset(s.experts + 1),
        row_src(rows + 1),
        row_slot(rows + 1),
        slot_row(ids.size()),
        counts(s.experts) {
    std::copy(expert_of_slot.begin(), expert_of_slot.end(), ids.data());
    std::fill_n(row_src.data(), row_src.size(), -1);
    std::fill_n(row_slot.data(), row_slot.size(), -1);
    std::fill_n(slot_row.data(), slot_row.size(), -1);
    int32_t row = 0;
    for (int64_t e = 0; e < s.experts; ++e) {
      expert_offset[e] = row;
      for (size_t slot = 0; slot < expert_of_slot.size(); ++slot) {
        if (expert_of_slot[slot] != e) continue;
        row_src[row] = static_cast<int32_t>(slot) / static_cast<int32_t>(s.choices);
        row_slot[row] = static_cast<int32_t>(slot);
        slot_row[slot] = row++;
      }
      counts[e] = row - expert_offset[e];
      while ((row - expert_offset[e]) % s.alignment != 0) ++row;
    }
    expert_offset[s.experts] = row;
  }

  template <class PlanRef>
  PlanRef read() {
    return {.tokens = shape.tokens,
            .choices = shape.choices,
            .experts = shape.experts,
            .rows = rows,
            .has_pads = shape.alignment > 1,
            .expert_offset = expert_offset.data(),
            .row_src = row_src.data(),
            .row_slot = row_slot.data(),
            .slot_row = slot_row.data(),
            .counts = counts.data()};
  }
  int64_t true_rows() { return expert_offset[shape.experts]; }

  RoutedShape shape;
  int64_t rows;  // the host's bound
  Buffer<int32_t> ids, expert_offset, row_src, row_slot, slot_row;
  Buffer<int64_t> counts;

 private:
  // K distinct experts a token where there are as many; then some slots are masked.
  static std::vector<int32_t> random_ids(const RoutedShape& s) {
    std::mt19937 rng(s.seed);
    std::vector<int32_t> experts(s.experts), ids;
    for (int64_t e = 0; e < s.experts; ++e) experts[e] = static_cast<int32_t>(e);
    std::bernoulli_distribution masked(s.masked);
    for (int64_t t = 0; t < s.tokens; ++t) {
      for (int64_t k = 0; k < s.choices; ++k) {
        const int64_t i = k % s.experts;
        std::swap(experts[i],
                  experts[std::uniform_int_distribution<int64_t>(i, s.experts - 1)(rng)]);
        ids.push_back(masked(rng) ? -1 : s.all_to_first ? 0 : experts[i]);
      }
    }
    return ids;
  }

  static int64_t count_rows(const RoutedShape& s, const std::vector<int32_t>& ids) {
    std::vector<int64_t> counts(s.experts);
    for (const int32_t id : ids) {
      if (id >= 0) ++counts[id];
    }
    int64_t rows = s.spare_rows;
    for (const int64_t c : counts) rows += (c + s.alignment - 1) / s.alignment * s.alignment;
    return rows;
  }
};

}  // namespace troupe::testing
