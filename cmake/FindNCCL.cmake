# Finds the header of NCCL and the CUDA header that it includes. The library itself is found at run
# time. Defines the target NCCL::headers.
find_path(NCCL_INCLUDE_DIR nccl.h)
find_path(NCCL_CUDA_INCLUDE_DIR cuda_runtime.h HINTS ${CUDAToolkit_INCLUDE_DIRS}
  /usr/local/cuda/include)
mark_as_advanced(NCCL_INCLUDE_DIR NCCL_CUDA_INCLUDE_DIR)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NCCL REQUIRED_VARS NCCL_INCLUDE_DIR NCCL_CUDA_INCLUDE_DIR)
if(NCCL_FOUND AND NOT TARGET NCCL::headers)
  add_library(NCCL::headers INTERFACE IMPORTED)
  set_target_properties(NCCL::headers PROPERTIES INTERFACE_INCLUDE_DIRECTORIES
    "${NCCL_INCLUDE_DIR};${NCCL_CUDA_INCLUDE_DIR}")
endif()
