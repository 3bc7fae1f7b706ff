#include "tutti/core/watch/death.h"

#include <fmt/format.h>
#include <signal.h>
#include <string.h>

#include <cerrno>
#include <fstream>

#include "tutti/base/text.h"

namespace tutti {

std::string death_key(int world_rank) { return fmt::format("death/{}", world_rank); }

std::string encode_death(const Death& death) {
  const auto how = death.signal != 0 ? fmt::format("signal={}", death.signal)
                                     : fmt::format("code={}", death.code);
  return fmt::format("rank={} pid={} {} host={}", death.rank, death.pid, how, death.host);
}

std::optional<Death> decode_death(const std::string& text) {
  Death death;
  for (const auto& word : split_text(text, ' ')) {
    const auto equals = word.find('=');
    if (equals == word.npos) return {};
    const auto name = word.substr(0, equals);
    const auto value = word.substr(equals + 1);
    if (name == "host") {
      death.host = value;
      continue;
    }
    const auto number = parse_integer(value, 0, 1 << 30);
    if (!number) return {};
    const int n = static_cast<int>(*number);
    if (name == "rank") death.rank = n;
    if (name == "pid") death.pid = n;
    if (name == "signal") death.signal = n;
    if (name == "code") death.code = n;
  }
  if (death.rank < 0) return {};
  return death;
}

std::string describe_death(const Death& death) {
  return death.signal != 0
             ? fmt::format("was killed by signal {} ({})", death.signal, ::strsignal(death.signal))
             : fmt::format("exited with code {}", death.code);
}

ProcessState process_state(int pid) {
  if (::kill(pid, 0) != 0 && errno == ESRCH) return ProcessState::ended;
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  std::getline(file, line);
  // The state is the letter after the name, which may hold anything and stands in parentheses.
  const auto state = line.find_first_not_of(") ", line.rfind(')'));
  if (state == line.npos) return ProcessState::runs;
  if (line[state] == 'T' || line[state] == 't') return ProcessState::stopped;
  return line[state] == 'Z' || line[state] == 'X' ? ProcessState::ended : ProcessState::runs;
}

}  // namespace tutti
