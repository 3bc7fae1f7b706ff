#pragma once

#include <string>
#include <vector>

#include "tools/bench/workload/settings.h"
#include "tools/run/command_line.h"

namespace tutti::bench {

/// Throws run::Refusal. A usage error has one line and code 2; help has code 0.
Settings parse_command_line(const std::vector<std::string>& arguments);

}  // namespace tutti::bench
