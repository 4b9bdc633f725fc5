// What this library was built with and for.
#pragma once

#include <string>

namespace troupe {

// CMAKE_CUDA_ARCHITECTURES, commas between: "80-real,90a-real"; empty: built without CUDA.
std::string gpu_architectures();

// A line each: PyTorch, CUDA, the GPUs that there is code for, what of it was run on one, and the
// instructions of the CPU kernels. No GPU is asked.
std::string build_info();

}  // namespace troupe
