# The standard and the warnings: one place, linked by every target of ours.
add_library(troupe_options INTERFACE)
target_compile_features(troupe_options INTERFACE cxx_std_20)
target_compile_options(troupe_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-fvisibility-inlines-hidden>
  # `#pragma omp simd` alone: lets one sum be spread over vector lanes, in an order that is fixed.
  $<$<COMPILE_LANGUAGE:CXX>:-fopenmp-simd>
  # CMake 3.25 knows no C++20 for nvcc 13: CMAKE_CUDA_STANDARD 20 is dropped without a word.
  $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;--expt-relaxed-constexpr;-Xcompiler=-Wall,-Wextra;-Xptxas=-warn-spills>)
if(TROUPE_WERROR)
  target_compile_options(troupe_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Werror> $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
endif()
target_include_directories(troupe_options INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:include>)

# The loops of the CPU paths want vector units: AVX2 and FMA, which x86-64 has had since 2013.
# core/device/cpu.h refuses to start on less. Empty: the compiler's own default.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(TROUPE_CPU_ARCH "x86-64-v3" CACHE STRING "-march of the CPU kernels")
endif()
# Nobody reads errno or the floating-point flags: without them sqrt and selects become vectors too.
set(TROUPE_CPU_KERNEL_FLAGS $<$<COMPILE_LANGUAGE:CXX>:-fno-math-errno> $<$<COMPILE_LANGUAGE:CXX>:-fno-trapping-math>)
if(TROUPE_CPU_ARCH)
  list(APPEND TROUPE_CPU_KERNEL_FLAGS $<$<COMPILE_LANGUAGE:CXX>:-march=${TROUPE_CPU_ARCH}>)
endif()
