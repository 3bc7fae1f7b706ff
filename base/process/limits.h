#pragma once

#include <string>

namespace tutti {

/// Returns advice for an error number that means that a limit of this process or of the system was
/// reached. The advice names the limit, its value, and how to raise it ("this process may have 64
/// files open; allow more with ulimit -n"). Returns an empty text for any other number.
std::string limit_advice(int error_number);

}  // namespace tutti
