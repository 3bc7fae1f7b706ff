#include "tutti/base/log.h"

#include <fmt/format.h>
#include <unistd.h>

namespace tutti {

void log_to_stderr(LogLevel level, std::string_view line) {
  static constexpr std::string_view kNames[] = {"error: ", "warning: ", "", "debug: "};
  const auto text = fmt::format("tutti: {}{}\n", kNames[static_cast<int>(level)], line);
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace tutti
