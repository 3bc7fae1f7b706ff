#pragma once

#include <exception>
#include <new>
#include <string>
#include <utility>

#include "tutti/adapters/c/tutti.h"
#include "tutti/base/error.h"

namespace tutti::c {

/// Keeps the error for tutti_last_error() of this thread; returns its status. Never throws: without
/// memory for the text it keeps the status alone.
int keep_error(const Error& error) noexcept;
/// The same for whatever is being handled in a catch block.
int keep_current_exception() noexcept;

/// The same for one that was caught elsewhere.
int keep_exception(const std::exception_ptr& exception) noexcept;

/// While a callback of the program runs: what it tells tutti_fail() is not mistaken for a failure
/// of this thread's own calls, which is put back at the end.
class LastErrorKept {
 public:
  LastErrorKept();
  ~LastErrorKept();
  LastErrorKept(const LastErrorKept&) = delete;
  LastErrorKept& operator=(const LastErrorKept&) = delete;
  /// What was told since; empty if nothing was.
  static std::string told();

 private:
  const std::string text_, tensor_;
  const int rank_;
};

/// Runs a call's body; whatever it throws becomes a status.
template <class Body>
int guarded(Body&& body) noexcept {
  try {
    std::forward<Body>(body)();
    return TUTTI_OK;
  } catch (...) {
    return keep_current_exception();
  }
}

}  // namespace tutti::c
