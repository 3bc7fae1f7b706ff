#pragma once

#include <unistd.h>

#include <string>

namespace tutti::test {

/// Returns a port that, like the next one, belongs to this process alone. They lie below those that
/// the system hands out (from 32768 on), one of which another test may hold just then.
inline std::string own_port() { return std::to_string(20'000 + 2 * (::getpid() % 6'000)); }

}  // namespace tutti::test
