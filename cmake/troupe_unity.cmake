# troupe_unity(<target>...): with TROUPE_UNITY, the files of these targets are compiled eight at a
# time. Most of what a file costs is PyTorch's headers (7 s of 10), read once for all eight so: 86 s
# become 15 for eight files of nn/. Two files' unnamed namespaces are then one, so a name is given
# once a library. Without it (the preset dev) each file compiles by itself, which finds an include
# that only a neighbour has. Files with flags of their own, and kernels, stay by themselves.
#
# TROUPE_ALONE names files that are being worked on, ';' between them: each is compiled by itself, so an
# edit costs that file, not its group. The groups of all other files stay as they are.
set(TROUPE_ALONE "" CACHE STRING "Compiled alone in a unity build: troupe/nn/block.cpp;apps/plan.cpp")

function(troupe_unity)
  if(NOT TROUPE_UNITY)
    return()
  endif()
  foreach(source IN LISTS TROUPE_ALONE)
    set_source_files_properties(${PROJECT_SOURCE_DIR}/${source} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endforeach()
  foreach(target IN LISTS ARGN)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
    get_target_property(sources ${target} SOURCES)
    set(position 0)
    foreach(source IN LISTS sources)
      math(EXPR group "${position} / 8")
      math(EXPR position "${position} + 1")
      set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group})
    endforeach()
  endforeach()
endfunction()

# troupe_alone(<layer path>...): these are compiled by themselves all the same, because they define
# types of a header's, or macros, or tables that are named alike.
function(troupe_alone)
  foreach(path IN LISTS ARGN)
    set_source_files_properties(${PROJECT_SOURCE_DIR}/troupe/${path}.cpp PROPERTIES
      SKIP_UNITY_BUILD_INCLUSION ON)
  endforeach()
endfunction()
