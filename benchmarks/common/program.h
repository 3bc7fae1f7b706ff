#pragma once

#include <cstdio>
#include <exception>

namespace tutti::benchmarks {

/// A program's exit code: what `run` returns, or 2 with the reason in one line.
inline int run_program(int (*run)(int, char**), int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", argv[0], error.what());
    return 2;
  }
}

}  // namespace tutti::benchmarks
