# This file looks for nvcc and CUDA's runtime, and enables the language CUDA in the folder that
# includes it. CMake enables languages only outside of functions. Afterwards `cuda_why_not` is
# empty, or says why nothing of CUDA is built.
set(cuda_why_not "")
if(NOT TUTTI_CUDA)
  set(cuda_why_not "TUTTI_CUDA is off")
else()
  # nvcc is not in the path on every system.
  find_program(TUTTI_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)
  mark_as_advanced(TUTTI_NVCC)
  if(NOT TUTTI_NVCC)
    set(cuda_why_not "nvcc was not found")
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
      set(cuda_why_not "$ENV{CUDACXX} does not work here")
    else()
      enable_language(CUDA)
      find_package(CUDAToolkit QUIET)
      if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.8)
        set(cuda_why_not "CUDA ${CMAKE_CUDA_COMPILER_VERSION} is older than 12.8")
      elseif(NOT TARGET CUDA::cudart_static)
        set(cuda_why_not "nvcc is there, but not CUDA's static runtime")
      endif()
    endif()
  endif()
endif()
if(cuda_why_not)
  return()
endif()

if(NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()
# CMake 3.25 does not know that nvcc supports C++20.
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
endif()

# tutti_cuda_objects(<target> <source>...): compiles kernels to objects, for a plugin to link.
function(tutti_cuda_objects target)
  add_library(${target} OBJECT ${ARGN})
  target_include_directories(${target} PRIVATE ${TUTTI_INCLUDE_DIR})
  # Host and device must do the same arithmetic, so fused multiply-add is off. Register spills are
  # errors, too.
  target_compile_options(${target} PRIVATE -fmad=false --expt-relaxed-constexpr
    -Xptxas=--warn-on-spills -Xcompiler=-Wall,-Wextra $<$<BOOL:${TUTTI_WERROR}>:-Werror=all-warnings>)
  if(TUTTI_LESS_OPTIMIZED AND CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
    target_compile_options(${target} PRIVATE --Ofast-compile=min)
  endif()
endfunction()
