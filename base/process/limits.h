#pragma once

#include <string>

namespace tutti {

/// For an error number that says that a limit of this process or its system is reached: which limit
/// that is, where it stands and what raises it ("this process may have 64 files open; allow more
/// with ulimit -n"). Empty for any other number.
std::string limit_advice(int error_number);

}  // namespace tutti
