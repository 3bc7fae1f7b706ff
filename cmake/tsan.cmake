# clang's instrumentation for tsan compiles and runs faster than gcc's. If clang 16 or its
# symbolizer is missing, the default compiler is used. Warnings of clang are not errors, because gcc
# checks all sources in the release build.
find_program(TUTTI_TSAN_COMPILER clang++-16)
find_program(TUTTI_TSAN_C_COMPILER clang-16)
find_program(TUTTI_TSAN_SYMBOLIZER llvm-symbolizer-16)
if(TUTTI_TSAN_COMPILER AND TUTTI_TSAN_C_COMPILER AND TUTTI_TSAN_SYMBOLIZER)
  set(CMAKE_C_COMPILER ${TUTTI_TSAN_C_COMPILER})
  set(CMAKE_CXX_COMPILER ${TUTTI_TSAN_COMPILER})
  set(TUTTI_WERROR OFF CACHE BOOL "Warnings are errors" FORCE)
endif()
