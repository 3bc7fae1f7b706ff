#pragma once

#include <string_view>

namespace tutti::detail {
[[noreturn]] void check_failed(const char* file, int line, const char* condition);
}

/// Throws Error(internal) if the condition is false. It is for conditions that only a mistake in
/// the library can violate. Errors from outside (input, peers, files) are reported with Error
/// directly.
#define TUTTI_CHECK(condition) \
  ((condition) ? void() : ::tutti::detail::check_failed(__FILE__, __LINE__, #condition))
