// torch.ops.troupe.* in Python. Each operator enters it in its own file, with its schema, by PyTorch's
// TORCH_LIBRARY_FRAGMENT (ops/support/define.h). Here the name itself is taken: once in a process, so
// that two builds of libtroupe.so in one are refused.
#include <torch/library.h>

#include "troupe/ops/support/trial_kernels.h"

TORCH_LIBRARY(troupe, m) {
  m.def("set_trial_kernels(bool on) -> ()", troupe::set_trial_kernels);
}
