# What the libraries of cmake/troupe_source.cmake are linked with, and the plug-in libtroupe_cuda.so.
# The kernels' CPU halves go in whole: the plug-in calls their validate() and workspace_bytes().
# TARGET_FILE and not the targets' names: CMake 3.25 cannot mix whole and plain uses of one archive.
get_property(kernels GLOBAL PROPERTY troupe_kernel_targets)
set(layers troupe_core troupe_schedule troupe_plan troupe_mesh troupe_data troupe_checkpoint)
set(archives ${layers} ${kernels})
list(TRANSFORM archives REPLACE "(.+)" "$<TARGET_FILE:\\1>")
# For python/troupe, and for the wheel that tools/make_wheel.py makes of this build.
configure_file(${PROJECT_SOURCE_DIR}/cmake/troupe_build.py.in ${PROJECT_BINARY_DIR}/troupe_build.py @ONLY)
# Before 1.0 a minor version may change any interface: no program takes another one's library for its own.
set(TROUPE_SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
add_dependencies(troupe ${layers} ${kernels})
target_include_directories(troupe PRIVATE ${PROJECT_SOURCE_DIR}/troupe/distributed/gloo_headers)
target_link_libraries(troupe
  PUBLIC $<BUILD_INTERFACE:troupe_options> torch::cpu
  PRIVATE -Wl,--whole-archive ${archives} -Wl,--no-whole-archive
          ${TROUPE_CORE_LIBRARIES} Threads::Threads z zstd ${CMAKE_DL_LIBS})
set_target_properties(troupe PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${TROUPE_SOVERSION})

add_dependencies(troupe_train troupe_tokenizer)
target_link_libraries(troupe_train
  PUBLIC troupe
  PRIVATE -Wl,--whole-archive $<TARGET_FILE:troupe_tokenizer> -Wl,--no-whole-archive
          ${TROUPE_TOKENIZER_LIBRARIES})
set_target_properties(troupe_train PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${TROUPE_SOVERSION})

if(TROUPE_CUDA)
  get_property(cuda_kernels GLOBAL PROPERTY troupe_cuda_targets)
  add_library(troupe_cuda SHARED ${PROJECT_SOURCE_DIR}/troupe/ops/support/cuda_plugin_table.cpp
    ${PROJECT_SOURCE_DIR}/troupe/ops/support/device_graph_cuda.cpp
    ${PROJECT_SOURCE_DIR}/troupe/ops/support/pinned_memory_cuda.cpp
    ${PROJECT_SOURCE_DIR}/troupe/distributed/group/nccl_backend.cpp
    ${PROJECT_SOURCE_DIR}/troupe/distributed/group/device_memory.cpp)
  target_link_libraries(troupe_cuda
    PRIVATE troupe ${cuda_kernels} torch::cuda torch::nccl_headers CUDA::cudart)
  # Headers alone; the library is the one that PyTorch's wheel brings.
  set(TROUPE_CUDNN_FRONTEND ${TROUPE_TORCH_ROOT}/include CACHE PATH "The folder of cudnn_frontend.h")
  if(EXISTS ${TROUPE_CUDNN_FRONTEND}/cudnn_frontend.h)
    target_sources(troupe_cuda PRIVATE ${PROJECT_SOURCE_DIR}/troupe/ops/attention/cudnn_plans.cpp)
    target_compile_definitions(troupe_cuda PRIVATE TROUPE_CUDNN_FRONTEND CUDNN_FRONTEND_SKIP_JSON_LIB)
    target_include_directories(troupe_cuda SYSTEM PRIVATE ${TROUPE_CUDNN_FRONTEND})
    target_link_libraries(troupe_cuda PRIVATE torch::cudnn)
  else()
    message(WARNING "no cudnn_frontend.h in ${TROUPE_CUDNN_FRONTEND}: run ./dev setup. Without it attention "
                    "on a GPU is PyTorch's, whose repeatable backward takes twice as long")
  endif()
endif()
