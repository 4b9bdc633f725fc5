// Functions of whole matrices of which ranks have a part each, as tensor ranks and slices of
// experts do: every matrix is put together on one rank, which computes it and sends the parts back.
// Matrix k is computed on rank k modulo the ranks, so that each has about the same number of them.
// There are two exchanges for all matrices together.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "troupe/distributed/group/process_group.h"

namespace troupe {

// This rank's part of n matrices of one shape, [n, r, c]: rank i of P has the i-th of P equal parts
// of the rows (dim 1) or of the columns (dim 2).
struct MatrixParts {
  at::Tensor own;  // in: this rank's part of x; out: the same part of f(x)
  int64_t dim;
};

// f(x [n, R, C]) of the same sizes. The ranks of `parts` make the same call, with tensors of equal
// sizes and of one type. Beside `all` twice its memory.
void map_whole_matrices(ProcessGroup& parts, const std::vector<MatrixParts>& all,
                        const std::function<at::Tensor(const at::Tensor&)>& f);

}  // namespace troupe
