#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "tests/support/seconds_since.h"
#include "tutti/base/error.h"

namespace tutti::test {

/// Returns the Error that `body` throws. The test fails if it throws none.
template <class Body>
Error error_of(Body&& body) {
  try {
    static_cast<void>(body());  // may return a Work
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return {ErrorCode::internal, "nothing was thrown"};
}

/// The same, thrown within that time.
template <class Body>
Error error_of(Body&& body, double most_seconds) {
  const auto begin = Clock::now();
  const auto error = error_of(body);
  EXPECT_LT(seconds_since(begin), most_seconds) << error.what();
  return error;
}

/// Returns the Error that `body` throws, which must have this code and hold `text` in one line.
template <class Body>
Error expect_error(ErrorCode code, std::string_view text, Body&& body) {
  SCOPED_TRACE(text);
  const auto error = error_of(body);
  const std::string_view line = error.what();
  EXPECT_EQ(error.code(), code) << line;
  EXPECT_NE(line.find(text), line.npos) << line;
  EXPECT_EQ(line.find('\n'), line.npos) << line;
  return error;
}

/// Expects the same for a wrong argument.
template <class Body>
Error expect_refused(std::string_view text, Body&& body) {
  return expect_error(ErrorCode::invalid_argument, text, body);
}

/// Returns the text with which `body` is refused.
template <class Body>
std::string refusal(Body&& body, ErrorCode code = ErrorCode::invalid_argument) {
  return expect_error(code, "", body).what();
}

}  // namespace tutti::test
