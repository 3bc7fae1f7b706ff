# Builds libtutti_device_cuda.so if nvcc is available. The plugin links CUDA's runtime statically
# and finds the driver at run time, so that it loads on machines that have neither. This is a file
# of its own because CMake enables languages only outside of functions.
set(why_not "")
if(NOT TUTTI_CUDA)
  set(why_not "TUTTI_CUDA is off")
else()
  # nvcc is not in the path on every system.
  find_program(TUTTI_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)
  mark_as_advanced(TUTTI_NVCC)
  if(NOT TUTTI_NVCC)
    set(why_not "nvcc was not found")
  else()
    if(NOT DEFINED ENV{CUDACXX})
      set(ENV{CUDACXX} ${TUTTI_NVCC})
    endif()
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
      # 80 is for A100, 90 for H100 and H200. Later GPUs compile the kernels from PTX.
      set(CMAKE_CUDA_ARCHITECTURES 80-real 90)
      if(TUTTI_QUICK_BUILD)
        set(CMAKE_CUDA_ARCHITECTURES 80)  # H100 and H200 compile it from PTX
      endif()
    endif()
    include(CheckLanguage)
    check_language(CUDA)
    if(NOT CMAKE_CUDA_COMPILER)
      set(why_not "$ENV{CUDACXX} does not work here")
    else()
      enable_language(CUDA)
      find_package(CUDAToolkit QUIET)
      if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.8)
        set(why_not "CUDA ${CMAKE_CUDA_COMPILER_VERSION} is older than 12.8")
      elseif(NOT TARGET CUDA::cudart_static)
        set(why_not "nvcc is there, but not CUDA's static runtime")
      endif()
    endif()
  endif()
endif()
if(why_not)
  message(STATUS "Device cuda: not built, ${why_not}")
  return()
endif()
message(STATUS "Device cuda: built as a plugin with CUDA ${CMAKE_CUDA_COMPILER_VERSION} for "
  "${CMAKE_CUDA_ARCHITECTURES}")

if(NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()
# CMake 3.25 does not know that nvcc supports C++20.
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
endif()
# tutti_cuda_kernels has the kernels of the device plugin, tutti_cuda_layer_kernels those of the
# layer plugin (kernels/cuda/layers.cmake).
add_library(tutti_cuda_kernels OBJECT cuda/pack/launch.cu cuda/flags/flags.cu)
add_library(tutti_cuda_layer_kernels OBJECT cuda/layers/launch_layers.cu)
foreach(target tutti_cuda_kernels tutti_cuda_layer_kernels)
  target_include_directories(${target} PRIVATE ${TUTTI_INCLUDE_DIR})
  # Host and device must do the same arithmetic, so fused multiply-add is off. Register spills are
  # errors, too.
  target_compile_options(${target} PRIVATE -fmad=false --expt-relaxed-constexpr
    -Xptxas=--warn-on-spills -Xcompiler=-Wall,-Wextra $<$<BOOL:${TUTTI_WERROR}>:-Werror=all-warnings>)
  if(TUTTI_LESS_OPTIMIZED AND CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
    target_compile_options(${target} PRIVATE --Ofast-compile=min)
  endif()
endforeach()

# Compiles the kernels to PTX as text. A test checks the stores and loads in it.
add_library(tutti_cuda_ptx OBJECT EXCLUDE_FROM_ALL cuda/flags/flags.cu)
set_target_properties(tutti_cuda_ptx PROPERTIES CUDA_PTX_COMPILATION ON CUDA_ARCHITECTURES 80)
target_include_directories(tutti_cuda_ptx PRIVATE ${TUTTI_INCLUDE_DIR})
target_compile_options(tutti_cuda_ptx PRIVATE -fmad=false --expt-relaxed-constexpr)

file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/cuda/device/*.cc)
add_library(tutti_device_cuda MODULE ${sources} $<TARGET_OBJECTS:tutti_cuda_kernels>)
target_link_libraries(tutti_device_cuda PRIVATE tutti fmt::fmt CUDA::cudart_static)
# This keeps our warnings off CUDA's headers.
target_include_directories(tutti_device_cuda SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
set_target_properties(tutti_device_cuda PROPERTIES
  LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR} LINKER_LANGUAGE CXX CUDA_RUNTIME_LIBRARY None)
tutti_options(tutti_device_cuda)
tutti_wants_all(tutti_device_cuda)
set_property(GLOBAL APPEND PROPERTY TUTTI_BACKEND_PLUGINS tutti_device_cuda)
