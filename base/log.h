#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace tutti {

/// What a line is about; TUTTI_LOG lets through what is at least as grave.
enum class LogLevel : int { error = 0, warning = 1, info = 2, debug = 3 };

/// Takes finished lines (no newline at the end). Called from any thread, one call at a time per
/// Communicator; must not throw and must not call back into the library.
using LogSink = std::function<void(LogLevel, std::string_view)>;

/// Writes `tutti: line` to standard error, in one write per line.
void log_to_stderr(LogLevel level, std::string_view line);

/// Hands on to `sink` (null: standard error) what is at least as grave as `limit`.
LogSink log_up_to(LogLevel limit, LogSink sink);

}  // namespace tutti
