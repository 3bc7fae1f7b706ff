#include "tutti/base/error.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>

#include "tutti/base/process/limits.h"

namespace tutti {

std::string_view to_string(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::invalid_argument:
      return "invalid argument";
    case ErrorCode::mismatch:
      return "mismatch";
    case ErrorCode::duplicate_name:
      return "duplicate name";
    case ErrorCode::timeout:
      return "timeout";
    case ErrorCode::peer_lost:
      return "peer lost";
    case ErrorCode::peer_silent:
      return "peer silent";
    case ErrorCode::peer_left:
      return "peer left";
    case ErrorCode::closed:
      return "closed";
    case ErrorCode::authentication:
      return "authentication";
    case ErrorCode::version:
      return "version";
    case ErrorCode::unavailable:
      return "unavailable";
    case ErrorCode::io:
      return "input/output";
    case ErrorCode::corrupt_data:
      return "corrupt data";
    case ErrorCode::out_of_memory:
      return "out of memory";
    case ErrorCode::callback:
      return "callback";
    case ErrorCode::internal:
      return "internal error";
  }
  return "unknown error";
}

Error system_error(std::string_view what, int error_number) {
  // EAGAIN has many meanings. In the errors that reach this function it does not mean a limit.
  const auto advice = error_number == EAGAIN ? std::string() : limit_advice(error_number);
  return {ErrorCode::io, fmt::format("{}: {}{}{}", what, std::strerror(error_number),
                                     advice.empty() ? "" : "; ", advice)};
}

}  // namespace tutti
