#pragma once

#include <string_view>

namespace tutti::detail {
[[noreturn]] void check_failed(const char* file, int line, const char* condition);
}

/// Asserts what only a mistake of our own can break; throws Error(internal). Errors of the world
/// (input, peers, files) are reported with Error directly.
#define TUTTI_CHECK(condition) \
  ((condition) ? void() : ::tutti::detail::check_failed(__FILE__, __LINE__, #condition))
