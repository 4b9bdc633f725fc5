// The few things of numpy that Megatron's sample order depends on, to the bit.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <utility>
#include <vector>

namespace troupe {

// A draw from 0 ... most, as numpy.random.RandomState draws: masked and tried again.
uint64_t numpy_draw(std::mt19937& generator, uint64_t most);

// RandomState.shuffle.
template <class T>
void numpy_shuffle(std::mt19937& generator, std::span<T> values) {
  for (size_t i = values.size(); i-- > 1;) {
    std::swap(values[i], values[numpy_draw(generator, i)]);
  }
}

// numpy.sum of float64: eight running sums between 8 and 128 values, halves above, else in order.
double numpy_sum(std::span<const double> values);

// numpy.random.default_rng(0).integers(1, 4096, count, int32).
std::vector<int32_t> numpy_mock_lengths(int64_t count);

}  // namespace troupe
