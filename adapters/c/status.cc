#include "tutti/adapters/c/status.h"

namespace tutti::c {

namespace {

struct LastError {
  std::string text;
  std::string tensor;
  int rank = -1;
};

// C has no exceptions, so the error is kept here until the thread that failed asks for it.
thread_local LastError last_error;

}  // namespace

int keep_error(const Error& error) noexcept {
  last_error.rank = error.rank();
  try {
    last_error.text = error.what();
    last_error.tensor = error.tensor();
  } catch (const std::bad_alloc&) {
    last_error.text.clear();
    last_error.tensor.clear();
  }
  return static_cast<int>(error.code());
}

int keep_current_exception() noexcept {
  try {
    try {
      throw;
    } catch (const Error& error) {
      return keep_error(error);
    } catch (const std::bad_alloc&) {
      return keep_error(Error(ErrorCode::out_of_memory, "out of memory"));
    } catch (const std::exception& exception) {
      return keep_error(Error(ErrorCode::internal, exception.what()));
    } catch (...) {
      return keep_error(
          Error(ErrorCode::internal, "something threw an object that is not a std::exception"));
    }
  } catch (...) {
    last_error = {};
    return TUTTI_OUT_OF_MEMORY;
  }
}

int keep_exception(const std::exception_ptr& exception) noexcept {
  try {
    std::rethrow_exception(exception);
  } catch (...) {
    return keep_current_exception();
  }
}

LastErrorKept::LastErrorKept()
    : text_(last_error.text), tensor_(last_error.tensor), rank_(last_error.rank) {
  last_error = {};
}

LastErrorKept::~LastErrorKept() { last_error = {text_, tensor_, rank_}; }

std::string LastErrorKept::told() { return last_error.text; }

}  // namespace tutti::c

int tutti_fail(int status, const char* text) {
  tutti::c::guarded(
      [&] { throw tutti::Error(tutti::ErrorCode::callback, text == nullptr ? "" : text); });
  return status;
}

const char* tutti_last_error(void) { return tutti::c::last_error.text.c_str(); }
int tutti_last_error_rank(void) { return tutti::c::last_error.rank; }
const char* tutti_last_error_tensor(void) { return tutti::c::last_error.tensor.c_str(); }

const char* tutti_status_name(int status) {
  if (status == TUTTI_OK) return "ok";
  if (status < TUTTI_OK || status > TUTTI_INTERNAL) return "unknown status";
  return tutti::to_string(static_cast<tutti::ErrorCode>(status)).data();
}
