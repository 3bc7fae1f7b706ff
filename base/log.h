#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace tutti {

/// The severity of a line. TUTTI_LOG sets the least severe level that is logged.
enum class LogLevel : int { error = 0, warning = 1, info = 2, debug = 3 };

/// Takes complete lines (without a newline at the end). Any thread may call it, one call at a time
/// per Communicator. It must not throw and must not call the library.
using LogSink = std::function<void(LogLevel, std::string_view)>;

/// Writes `tutti: line` to standard error, in one write per line.
void log_to_stderr(LogLevel level, std::string_view line);

/// Returns a sink that passes lines at least as severe as `limit` to `sink` (null: standard error).
LogSink log_up_to(LogLevel limit, LogSink sink);

}  // namespace tutti
