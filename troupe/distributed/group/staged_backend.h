// Collectives of tensors on a GPU by a backend of the CPU's: each call copies what it sends to
// pinned host memory and waits for that copy; wait() copies what came to the device, on the stream
// of whoever waits. Ranks may share a GPU then, which NCCL refuses. It is for tests of layouts: no
// transfer runs beside computation.
//
//   auto b = staged_backend(gloo);   // results are valid after wait(), as those of any backend
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace troupe {

c10::intrusive_ptr<c10d::Backend> staged_backend(c10::intrusive_ptr<c10d::Backend> host);

}  // namespace troupe
