// The memory that a graph keeps for its backward and nobody else has a reference to.
#pragma once

#include <c10/core/Storage.h>

#include <cstddef>
#include <vector>

#include "troupe/ops/support/autograd.h"

namespace troupe {

// Storages of `least_bytes` or more that are held by saved tensors of the graph of `roots` alone,
// each once however many nodes and views share it. In the order of a walk from the roots.
//
// All references are counted: those of tensors to the storage, and those to each tensor, a view's
// to its base among them. One that is not a saved tensor's (a parameter's, a caller's, a table's
// that another layer reads, one of a node that this does not know) leaves the storage out. So what
// is returned may be moved as long as it is back for the graph's backward. Known are nodes of
// record() and PyTorch's matrix products.
std::vector<c10::Storage> sole_storages(const TensorList& roots, size_t least_bytes);

}  // namespace troupe
