# troupe_source(<layer path>): adds troupe/<path>.cpp to libtroupe.so and, where troupe/<path>_test.cpp
# exists, its test, linked with libtroupe.so. One line an op, a module, a file above kernels/.
add_library(troupe SHARED)
if(TROUPE_TESTS)
  add_library(troupe_testing STATIC ${PROJECT_SOURCE_DIR}/troupe/testing/torch/jacobian.cpp
    ${PROJECT_SOURCE_DIR}/troupe/testing/torch/plan.cpp
    ${PROJECT_SOURCE_DIR}/troupe/testing/torch/ranks.cpp)
  target_link_libraries(troupe_testing PUBLIC troupe GTest::gtest)
endif()

function(troupe_source)
  troupe_add_sources(troupe ${ARGN})
endfunction()

# The same for libtroupe_train.so.
function(troupe_train_source)
  troupe_add_sources(troupe_train ${ARGN})
endfunction()

function(troupe_add_sources library)
  foreach(path IN LISTS ARGN)
    target_sources(${library} PRIVATE ${PROJECT_SOURCE_DIR}/troupe/${path}.cpp)
    if(EXISTS ${PROJECT_SOURCE_DIR}/troupe/${path}_test.cpp)
      troupe_test(${path} ${library} troupe_testing)
    endif()
  endforeach()
endfunction()

# The kernels' CPU halves go in whole: the plug-in calls their validate() and workspace_bytes().
# TARGET_FILE and not the targets' names: CMake 3.25 cannot mix whole and plain uses of one archive.
get_property(kernels GLOBAL PROPERTY troupe_kernel_targets)
set(layers troupe_core troupe_schedule troupe_plan troupe_mesh troupe_data troupe_checkpoint)
set(archives ${layers} ${kernels})
list(TRANSFORM archives REPLACE "(.+)" "$<TARGET_FILE:\\1>")
add_dependencies(troupe ${layers} ${kernels})
target_include_directories(troupe PRIVATE ${PROJECT_SOURCE_DIR}/troupe/distributed/gloo_headers)
target_link_libraries(troupe
  PUBLIC $<BUILD_INTERFACE:troupe_options> torch::cpu
  PRIVATE -Wl,--whole-archive ${archives} -Wl,--no-whole-archive
          ${TROUPE_CORE_LIBRARIES} Threads::Threads ${CMAKE_DL_LIBS})
set_target_properties(troupe PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION 0)

# The trainer and the tokenizers are a library of their own: who loads the operators into Python, or
# builds a model of their own with them, needs no Unicode tables and no SentencePiece.
add_library(troupe_train SHARED)
add_dependencies(troupe_train troupe_tokenizer)
target_link_libraries(troupe_train
  PUBLIC troupe
  PRIVATE -Wl,--whole-archive $<TARGET_FILE:troupe_tokenizer> -Wl,--no-whole-archive
          ${TROUPE_TOKENIZER_LIBRARIES})
set_target_properties(troupe_train PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION 0)

if(TROUPE_CUDA)
  get_property(cuda_kernels GLOBAL PROPERTY troupe_cuda_targets)
  add_library(troupe_cuda SHARED ${PROJECT_SOURCE_DIR}/troupe/ops/support/cuda_plugin_table.cpp
    ${PROJECT_SOURCE_DIR}/troupe/distributed/group/nccl_backend.cpp)
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
