# The libraries above the kernels, and how a layer adds its files to them.
#   libtroupe.so         ops, distributed, checkpoint, nn, and all below them
#   libtroupe_train.so   the trainer and the tokenizers: who loads the operators into Python, or builds a
#                        model of their own with them, needs no Unicode tables and no SentencePiece
if(TROUPE_TORCH)
  add_library(troupe SHARED)
  add_library(troupe_train SHARED)
  # Nothing here takes time at run time: that is in kernels/, ops/ and data/. -O3 compiled half again as long.
  target_compile_options(troupe_train PRIVATE -O1)
  if(TROUPE_TESTS)
    add_library(troupe_testing STATIC ${PROJECT_SOURCE_DIR}/troupe/testing/torch/jacobian.cpp
      ${PROJECT_SOURCE_DIR}/troupe/testing/torch/plan.cpp
      ${PROJECT_SOURCE_DIR}/troupe/testing/torch/ranks.cpp)
    target_link_libraries(troupe_testing PUBLIC troupe GTest::gtest)
    # The flags of a test program, so that all of them share one precompiled header.
    target_compile_options(troupe_testing PRIVATE -fPIE -O1)
    troupe_precompile(troupe_testing HEADERS <gtest/gtest.h>)
    # An object, not a part of the library: a linker leaves out what no test calls.
    add_library(troupe_seed OBJECT ${PROJECT_SOURCE_DIR}/troupe/testing/torch/seed.cpp)
    target_link_libraries(troupe_seed PRIVATE troupe GTest::gtest)
    target_compile_options(troupe_seed PRIVATE -fPIE -O1)
    troupe_reuse_precompiled(troupe_seed troupe_testing)
  endif()
endif()

# troupe_source(<layer path>): adds troupe/<path>.cpp to libtroupe.so and, where troupe/<path>_test.cpp
# exists, its test, linked with libtroupe.so. One line an op, a module, a file above kernels/. Without
# TROUPE_TORCH it adds nothing.
function(troupe_source)
  troupe_add_sources(troupe ${ARGN})
endfunction()

# troupe_sources_in(<folder>...): the same for each .cpp of troupe/<folder> but tests, by name, so that an operator, a
# router or an optimizer needs no line. Not of folders with files of the plug-in or with flags of their own.
# CONFIGURE_DEPENDS: a build looks first whether a file came or went, a test too. A new file moves its layer's unity
# groups: names are given once.
function(troupe_sources_in)
  troupe_add_folders(troupe ${ARGN})
endfunction()

# Both for libtroupe_train.so.
function(troupe_train_source)
  troupe_add_sources(troupe_train ${ARGN})
endfunction()

function(troupe_train_sources_in)
  troupe_add_folders(troupe_train ${ARGN})
endfunction()

function(troupe_add_folders library)
  foreach(folder IN LISTS ARGN)
    file(GLOB files CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/troupe ${PROJECT_SOURCE_DIR}/troupe/${folder}/*.cpp)
    list(FILTER files EXCLUDE REGEX "_test\\.cpp$")
    list(TRANSFORM files REPLACE "\\.cpp$" "")
    list(SORT files)
    troupe_add_sources(${library} ${files})
  endforeach()
endfunction()

function(troupe_add_sources library)
  if(NOT TROUPE_TORCH)
    return()
  endif()
  foreach(path IN LISTS ARGN)
    target_sources(${library} PRIVATE ${PROJECT_SOURCE_DIR}/troupe/${path}.cpp)
    if(EXISTS ${PROJECT_SOURCE_DIR}/troupe/${path}_test.cpp)
      troupe_test(${path} ${library} troupe_testing)
    endif()
  endforeach()
endfunction()
