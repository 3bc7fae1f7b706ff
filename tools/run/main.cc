// tutti-run starts the ranks of a job, here or on other hosts, and watches them until they end.

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "tools/run/command_line.h"
#include "tools/run/job.h"
#include "tools/run/output.h"
#include "tools/run/remote_rank.h"
#include "tutti/core/settings/options.h"

namespace tutti::run {
namespace {

// Prints every setting with the value that it has in this environment.
void print_options() {
  const auto rows = describe_options(Options::from_environment());
  size_t variable = 0, value = 0, source = 0;
  for (const auto& row : rows) {
    variable = std::max(variable, row.variable.size());
    value = std::max(value, row.value.size());
    source = std::max(source, row.source.size());
  }
  std::string text;
  for (const auto& row : rows) {
    const auto normal = row.source == "default" || row.default_value.empty()
                            ? ""
                            : fmt::format(" (default {})", row.default_value);
    text += fmt::format("{:{}}  {:{}}  {:{}}  {}: {}{}\n", row.variable, variable, row.value, value,
                        row.source, source, row.unit, row.meaning, normal);
  }
  write_all(STDOUT_FILENO, text);
}

int run(const std::vector<std::string>& arguments) {
  const auto request = parse_command_line(arguments);
  if (request.remote_rank) return serve_remote_rank();
  if (request.print_options) return print_options(), 0;
  const auto keeper = Keeper::divide();
  return Job(request, keeper).run();
}

}  // namespace
}  // namespace tutti::run

int main(int count, char** words) {
  return tutti::run::run_tool("tutti-run", [=] {
    return tutti::run::run({words + 1, words + count});
  });
}
