// Packed rows: which documents a microbatch holds, and each token's place in its own.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace troupe {

struct Packing {
  std::vector<int64_t> lengths = {};  // of the B S tokens' documents, in order; empty: each row is
                                      // one document
  at::Tensor positions_BS = {};       // int64; undefined: a token's place in its row
};

// documents [B, S] int32 numbers each row's documents, never falling along it; on the host or on
// the device, which is then waited for. Undefined: none. positions: those given, or made from the
// documents, on `device`.
Packing packing_of(const at::Tensor& documents_BS, const at::Tensor& positions_BS,
                   c10::Device device);

}  // namespace troupe
