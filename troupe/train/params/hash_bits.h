// A hash of a tensor's bits, computed on the tensor's device: no bit of a GPU tensor is copied.
//
// On the CPU it is xxHash of the bytes (core/file/hash.h), on other devices, by ATen operators:
//   w_i   the bytes as 64-bit words, the last one padded with zeros
//   h     sum over i of mix(w_i + i g), modulo 2^64; mix is one to one, g odd
// An integer sum does not depend on its order, so equal bits give equal hashes. A change within one
// word always changes h; any other change (words swapped, too) with probability 1 - 2^-64. It
// detects damaged bits, not bits that an adversary chose.
#pragma once

#include <ATen/core/Tensor.h>

namespace troupe {

// int64 scalar on x's device; type and sizes of x are not hashed. Hashes of CPU and GPU tensors are
// not comparable.
at::Tensor hash_bits(const at::Tensor& x);

// h itself, for a tensor on any device; needs memory for a few million words.
at::Tensor sum_of_mixed_words(const at::Tensor& x);

}  // namespace troupe
