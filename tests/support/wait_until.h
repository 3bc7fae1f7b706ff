#pragma once

#include <chrono>
#include <thread>

#include "tutti/base/deadline.h"

namespace tutti::test {

/// Waits until `holds()`, but no longer than `seconds`. Returns whether it holds.
template <class Condition>
bool wait_until(Condition&& holds, double seconds = 30) {
  const auto deadline = Deadline::after(seconds);
  while (!holds() && !deadline.passed())
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  return holds();
}

}  // namespace tutti::test
