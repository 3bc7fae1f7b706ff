#pragma once

namespace tutti {

/// The state of a process of this host as the system reports it: it runs, it is stopped (SIGSTOP, a
/// debugger), or it has ended.
enum class ProcessState { runs, stopped, ended };
ProcessState process_state(int pid);

}  // namespace tutti
