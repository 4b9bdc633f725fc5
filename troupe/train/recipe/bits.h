// run.bits layout: loss, gradients, their norm and weights are equal bit for bit in every layout of
// the axes that are taken. A layout changes the order of sums, and two of them are unordered then:
//   - over microbatches, of gradients (train/params/exact_gradients.h), losses and the squares of
//     the norm (core/number/exact_sum.h): integers that are added;
//   - over the tokens of one expert, which ranks send to where it is: its products take the rows of
//     one microbatch at a time (ExpertRows::parts), as one process does.
// What is computed of one microbatch is the same operators on the same sizes, whichever rank has it:
// train.micro_batch is given, and no rank has a part of a microbatch or of a matrix.
//
// Taken: data ranks with state in any form (none, zero1, full, over a part of them too), pipelines
// in every order, experts over ranks with parallel.dispatch exact. What is not is refused by name.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "troupe/core/text/text.h"

namespace troupe {

struct Recipe;

// `repeat`: the same bits each time in one layout, as far as run.deterministic goes.
enum class Bits : uint8_t { kRepeat, kLayout };
constexpr auto names_of(Bits) {
  return std::array{Named{"repeat", Bits::kRepeat}, Named{"layout", Bits::kLayout}};
}

// Each setting that run.bits layout refuses: {key, reason and remedy}. Empty with run.bits repeat.
std::vector<std::pair<std::string, std::string>> bits_faults(const Recipe& recipe);

// Axes that are open and not taken are of one rank, so that none is chosen; so are experts without
// dispatch exact. The recipe itself without run.bits layout.
Recipe with_axes_of_bits(const Recipe& recipe);

// Throws the first fault of a run whose layout is known.
void require_bits(const Recipe& resolved);

}  // namespace troupe
