#pragma once

#include <optional>
#include <string>

#include "tutti/backends/store.h"

namespace tutti {

/// What a launcher saw of a rank's end, as it writes it into the Store under death_key(world rank):
/// words of the form name=value, separated by blanks: "rank=3 pid=4711 signal=9 host=b" or
/// "rank=3 pid=4711 code=1 host=b".
struct Death {
  int rank = -1;
  int pid = 0;
  int signal = 0;  // 0: it exited
  int code = 0;
  std::string host;
};

std::string death_key(int world_rank);
std::string encode_death(const Death& death);
/// Nothing for text that is no such record.
std::optional<Death> decode_death(const std::string& text);

/// "was killed by signal 9 (Killed)", "exited with code 1".
std::string describe_death(const Death& death);

/// What the system shows of a process of this host: it runs, it stands still (SIGSTOP, a debugger),
/// or it has ended.
enum class ProcessState { runs, stopped, ended };
ProcessState process_state(int pid);

}  // namespace tutti
