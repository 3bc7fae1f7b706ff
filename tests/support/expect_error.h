#pragma once

#include <gtest/gtest.h>

#include <string_view>

#include "tutti/base/error.h"

namespace tutti::test {

/// Expects that `body` throws an Error with this code, in one line that contains `text`.
template <class Body>
void expect_error(ErrorCode code, std::string_view text, Body&& body) {
  SCOPED_TRACE(text);
  try {
    static_cast<void>(body());  // may return a Work
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    const std::string_view line = error.what();
    EXPECT_EQ(error.code(), code) << line;
    EXPECT_NE(line.find(text), line.npos) << line;
    EXPECT_EQ(line.find('\n'), line.npos) << line;
  }
}

/// Expects the same for a wrong argument.
template <class Body>
void expect_refused(std::string_view text, Body&& body) {
  expect_error(ErrorCode::invalid_argument, text, body);
}

}  // namespace tutti::test
