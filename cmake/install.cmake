# cmake --install, and what find_package(troupe) reads. Installed are the program, libtroupe.so,
# libtroupe_train.so, the plug-in beside them, the headers, and cmake/torch.cmake: a consumer needs the
# same wheel, looked for where this build found it unless TROUPE_TORCH_ROOT says otherwise.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/troupe)

target_compile_features(troupe PUBLIC cxx_std_20)
target_include_directories(troupe INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
set(libraries troupe troupe_train)
if(TARGET troupe_cuda)
  list(APPEND libraries troupe_cuda)  # Opened at run time: installed, but no target for others.
  install(TARGETS troupe_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
# PyTorch's folder by name: CMake keeps link paths of its own accord outside the source tree alone.
set_target_properties(${libraries} PROPERTIES
  INSTALL_RPATH "$ORIGIN;${TROUPE_TORCH_ROOT}/torch/lib" INSTALL_RPATH_USE_LINK_PATH ON)
set_target_properties(troupe_program PROPERTIES
  INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR};${TROUPE_TORCH_ROOT}/torch/lib"
  INSTALL_RPATH_USE_LINK_PATH ON)

install(TARGETS troupe troupe_train EXPORT troupe LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS troupe_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(EXPORT troupe NAMESPACE troupe:: FILE troupeTargets.cmake DESTINATION ${package_dir})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/troupe DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        FILES_MATCHING PATTERN "*.h" PATTERN "*_test.h" EXCLUDE PATTERN testing EXCLUDE)
configure_package_config_file(
  ${PROJECT_SOURCE_DIR}/cmake/troupeConfig.cmake.in ${PROJECT_BINARY_DIR}/troupeConfig.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/troupeConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/troupeConfig.cmake
              ${PROJECT_BINARY_DIR}/troupeConfigVersion.cmake
              ${PROJECT_SOURCE_DIR}/cmake/torch.cmake
        DESTINATION ${package_dir})
