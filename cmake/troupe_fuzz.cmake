# troupe_fuzz(<name> <library or file.cpp>...): builds tests/fuzz/<name>_fuzz.cpp, which has
# LLVMFuzzerTestOneInput, as a libFuzzer program where TROUPE_FUZZ is on: the preset fuzz, which has
# Clang and its sanitizers. The libraries and files named are instrumented and lead the mutations.
# ABOVE_TORCH: what else it needs is taken, as it is, from the libtroupe_train.so of another build:
# instrumented, all that a recipe's parts link would take as long to build as Troupe does.
set(TROUPE_FUZZ_LIBRARY ${PROJECT_SOURCE_DIR}/build/ci/libtroupe_train.so
    CACHE FILEPATH "The trainer's library that some fuzz programs link")
function(troupe_fuzz name)
  if(NOT TROUPE_FUZZ)
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 1 arg "ABOVE_TORCH" "" "")
  add_executable(${name}_fuzz EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/tests/fuzz/${name}_fuzz.cpp)
  set(libraries ${arg_UNPARSED_ARGUMENTS})
  list(FILTER libraries EXCLUDE REGEX "\\.cpp$")
  set(files ${arg_UNPARSED_ARGUMENTS})
  list(FILTER files INCLUDE REGEX "\\.cpp$")
  list(TRANSFORM files PREPEND ${PROJECT_SOURCE_DIR}/troupe/)
  target_sources(${name}_fuzz PRIVATE ${files})
  target_link_libraries(${name}_fuzz PRIVATE ${libraries} -fsanitize=fuzzer)
  if(arg_ABOVE_TORCH)
    get_filename_component(folder ${TROUPE_FUZZ_LIBRARY} DIRECTORY)
    target_include_directories(${name}_fuzz SYSTEM PRIVATE
      $<TARGET_PROPERTY:torch::cpu,INTERFACE_INCLUDE_DIRECTORIES>)
    target_link_libraries(${name}_fuzz PRIVATE torch::headers ${TROUPE_FUZZ_LIBRARY}
                          ${folder}/libtroupe.so ${torch_dir}/lib/libc10.so -Wl,--allow-shlib-undefined)
    set_target_properties(${name}_fuzz PROPERTIES BUILD_RPATH "${folder}")
    set_property(TARGET ${name}_fuzz PROPERTY LINK_DEPENDS ${TROUPE_FUZZ_LIBRARY})
  endif()
endfunction()
