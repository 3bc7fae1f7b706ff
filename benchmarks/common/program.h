#pragma once

#include <cstdio>
#include <exception>

namespace tutti::benchmarks {

/// Runs `run` and returns its exit code. If it throws, prints the reason in one line and returns 2.
inline int run_program(int (*run)(int, char**), int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", argv[0], error.what());
    return 2;
  }
}

}  // namespace tutti::benchmarks
