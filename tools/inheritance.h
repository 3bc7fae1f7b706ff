#pragma once

namespace tutti::run {

/// Sets the things that a process inherits and that programs take for granted: no signal is ignored
/// or blocked, the standard streams are open, the process may use the files it makes, and it may
/// open many. Each tool's main() calls it first, while the process has one thread, whatever started
/// the tool. SIGHUP alone stays ignored if nohup left it so.
void settle_inheritance();

/// Returns whether SIGHUP was ignored when the tool started, and therefore still is.
bool ignores_hangup();

/// Called in a child between fork and exec. A rank gets the umask, the limit of descriptors and the
/// ignored SIGHUP that the tool got; all other signals are as a shell sets them.
void hand_on_inheritance();

}  // namespace tutti::run
