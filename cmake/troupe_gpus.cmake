# The GPUs that the CUDA half is compiled for, CMAKE_CUDA_ARCHITECTURES; docs/develop/BUILD.md has the table.
#   80    8.0 and, as they run machine code of an earlier minor version, 8.6, 8.7 and 8.9
#   90a   9.0, with the kernels that are for it alone (kernels/moe_sm90, block_sparse's own)
#   100, 103, 120   10.0; 10.3; 12.0 and 12.1
#   90-virtual      PTX, which the driver compiles for what comes later and for 11.0; nothing in the kernels' source
#                   asks for more than 9.0
set(CMAKE_CUDA_ARCHITECTURES 80-real 90a-real 100-real 103-real 120-real 90-virtual CACHE STRING
    "GPUs to build for")
# The library says what it was built for (ops/support/gpu_code.h), so the list must.
foreach(architecture IN LISTS CMAKE_CUDA_ARCHITECTURES)
  if(NOT architecture MATCHES "^[0-9]+[af]?(-real|-virtual)?$")
    message(FATAL_ERROR "CMAKE_CUDA_ARCHITECTURES=${CMAKE_CUDA_ARCHITECTURES}: ${architecture} is no architecture that the "
                        "library could name. Give a list such as 80-real;90a-real;90-virtual")
  endif()
  string(REGEX MATCH "^[0-9]+" number ${architecture})
  if(number LESS 80)
    message(FATAL_ERROR "CMAKE_CUDA_ARCHITECTURES=${CMAKE_CUDA_ARCHITECTURES}: the kernels need 80 or later, not ${architecture}")
  endif()
endforeach()
set(TROUPE_SM90A OFF)
if(CMAKE_CUDA_ARCHITECTURES MATCHES "(^|;)90a(-real)?(;|$)")
  set(TROUPE_SM90A ON)
endif()
