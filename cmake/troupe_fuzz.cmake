# troupe_fuzz(<name> <library or file.cpp>...): builds tests/fuzz/<name>_fuzz.cpp, which has
# LLVMFuzzerTestOneInput, as a libFuzzer program where TROUPE_FUZZ is on: the preset fuzz, which has
# Clang and its sanitizers. The libraries and files named are instrumented and lead the mutations.
# ABOVE_TORCH: what else it needs is taken, as it is, from the libtroupe_train.so of another build:
# instrumented, all that a recipe's parts link would take as long to build as Troupe does.
set(TROUPE_FUZZ_LIBRARY ${PROJECT_SOURCE_DIR}/build/ci/libtroupe_train.so
    CACHE FILEPATH "The trainer's library that some fuzz programs link")
function(troupe_fuzz name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "ABOVE_TORCH" "" "")
  if(NOT TROUPE_FUZZ)
    if(arg_ABOVE_TORCH)
      set_property(GLOBAL APPEND PROPERTY TROUPE_REPLAYED_ABOVE_TORCH ${name})
    else()
      set_property(GLOBAL APPEND PROPERTY TROUPE_REPLAYED ${name})
      set_property(GLOBAL APPEND PROPERTY TROUPE_REPLAYED_LIBRARIES ${arg_UNPARSED_ARGUMENTS})
    endif()
    return()
  endif()
  add_executable(${name}_fuzz EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/tests/fuzz/${name}_fuzz.cpp)
  set(libraries ${arg_UNPARSED_ARGUMENTS})
  list(FILTER libraries EXCLUDE REGEX "\\.cpp$")
  set(files ${arg_UNPARSED_ARGUMENTS})
  list(FILTER files INCLUDE REGEX "\\.cpp$")
  list(TRANSFORM files PREPEND ${PROJECT_SOURCE_DIR}/troupe/)
  target_sources(${name}_fuzz PRIVATE ${files})
  target_link_libraries(${name}_fuzz PRIVATE ${libraries} -fsanitize=fuzzer)
  if(arg_ABOVE_TORCH)
    target_sources(${name}_fuzz PRIVATE ${PROJECT_SOURCE_DIR}/tests/fuzz/two_compilers.cpp)
    get_filename_component(folder ${TROUPE_FUZZ_LIBRARY} DIRECTORY)
    target_include_directories(${name}_fuzz SYSTEM PRIVATE
      $<TARGET_PROPERTY:torch::cpu,INTERFACE_INCLUDE_DIRECTORIES>)
    target_link_libraries(${name}_fuzz PRIVATE torch::headers ${TROUPE_FUZZ_LIBRARY}
                          ${folder}/libtroupe.so ${torch_dir}/lib/libc10.so -Wl,--allow-shlib-undefined)
    set_target_properties(${name}_fuzz PROPERTIES BUILD_RPATH "${folder}")
    set_property(TARGET ${name}_fuzz PROPERTY LINK_DEPENDS ${TROUPE_FUZZ_LIBRARY})
  endif()
endfunction()

# Elsewhere: a program and a test, tests/fuzz/replay, of all targets above, and where PyTorch is there another,
# tests/fuzz/replay_above_torch, of those ABOVE_TORCH, whose readers take longer. Each target has the one function that
# libFuzzer calls, here under a name of its own.
function(troupe_replay)
  if(NOT TROUPE_TESTS)
    return()
  endif()
  get_property(names GLOBAL PROPERTY TROUPE_REPLAYED)
  get_property(parts GLOBAL PROPERTY TROUPE_REPLAYED_LIBRARIES)
  list(REMOVE_DUPLICATES parts)
  set(libraries ${parts})
  list(FILTER libraries EXCLUDE REGEX "\\.cpp$")
  list(FILTER parts INCLUDE REGEX "\\.cpp$")
  list(TRANSFORM parts PREPEND ${PROJECT_SOURCE_DIR}/troupe/)
  troupe_replay_program(replay "${names}" ${parts} ${libraries})
  get_property(names GLOBAL PROPERTY TROUPE_REPLAYED_ABOVE_TORCH)
  troupe_replay_program(replay_above_torch "${names}" troupe_train)
endfunction()

# troupe_replay_program(<name> <targets> <library or file.cpp>...): tests/fuzz/<name>_test.cpp
function(troupe_replay_program program names)
  if(NOT names)
    return()
  endif()
  set(libraries ${ARGN})
  list(FILTER libraries EXCLUDE REGEX "\\.cpp$")
  set(parts ${ARGN})
  list(FILTER parts INCLUDE REGEX "\\.cpp$")
  set(folder ${PROJECT_SOURCE_DIR}/tests/fuzz)
  set(sources ${names})
  list(TRANSFORM sources REPLACE "(.+)" "${folder}/\\1_fuzz.cpp")
  foreach(name IN LISTS names)
    set_source_files_properties(${folder}/${name}_fuzz.cpp PROPERTIES
      COMPILE_DEFINITIONS LLVMFuzzerTestOneInput=fuzz_${name})
    string(APPEND list "TROUPE_TARGET(${name})\n")
  endforeach()
  file(CONFIGURE OUTPUT ${program}_targets.h CONTENT "${list}")
  add_executable(${program}_test ${folder}/${program}_test.cpp ${sources} ${parts})
  target_compile_definitions(${program}_test PRIVATE TROUPE_SEEDS="${folder}"
    TROUPE_TARGETS="${CMAKE_CURRENT_BINARY_DIR}/${program}_targets.h")
  target_link_libraries(${program}_test PRIVATE ${libraries} GTest::gtest_main)
  add_test(NAME tests/fuzz/${program} COMMAND ${program}_test
           --gtest_output=json:${PROJECT_BINARY_DIR}/test_results/tests.fuzz.${program}.json)
endfunction()
