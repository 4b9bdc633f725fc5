// What tests of dispatchers ask of rows in fp8 (Q8-33).
#pragma once

#include <memory>
#include <vector>

#include "troupe/distributed/dispatch/wire.h"
#include "troupe/distributed/world/ranks_problem_test.h"

namespace troupe::ranks_problem {

// Rows of x and of the gradient of the output as wire fp8 rounds them.
inline Inputs rounded_to_fp8(Inputs in) {
  for (at::Tensor* rows : {&in.x_TD, &in.grad_TD}) {
    const at::Tensor packed = packed_rows(WireType::kFp8, *rows);
    *rows = unpacked_rows(WireType::kFp8, packed, rows->size(1), rows->scalar_type());
  }
  return in;
}

// Wire fp8 gives the bits of wire native of rows that were rounded before. make(wire) is a
// dispatcher in mode fast.
template <class Make>
void compare_fp8(World& world, const Make& make, const Case& c, const ExpertPlacement& p,
                 const Options& o = {}) {
  const Inputs own = part_of(draw(c), c, p, world.rank());
  const std::unique_ptr<Dispatcher> d = make(WireType::kFp8);
  const Results got = run(*d, own, o);
  expect_equal(got, run(*make(WireType::kNative), rounded_to_fp8(own), o), "fp8, " + text_of(c, p));
  expect_equal(run(*d, own, o), got, "fp8 once more, " + text_of(c, p));
}

// Types, loads, alignment and budgets.
template <class Make>
void compare_fp8_all(World& world, const Make& make, const ExpertPlacement& p) {
  const int64_t E = p.experts();
  std::vector<int64_t> ragged(world.size());
  for (int64_t r = 0; r < world.size(); ++r) ragged[r] = 7 * ((r + 2) % world.size()) + r % 2;
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    compare_fp8(world, make, {.tokens = ragged, .type = type, .experts = E, .width = 40}, p);
  }
  const Case odd{.tokens = ragged, .load = Load::kHotRank, .experts = E, .width = 33};
  compare_fp8(world, make, odd, p);
  compare_fp8(world, make, odd, p, {.alignment = 16});
  compare_fp8(world, make, odd, p, {.budget = 10});
  const std::vector<int64_t> none(world.size(), 0);
  compare_fp8(world, make, {.tokens = none, .experts = E}, p);
}

}  // namespace troupe::ranks_problem
