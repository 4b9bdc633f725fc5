// The PyTorch that this is compiled for: TROUPE_TORCH_AT_LEAST(13) is 2.13 and all after it. For the
// headers of this folder.
#pragma once

#include <torch/version.h>

#define TROUPE_TORCH_AT_LEAST(minor) \
  (TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= (minor)))
