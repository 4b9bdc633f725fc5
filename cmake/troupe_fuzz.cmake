# troupe_fuzz(<name> <library>...): builds tests/fuzz/<name>_fuzz.cpp, which has LLVMFuzzerTestOneInput,
# where TROUPE_FUZZ is on. With Clang it is a libFuzzer program. With GCC, which has none,
# tests/fuzz/driver.cpp gives it the inputs: `<name>_fuzz SECONDS FOLDER` mutates the seeds that lie
# in a folder. Configure with the sanitizers of the preset asan: an error then stops the program.
# troupe_fuzz(<name> <library>...): with -DTROUPE_FUZZ=ON, which needs clang, makes fuzz_<name> of
# tests/fuzz/<name>_fuzz.cpp. tests/fuzz/<name>/ holds the inputs to begin with:
#   fuzz_<name> -max_total_time=60 -rss_limit_mb=2048 NEW_INPUTS tests/fuzz/<name>
option(TROUPE_FUZZ "Build the libFuzzer targets (needs clang)" OFF)
if(TROUPE_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "TROUPE_FUZZ needs clang: -DCMAKE_CXX_COMPILER=clang++-14")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link,address,undefined -g)
  add_link_options(-fsanitize=address,undefined)
endif()

function(troupe_fuzz name)
  if(NOT TROUPE_FUZZ)
    return()
  endif()
  add_executable(${name}_fuzz ${PROJECT_SOURCE_DIR}/tests/fuzz/${name}_fuzz.cpp)
  target_link_libraries(${name}_fuzz PRIVATE ${ARGN})
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    target_compile_options(${name}_fuzz PRIVATE -fsanitize=fuzzer)
    target_link_options(${name}_fuzz PRIVATE -fsanitize=fuzzer)
  else()
    target_sources(${name}_fuzz PRIVATE ${PROJECT_SOURCE_DIR}/tests/fuzz/driver.cpp)
  endif()
  add_executable(fuzz_${name} ${PROJECT_SOURCE_DIR}/tests/fuzz/${name}_fuzz.cpp)
  target_link_libraries(fuzz_${name} PRIVATE ${ARGN})
  target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
endfunction()
