# troupe_unity(<target>...): with TROUPE_UNITY, the files of these targets are compiled eight at a
# time. Most of what a file costs is PyTorch's headers (7 s of 10), read once for all eight so: 86 s
# become 15 for eight files of nn/. Two files' unnamed namespaces are then one, so a name is given
# once a library. Without it (the preset dev) each file compiles by itself, which finds an include
# that only a neighbour has. Files with flags of their own, and kernels, stay by themselves.
function(troupe_unity)
  if(TROUPE_UNITY)
    set_target_properties(${ARGN} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
  endif()
endfunction()

# troupe_alone(<layer path>...): these are compiled by themselves all the same, because they define
# types of a header's, or macros, or tables that are named alike.
function(troupe_alone)
  foreach(path IN LISTS ARGN)
    set_source_files_properties(${PROJECT_SOURCE_DIR}/troupe/${path}.cpp PROPERTIES
      SKIP_UNITY_BUILD_INCLUSION ON)
  endforeach()
endfunction()
