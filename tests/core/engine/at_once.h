#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string_view>

#include "tutti/base/deadline.h"
#include "tutti/core/communicator.h"

namespace tutti::test {

inline constexpr double kAtOnce = 2;  // seconds; otherwise it takes close_timeout or for ever

inline void quiet(Options& options) {
  options.close_timeout = 10;
  options.log = [](LogLevel, std::string_view) {};
}

// Returns the Error that `call` throws, which must come within kAtOnce.
inline Error error_of(const std::function<void()>& call) {
  const auto begin = Clock::now();
  try {
    call();
  } catch (const Error& error) {
    EXPECT_LT(std::chrono::duration<double>(Clock::now() - begin).count(), kAtOnce) << error.what();
    return error;
  }
  ADD_FAILURE() << "no error";
  return Error(ErrorCode::internal, "none");
}

}  // namespace tutti::test
