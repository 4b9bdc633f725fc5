# troupe_test(<path> <library>...): builds troupe/<path>_test.cpp against the libraries, as in
# troupe_test(core/config/config troupe_core), and makes it the test core/config/config.
# Each run leaves its results in test_results/ for tools/check_features.py.
#
# With TROUPE_UNITY the tests of a layer that need the same libraries are compiled and linked eight at a time, as the
# files of the libraries are (cmake/troupe_unity.cmake): most of what a test costs is headers. Such a program, core_tests_0
# and so on, runs one file's tests with --file=core/config/config (troupe/testing/main.cpp); each test is a process of its
# own all the same. Tests of kernels/ and nn/ (whose helpers overload each other), those below, and all without
# TROUPE_UNITY are a program each, config_test. Where that
# name is taken (kernels/norm has norm_test), the folder goes before it: ops_norm_test.

# Compiled alone: with flags of their own, or helpers that have the name of a neighbor's.
set(TROUPE_TESTS_ALONE
  core/config/config core/config/json core/file/file core/number/fast_math core/number/rng
  data/build/build_corpus data/tokens/token_file data/tokenizer/tokenizer_json data/tokenizer/tokenizers
  schedule/pipeline schedule/schedules schedule/stage_map plan/timeline
  distributed/modules/distributed_data_parallel distributed/modules/fully_shard
  distributed/mesh/ring_plan distributed/group/kv_exchange distributed/dispatch/all_to_all_dispatcher
  distributed/dispatch/all_gather_dispatcher
  distributed/dispatch/symmetric_dispatcher distributed/dispatch/two_level_dispatcher
  ops/support/autograd ops/block_sparse ops/combine ops/cross_entropy ops/moe_ffn/moe_ffn
  ops/attention/attention_cudnn ops/attention/attention_part
  checkpoint/state/saver testing/replay_gate
  train/forecast/find_layouts train/forecast/forecast train/forecast/proof
  train/forecast/layout_forecast train/machine/doctor train/optim/optimizer train/recipe/experts_kernels train/layout/factorings train/layout/both_means train/step/late_weights train/layout/layout_bits train/layout/layouts train/layout/reshard train/layout/resolved_run
  train/step/unit_values)
set_property(GLOBAL PROPERTY troupe_test_groups "")

if(TROUPE_TESTS)
  add_library(troupe_test_main STATIC ${PROJECT_SOURCE_DIR}/troupe/testing/main.cpp)
  target_link_libraries(troupe_test_main PUBLIC troupe_options GTest::gtest)
endif()

function(troupe_test path)
  if(NOT TROUPE_TESTS)
    return()
  endif()
  string(REGEX REPLACE "/.*" "" layer ${path})
  if(NOT TROUPE_UNITY OR layer MATCHES "^(kernels|nn)$" OR path IN_LIST TROUPE_TESTS_ALONE OR "troupe/${path}_test.cpp" IN_LIST TROUPE_ALONE)
    get_filename_component(name ${path} NAME)
    if(TARGET ${name}_test)
      string(REPLACE "/" "_" name ${path})
    endif()
    add_executable(${name}_test ${PROJECT_SOURCE_DIR}/troupe/${path}_test.cpp)
    troupe_test_options(${name}_test "${layer}" ${ARGN})
    troupe_add_test(${path} ${name}_test)
    return()
  endif()
  list(JOIN ARGN "+" group)
  set(group ${layer}+${group})
  set_property(GLOBAL APPEND PROPERTY troupe_test_groups ${group})
  set_property(GLOBAL APPEND PROPERTY troupe_tests_of_${group} ${path})
endfunction()

# After all troupe_test: the programs of several files.
function(troupe_group_tests)
  get_property(groups GLOBAL PROPERTY troupe_test_groups)
  list(REMOVE_DUPLICATES groups)
  foreach(group IN LISTS groups)
    get_property(paths GLOBAL PROPERTY troupe_tests_of_${group})
    string(REPLACE "+" ";" libraries ${group})
    list(POP_FRONT libraries layer)
    while(paths)
      list(SUBLIST paths 0 8 some)
      list(REMOVE_ITEM paths ${some})
      if(NOT DEFINED number_of_${layer})
        set(number_of_${layer} 0)
      endif()
      set(program ${layer}_tests_${number_of_${layer}})
      math(EXPR number_of_${layer} "${number_of_${layer}} + 1")
      list(TRANSFORM some REPLACE "(.+)" "#include \"troupe/\\1_test.cpp\"\n" OUTPUT_VARIABLE includes)
      list(JOIN includes "" includes)
      file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/Unity/${program}.cpp CONTENT "${includes}" @ONLY)
      add_executable(${program} ${CMAKE_CURRENT_BINARY_DIR}/Unity/${program}.cpp)
      troupe_test_options(${program} "${layer}" ${libraries})
      foreach(path IN LISTS some)
        troupe_add_test(${path} ${program} --file=${path})
      endforeach()
    endwhile()
  endforeach()
endfunction()

# After all tests: each troupe/<path>_test.cpp is one. A test of several files has a line troupe_test of its own, which is
# easily forgotten, or lost.
function(troupe_check_tests)
  get_property(tests DIRECTORY PROPERTY TESTS)
  file(GLOB_RECURSE files CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/troupe ${PROJECT_SOURCE_DIR}/troupe/*_test.cpp)
  list(TRANSFORM files REPLACE "_test\\.cpp$" "")
  list(REMOVE_ITEM files ${tests})
  if(files)
    message(FATAL_ERROR "no test runs these files, add troupe_test(<path> <library>...): ${files}")
  endif()
endfunction()

# What takes long to build is the tests, and all that takes long to run is in the libraries: but for kernels' tests, which
# sum references themselves.
function(troupe_test_options program layer)
  target_link_libraries(${program} PRIVATE ${ARGN} troupe_test_main)
  if("troupe_testing" IN_LIST ARGN)
    target_link_libraries(${program} PRIVATE troupe_seed)
  endif()
  if(layer STREQUAL "kernels")
    return()
  endif()
  if(TROUPE_TEST_FLAGS)
    target_compile_options(${program} PRIVATE ${TROUPE_TEST_FLAGS})
  else()
    target_compile_options(${program} PRIVATE -O1)
    if("troupe_testing" IN_LIST ARGN)
      troupe_reuse_precompiled(${program} troupe_testing)
    endif()
  endif()
endfunction()

# A test takes two halves of a core, in which ./dev counts (ctest's -j); one that mostly waits, one (tests/CMakeLists.txt).
# A test's threads share the processors with other tests: waiting by spinning would starve them.
function(troupe_add_test path program)
  string(REPLACE "/" "." result ${path})
  add_test(NAME ${path} COMMAND ${program} ${ARGN} --gtest_output=json:${PROJECT_BINARY_DIR}/test_results/${result}.json)
  set_tests_properties(${path} PROPERTIES ENVIRONMENT "OMP_WAIT_POLICY=passive" PROCESSORS 2)
endfunction()
