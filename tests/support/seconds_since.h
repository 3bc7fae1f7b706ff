#pragma once

#include <chrono>

#include "tutti/base/deadline.h"

namespace tutti::test {

inline double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace tutti::test
