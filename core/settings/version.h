#pragma once

#include <string_view>

namespace tutti {

/// Ranks of one job must run the same version.
inline constexpr std::string_view kVersion = "0.1.0";

}  // namespace tutti
