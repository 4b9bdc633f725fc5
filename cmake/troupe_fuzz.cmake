# troupe_fuzz(<name> <library>...): builds tests/fuzz/<name>_fuzz.cpp, which has LLVMFuzzerTestOneInput,
# where TROUPE_FUZZ is on. With Clang it is a libFuzzer program. With GCC, which has none,
# tests/fuzz/driver.cpp gives it the inputs: `<name>_fuzz SECONDS FOLDER` mutates the seeds that lie
# in a folder. Configure with the sanitizers of the preset asan: an error then stops the program.
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
endfunction()
