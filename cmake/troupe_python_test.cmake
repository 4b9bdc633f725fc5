# troupe_python_test(<path>): makes the unittest file <path>.py a test of that name. It is run with the
# Python of .venv or TROUPE_PYTHON, which has the PyTorch of this build, and with TROUPE_BUILD set to the build folder; its results are left where those of
# the C++ tests are.
set(TROUPE_PYTHON "" CACHE FILEPATH "The Python that runs tests, if not .venv's")
function(troupe_python_test path)
  if(NOT TROUPE_TESTS)
    return()
  endif()
  string(REPLACE "/" "." result ${path})
  set(python ${PROJECT_SOURCE_DIR}/.venv/bin/python)
  if(TROUPE_PYTHON)
    set(python ${TROUPE_PYTHON})
  endif()
  if(NOT EXISTS ${python})
    set(python python3)
  endif()
  add_test(NAME ${path}
           COMMAND ${python} ${PROJECT_SOURCE_DIR}/tools/run_python_test.py
                   ${PROJECT_SOURCE_DIR}/${path}.py ${PROJECT_BINARY_DIR}/test_results/${result}.json)
  set_tests_properties(${path} PROPERTIES ENVIRONMENT "TROUPE_BUILD=${PROJECT_BINARY_DIR}" PROCESSORS 2)
endfunction()
