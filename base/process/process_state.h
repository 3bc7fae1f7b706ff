#pragma once

namespace tutti {

/// What the system shows of a process of this host: it runs, it stands still (SIGSTOP, a debugger),
/// or it has ended.
enum class ProcessState { runs, stopped, ended };
ProcessState process_state(int pid);

}  // namespace tutti
