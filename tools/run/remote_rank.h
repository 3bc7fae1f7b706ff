#pragma once

namespace tutti::run {

/// Runs `tutti-run --remote-rank`, which the launcher starts on another host through ssh. It starts
/// one rank as standard input describes, sends the rank's output back, passes signals on to it, and
/// kills it when the input ends. Returns the exit code.
int serve_remote_rank();

}  // namespace tutti::run
