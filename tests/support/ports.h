#pragma once

#include <unistd.h>

#include <string>

namespace tutti::test {

/// Returns a port that belongs to this process alone, like the next higher port. Both are below the
/// ports that the system assigns (from 32768 on), one of which another test may use.
inline std::string own_port() { return std::to_string(20'000 + 2 * (::getpid() % 6'000)); }

}  // namespace tutti::test
