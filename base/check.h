#pragma once

#include <string_view>

namespace tutti::detail {
[[noreturn]] void check_failed(const char* file, int line, const char* condition);
}

/// Asserts conditions that only a mistake of the library can violate; throws Error(internal).
/// Outside errors (input, peers, files) are reported with Error directly.
#define TUTTI_CHECK(condition) \
  ((condition) ? void() : ::tutti::detail::check_failed(__FILE__, __LINE__, #condition))
