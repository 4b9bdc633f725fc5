# The PyTorch wheel as imported targets, made by hand: find_package(Torch) edits CUDA flags,
# always links torch_cuda, and fails without a toolkit.
#   torch::cpu    libtorch_cpu and libc10: all that a process without a GPU needs
#   torch::cuda   libtorch_cuda and libc10_cuda, kept although nothing names a symbol of theirs:
#                 they register themselves when loaded
# One source for all of these (troupe/ops/support/torch_versions); docs/develop/RELEASE.md says what was tried with each.
# A library is for the one that it was built with, so a consumer of an installed Troupe (troupeConfig.cmake) has that alone.
set(TROUPE_TORCH_SUPPORTED 2.11 2.12 2.13 2.14 2.15)
if(TROUPE_TORCH_BUILT)
  set(TROUPE_TORCH_SUPPORTED ${TROUPE_TORCH_BUILT})
endif()
if(NOT TROUPE_TORCH_ROOT)
  file(GLOB found ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages)
  set(TROUPE_TORCH_ROOT "${found}" CACHE PATH "The site-packages folder that holds torch/" FORCE)
endif()
set(torch_dir ${TROUPE_TORCH_ROOT}/torch)
if(NOT EXISTS ${torch_dir}/version.py)
  message(FATAL_ERROR "no PyTorch in '${TROUPE_TORCH_ROOT}': run ./dev setup, or name the "
                      "site-packages folder that holds it with -DTROUPE_TORCH_ROOT=")
endif()
file(STRINGS ${torch_dir}/version.py version_line REGEX "^__version__")
string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" torch_version "${version_line}")
string(REGEX MATCH "^[0-9]+\\.[0-9]+" torch_minor "${torch_version}")
if(NOT torch_minor IN_LIST TROUPE_TORCH_SUPPORTED)
  list(JOIN TROUPE_TORCH_SUPPORTED ", " supported)
  if(TROUPE_TORCH_BUILT)
    message(FATAL_ERROR "PyTorch ${torch_version} in ${torch_dir}: this Troupe was built with ${supported}, and PyTorch's "
                        "C++ interface changes with every minor version. Name a folder that holds that one with "
                        "-DTROUPE_TORCH_ROOT=, or build Troupe with ${torch_minor}")
  endif()
  message(FATAL_ERROR "PyTorch ${torch_version} in ${torch_dir}: Troupe is built with ${supported}. Install one of them, "
                      "or name a folder that holds one with -DTROUPE_TORCH_ROOT=")
endif()
message(STATUS "PyTorch ${torch_version} in ${torch_dir}")

# -idirafter: the wheel carries a newer fmt/, which must not hide the system's.
add_library(torch::headers INTERFACE IMPORTED)
target_compile_options(torch::headers INTERFACE
  "SHELL:-idirafter ${torch_dir}/include"
  "SHELL:-idirafter ${torch_dir}/include/torch/csrc/api/include"
  # at::parallel_for is a template: our files must be compiled for the wheel's OpenMP too ...
  $<$<COMPILE_LANGUAGE:CXX>:-fopenmp>)

file(GLOB nvidia_lib_dirs ${TROUPE_TORCH_ROOT}/nvidia/*/lib)
add_library(torch::cpu INTERFACE IMPORTED)
target_link_libraries(torch::cpu INTERFACE torch::headers
  ${torch_dir}/lib/libtorch_cpu.so ${torch_dir}/lib/libc10.so
  ${torch_dir}/lib/libgomp.so.1)  # ... and linked with its libgomp: two would each start threads.
foreach(dir IN LISTS nvidia_lib_dirs)
  target_link_options(torch::cpu INTERFACE -Wl,-rpath-link,${dir})
endforeach()

if(EXISTS ${torch_dir}/lib/libtorch_cuda.so)
  add_library(torch::cuda INTERFACE IMPORTED)
  target_link_libraries(torch::cuda INTERFACE torch::cpu
    -Wl,--no-as-needed ${torch_dir}/lib/libtorch_cuda.so ${torch_dir}/lib/libc10_cuda.so
    -Wl,--as-needed)
endif()

# What attention on a GPU calls (ops/attention/cudnn_plans.cpp); the frontend compiles kernels of its own with NVRTC.
add_library(torch::cudnn INTERFACE IMPORTED)
target_include_directories(torch::cudnn SYSTEM INTERFACE ${TROUPE_TORCH_ROOT}/nvidia/cudnn/include)
target_link_libraries(torch::cudnn INTERFACE ${TROUPE_TORCH_ROOT}/nvidia/cudnn/lib/libcudnn.so.9
  ${TROUPE_TORCH_ROOT}/nvidia/cu13/lib/libnvrtc.so.13)

# ProcessGroupNCCL.hpp reads NCCL's own header.
add_library(torch::nccl_headers INTERFACE IMPORTED)
target_compile_options(torch::nccl_headers INTERFACE
  "SHELL:-idirafter ${TROUPE_TORCH_ROOT}/nvidia/nccl/include")
