#pragma once

namespace tutti::run {

/// `tutti-run --remote-rank`, which the launcher starts on another host through ssh: starts one
/// rank as standard input says, passes its output back and signals on, and ends it when the input
/// ends. Returns the exit code.
int serve_remote_rank();

}  // namespace tutti::run
