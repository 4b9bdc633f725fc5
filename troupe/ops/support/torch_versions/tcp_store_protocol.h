// c10d::detail::QueryType and validationMagicNumber: how a client of a TCPStore begins. 2.14 moved the
// header; its values are the same in 2.11 to 2.15.
#pragma once

#include "troupe/ops/support/torch_versions/at_least.h"

#if TROUPE_TORCH_AT_LEAST(14)
#include <torch/csrc/distributed/c10d/store/TCPStoreBackend.hpp>
#else
#include <torch/csrc/distributed/c10d/TCPStoreBackend.hpp>
#endif
