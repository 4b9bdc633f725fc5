# troupe_kernel(<name> [NEEDS <kernel>...] [CPU <file>...] [CUDA <file>...] [SM90A <absent>]): adds a
# kernel folder; troupe/kernels/CMakeLists.txt calls it for each. By convention the folder holds
#   <name>.h          the API, the maths, the shapes
#   <name>.cpp        the contract and the double-precision reference
#   <name>_cpu.cpp    the CPU path (absent where ops/ runs it through ATen)
#   <name>.cu         the CUDA kernels and their launcher (absent where a kernel is the CPU's own)
#   <name>_test.cpp   the tests, over all paths
#   <name>_bench.cpp  the benchmark
# CPU and CUDA name further files of the folder; NEEDS names kernels whose headers are used;
# SM90A: the CUDA files are for sm_90a alone, in place of the list of architectures. Where that lacks
# 90a, <absent> is compiled in their place: a C++ file whose launchers refuse, with no kernel.
# A folder makes two targets, kernel_<name> and kernel_<name>_cuda, so that it builds and tests alone.
set_property(GLOBAL PROPERTY troupe_kernel_targets "")
set_property(GLOBAL PROPERTY troupe_cuda_targets "")

function(troupe_kernel name)
  cmake_parse_arguments(arg "" "SM90A" "NEEDS;CPU;CUDA" ${ARGN})
  set(dir ${PROJECT_SOURCE_DIR}/troupe/kernels/${name})
  set(cpu ${name}.cpp ${arg_CPU})
  if(EXISTS ${dir}/${name}_cpu.cpp)
    list(APPEND cpu ${name}_cpu.cpp)
  endif()
  list(TRANSFORM cpu PREPEND ${dir}/)
  add_library(kernel_${name} STATIC ${cpu})
  target_compile_options(kernel_${name} PRIVATE ${TROUPE_CPU_KERNEL_FLAGS})
  target_link_libraries(kernel_${name} PUBLIC troupe_core)
  set_property(GLOBAL APPEND PROPERTY troupe_kernel_targets kernel_${name})
  set(libraries kernel_${name})

  if(TROUPE_CUDA AND EXISTS ${dir}/${name}.cu)
    set(cuda ${name}.cu ${arg_CUDA})
    if(arg_SM90A AND NOT TROUPE_SM90A)
      set(cuda ${arg_SM90A})
    endif()
    list(TRANSFORM cuda PREPEND ${dir}/)
    add_library(kernel_${name}_cuda STATIC ${cuda})
    target_link_libraries(kernel_${name}_cuda PUBLIC kernel_${name} kernel_build_code_cuda CUDA::cudart)
    target_compile_definitions(kernel_${name}_cuda PUBLIC TROUPE_CUDA)
    if(arg_SM90A)
      set_target_properties(kernel_${name}_cuda PROPERTIES CUDA_ARCHITECTURES 90a-real)
    endif()
    set_property(GLOBAL APPEND PROPERTY troupe_cuda_targets kernel_${name}_cuda)
    list(PREPEND libraries kernel_${name}_cuda)
  endif()
  foreach(other IN LISTS arg_NEEDS)
    target_link_libraries(kernel_${name} PUBLIC kernel_${other})
    if(TROUPE_CUDA)
      target_link_libraries(kernel_${name}_cuda PUBLIC kernel_${other}_cuda)
    endif()
  endforeach()

  troupe_test(kernels/${name}/${name} ${libraries})
  if(TROUPE_BENCHES AND EXISTS ${dir}/${name}_bench.cpp)
    add_executable(${name}_bench ${dir}/${name}_bench.cpp)
    target_link_libraries(${name}_bench PRIVATE ${libraries} benchmark::benchmark_main)
  endif()
endfunction()
