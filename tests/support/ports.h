#pragma once

#include <unistd.h>

#include <string>

namespace tutti::test {

/// A port for this process alone, and so is the next one. They lie below those that the system
/// hands out (from 32768 on), one of which another test may hold just then.
inline std::string own_port() { return std::to_string(20'000 + 2 * (::getpid() % 6'000)); }

}  // namespace tutti::test
