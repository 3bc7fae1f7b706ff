#include "tutti/base/check.h"

#include <fmt/format.h>

#include "tutti/base/error.h"

namespace tutti::detail {

void check_failed(const char* file, int line, const char* condition) {
  const std::string_view path(file);
  const auto slash = path.find_last_of('/');
  const auto name = slash == path.npos ? path : path.substr(slash + 1);
  throw Error(
      ErrorCode::internal,
      fmt::format("internal check failed at {}:{}: {}; please report it", name, line, condition));
}

}  // namespace tutti::detail
