#pragma once

#include <string_view>

#include "tests/support/expect_error.h"
#include "tutti/core/communicator.h"

namespace tutti::test {

inline constexpr double kAtOnce = 2;  // seconds; otherwise it takes close_timeout or for ever

inline void quiet(Options& options) {
  options.close_timeout = 10;
  options.log = [](LogLevel, std::string_view) {};
}

// Returns the Error that `call` throws, which must come within kAtOnce.
template <class Call>
Error error_at_once(Call&& call) {
  return error_of(call, kAtOnce);
}

}  // namespace tutti::test
