# troupe_precompile(<target> [HEADERS <header>...]): PyTorch's tensor type and its operators, which cost 7 of the 10
# seconds that a typical file above ops/ takes to compile, are parsed once for all files of the target. Files keep
# their own includes: clang-tidy (tools/check_lint.py) and the preset dev compile them without.
#
# troupe_reuse_precompiled(<target> <from>): the same for another target with the same flags; g++ refuses a header
# that was precompiled with others, and -Winvalid-pch makes that an error in CI.
option(TROUPE_PCH "Precompile PyTorch's headers" ON)

function(troupe_precompile target)
  cmake_parse_arguments(arg "" "" "HEADERS" ${ARGN})
  if(TROUPE_PCH AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_precompile_headers(${target} PRIVATE <ATen/core/Tensor.h> <ATen/TensorOperators.h> ${arg_HEADERS})
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)  # for ccache
    # The macro that only tells a library from its users, which nothing of ours reads, would be a difference.
    set_target_properties(${target} PROPERTIES DEFINE_SYMBOL "")
  endif()
endfunction()

function(troupe_reuse_precompiled target from)
  if(TROUPE_PCH AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_precompile_headers(${target} REUSE_FROM ${from})
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
  endif()
endfunction()
