# troupe_test(<path> <library>...): builds troupe/<path>_test.cpp against the libraries, as in
# troupe_test(core/config/config troupe_core), which makes the program config_test and the test core/config/config.
# Where the name is taken (kernels/norm has norm_test), the folder goes before it: ops_norm_test.
# Where a lower layer has a test of that name, the program's name begins with the layer's: the op
# beside kernels/permute/permute_test.cpp is tested by ops_permute_test.
# Each run leaves its results in test_results/ for tools/check_features.py.
function(troupe_test path)
  if(NOT TROUPE_TESTS)
    return()
  endif()
  get_filename_component(name ${path} NAME)
  if(TARGET ${name}_test)
    string(REPLACE "/" "_" name ${path})
  endif()
  string(REPLACE "/" "." result ${path})
  add_executable(${name}_test ${PROJECT_SOURCE_DIR}/troupe/${path}_test.cpp)
  target_link_libraries(${name}_test PRIVATE ${ARGN} GTest::gtest_main)
  if("troupe_testing" IN_LIST ARGN)
    target_link_libraries(${name}_test PRIVATE troupe_seed)
  endif()
  # What takes long to build is the tests, and all that takes long to run is in the libraries: but for
  # kernels' tests, which sum references themselves.
  if(TROUPE_TEST_FLAGS AND NOT path MATCHES "^kernels/")
    target_compile_options(${name}_test PRIVATE ${TROUPE_TEST_FLAGS})
  elseif("troupe_testing" IN_LIST ARGN)
    target_compile_options(${name}_test PRIVATE -O1)
    troupe_reuse_precompiled(${name}_test troupe_testing)
  endif()
  add_test(NAME ${path} COMMAND ${name}_test
           --gtest_output=json:${PROJECT_BINARY_DIR}/test_results/${result}.json)
  # A test's threads share the processors with other tests: waiting by spinning would starve them.
  set_tests_properties(${path} PROPERTIES ENVIRONMENT "OMP_WAIT_POLICY=passive")
endfunction()
