# troupe_unity(<target>...): with TROUPE_UNITY, the files of these targets are compiled eight at a
# time, each folder's by themselves, so that a new file moves no other folder's groups. Most of what a file
# costs is headers, read once for all eight so. Two files' unnamed namespaces
# are then one, so a name is given once a library. Without it (the preset dev) each file compiles by
# itself, which finds an include that only a neighbor has. Files with flags of their own, and kernels,
# stay by themselves.
#
# CMake's own UNITY_BUILD names files by absolute paths, which no ccache finds again in another
# checkout; the files written here include "troupe/...", as all of ours do.
#
# TROUPE_ALONE names files that are being worked on, ';' between them: each is compiled by itself, so an
# edit costs that file, not its group. The groups of all other files stay as they are.
set(TROUPE_ALONE "" CACHE STRING "Compiled alone in a unity build: troupe/nn/block.cpp;apps/plan.cpp")

function(troupe_unity)
  if(NOT TROUPE_UNITY)
    return()
  endif()
  foreach(target IN LISTS ARGN)
    get_target_property(sources ${target} SOURCES)
    set(remaining "")
    set(groups "")
    foreach(source IN LISTS sources)
      get_filename_component(path ${source} ABSOLUTE)
      file(RELATIVE_PATH name ${PROJECT_SOURCE_DIR} ${path})
      string(REGEX REPLACE "^(troupe/)?(.+)/[^/]+$" "\\2" layer ${name})
      string(REPLACE "/" "_" layer ${layer})
      if(NOT DEFINED files_of_${target}_${layer})
        set(files_of_${target}_${layer} 0)
      endif()
      math(EXPR group "${files_of_${target}_${layer}} / 8")
      set(group ${layer}_${group})
      math(EXPR files_of_${target}_${layer} "${files_of_${target}_${layer}} + 1")
      get_source_file_property(options ${source} COMPILE_OPTIONS)
      get_source_file_property(definitions ${source} COMPILE_DEFINITIONS)
      get_source_file_property(alone ${source} SKIP_UNITY_BUILD_INCLUSION)
      if(options OR definitions OR alone OR name IN_LIST TROUPE_ALONE)
        list(APPEND remaining ${source})
      else()
        string(APPEND includes_${group} "#include \"${name}\"\n")
        list(APPEND groups ${group})
      endif()
    endforeach()
    list(REMOVE_DUPLICATES groups)
    foreach(group IN LISTS groups)
      set(batch ${CMAKE_CURRENT_BINARY_DIR}/Unity/${target}_${group}.cpp)
      file(CONFIGURE OUTPUT ${batch} CONTENT "${includes_${group}}" @ONLY)
      unset(includes_${group})
      list(APPEND remaining ${batch})
    endforeach()
    set_target_properties(${target} PROPERTIES SOURCES "${remaining}")
  endforeach()
endfunction()

# troupe_alone(<layer path>...), before troupe_unity: these are compiled by themselves all the same, because they
# define types of a header's, or macros, or tables that are named alike.
function(troupe_alone)
  foreach(path IN LISTS ARGN)
    set_source_files_properties(${PROJECT_SOURCE_DIR}/troupe/${path}.cpp PROPERTIES
      SKIP_UNITY_BUILD_INCLUSION ON)
  endforeach()
endfunction()
