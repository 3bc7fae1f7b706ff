#pragma once

#include <exception>
#include <new>
#include <string>
#include <utility>

#include "tutti/adapters/c/tutti.h"
#include "tutti/base/error.h"

namespace tutti::c {

/// Keeps the error for tutti_last_error() of this thread, and returns its status. Never throws: if
/// there is no memory for the text, the text is empty.
int keep_error(const Error& error) noexcept;
/// Like keep_error(), for the exception that the calling catch block handles.
int keep_current_exception() noexcept;

/// Like keep_error(), for an exception that was caught elsewhere.
int keep_exception(const std::exception_ptr& exception) noexcept;

/// Guards this thread's last error while a callback of the program runs. The callback may set an
/// error by tutti_fail(); told() returns its text. The destructor restores the last error that the
/// thread's own calls have set.
class LastErrorKept {
 public:
  LastErrorKept();
  ~LastErrorKept();
  LastErrorKept(const LastErrorKept&) = delete;
  LastErrorKept& operator=(const LastErrorKept&) = delete;
  /// Returns the text that the callback has set since it was entered, or an empty text.
  static std::string told();

 private:
  const std::string text_, tensor_;
  const int rank_;
};

/// Runs a call's body and turns whatever it throws into a status.
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
