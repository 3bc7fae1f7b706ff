#include "tutti/base/log.h"

#include <fmt/format.h>
#include <unistd.h>

#include <utility>

namespace tutti {

void log_to_stderr(LogLevel level, std::string_view line) {
  static constexpr std::string_view kNames[] = {"error: ", "warning: ", "", "debug: "};
  const auto text = fmt::format("tutti: {}{}\n", kNames[static_cast<int>(level)], line);
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
}

LogSink log_up_to(LogLevel limit, LogSink sink) {
  return [limit, sink = std::move(sink)](LogLevel level, std::string_view line) {
    if (level <= limit) sink ? sink(level, line) : log_to_stderr(level, line);
  };
}

}  // namespace tutti
