// A hash of a tensor's bits, made where the tensor lies: of a GPU's no bit comes to the host.
//
// On the CPU xxHash of the bytes (core/file/hash.h). Elsewhere, by operators that any device has:
//   w_i   the bytes as 64-bit words, the last one filled up with zeros
//   h     sum over i of mix(w_i + i g), modulo 2^64; mix is one to one, g odd
// A sum of integers has no order, so equal bits give equal hashes. What changes bits of one word
// changes h, always; any other change, words in another order too, but for one in 2^64. Of bits
// that are damaged, not of such as somebody chose.
#pragma once

#include <ATen/core/Tensor.h>

namespace troupe {

// int64 scalar on x's device; of any type and sizes, which are not in it. Of a CPU's and a GPU's
// tensors hashes do not compare.
at::Tensor hash_bits(const at::Tensor& x);

// h itself, of a tensor on any device; needs memory for a few million words.
at::Tensor sum_of_mixed_words(const at::Tensor& x);

}  // namespace troupe
