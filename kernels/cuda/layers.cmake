# Builds libtutti_layers_cuda.so if the device's plugin is built and cuDNN's header is available. It
# links CUDA's runtime statically and loads cuBLASLt and cuDNN when a model needs them. It depends
# on the bundled trainer, which includes this file.
if(NOT TARGET tutti_device_cuda)
  return()
endif()
find_package(CUDAToolkit QUIET)
find_path(TUTTI_CUDNN_INCLUDE_DIR cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
mark_as_advanced(TUTTI_CUDNN_INCLUDE_DIR)
if(NOT TUTTI_CUDNN_INCLUDE_DIR)
  message(STATUS "Layers cuda: not built, cudnn.h was not found")
  return()
endif()
message(STATUS "Layers cuda: built as a plugin")
file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/trainer/*.cc
  ${CMAKE_CURRENT_LIST_DIR}/libraries/*.cc)
# The tests' fake device is built from the same sources.
set_property(GLOBAL PROPERTY TUTTI_GPU_LAYER_SOURCES ${sources})
set_property(GLOBAL PROPERTY TUTTI_GPU_LAYER_INCLUDES ${TUTTI_CUDNN_INCLUDE_DIR}
  ${CUDAToolkit_INCLUDE_DIRS})
add_library(tutti_layers_cuda MODULE ${sources} ${CMAKE_CURRENT_LIST_DIR}/layers_plugin.cc
  ${CMAKE_CURRENT_LIST_DIR}/device/calls.cc $<TARGET_OBJECTS:tutti_cuda_layer_kernels>)
target_link_libraries(tutti_layers_cuda PRIVATE tutti_nn fmt::fmt CUDA::cudart_static)
target_include_directories(tutti_layers_cuda SYSTEM PRIVATE ${TUTTI_CUDNN_INCLUDE_DIR}
  ${CUDAToolkit_INCLUDE_DIRS})
set_target_properties(tutti_layers_cuda PROPERTIES
  LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR} LINKER_LANGUAGE CXX CUDA_RUNTIME_LIBRARY None)
tutti_options(tutti_layers_cuda)
tutti_wants_all(tutti_layers_cuda)
tutti_together(tutti_layers_cuda)
set_property(GLOBAL APPEND PROPERTY TUTTI_BACKEND_PLUGINS tutti_layers_cuda)
