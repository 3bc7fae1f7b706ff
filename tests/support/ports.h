#pragma once

#include <unistd.h>

#include <string>

namespace tutti::test {

/// A port for this process alone: below those that the system hands out (from 32768 on), one of
/// which another test may hold just then.
inline std::string own_port() { return std::to_string(20'000 + ::getpid() % 12'000); }

}  // namespace tutti::test
