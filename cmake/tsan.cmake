# What clang instruments for tsan is built, and runs, in two thirds of the time that gcc's takes (what it
# instruments for asan and ubsan takes longer). Where it is not whole, the default compiler does. Its warnings
# are not gcc's, by which all sources are judged in the release build.
find_program(TUTTI_TSAN_COMPILER clang++-16)
find_program(TUTTI_TSAN_C_COMPILER clang-16)
find_program(TUTTI_TSAN_SYMBOLIZER llvm-symbolizer-16)
if(TUTTI_TSAN_COMPILER AND TUTTI_TSAN_C_COMPILER AND TUTTI_TSAN_SYMBOLIZER)
  set(CMAKE_C_COMPILER ${TUTTI_TSAN_C_COMPILER})
  set(CMAKE_CXX_COMPILER ${TUTTI_TSAN_COMPILER})
  set(TUTTI_WERROR OFF CACHE BOOL "Warnings are errors" FORCE)
endif()
