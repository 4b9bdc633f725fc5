# What the program says of itself beside its version (core/version.h): the commit that was configured, with "+" where files
# differ from it.
set(commit unknown)
find_package(Git QUIET)
if(GIT_FOUND)
  execute_process(COMMAND ${GIT_EXECUTABLE} describe --always --abbrev=9 --exclude=* --dirty=+
                  WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
                  OUTPUT_VARIABLE described OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(described)
    set(commit ${described})
  endif()
endif()
set_source_files_properties(${PROJECT_SOURCE_DIR}/troupe/train/observe/version.cpp PROPERTIES
  COMPILE_DEFINITIONS "TROUPE_COMMIT=\"${commit}\"")
