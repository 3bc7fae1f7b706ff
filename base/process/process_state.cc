#include "tutti/base/process/process_state.h"

#include <fmt/format.h>
#include <signal.h>

#include <cerrno>
#include <fstream>
#include <string>

namespace tutti {

ProcessState process_state(int pid) {
  if (::kill(pid, 0) != 0 && errno == ESRCH) return ProcessState::ended;
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  std::getline(file, line);
  // The state is the letter after the name. The name is in parentheses and may contain anything.
  const auto state = line.find_first_not_of(") ", line.rfind(')'));
  if (state == line.npos) return ProcessState::runs;
  if (line[state] == 'T' || line[state] == 't') return ProcessState::stopped;
  return line[state] == 'Z' || line[state] == 'X' ? ProcessState::ended : ProcessState::runs;
}

}  // namespace tutti
