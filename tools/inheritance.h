#pragma once

namespace tutti::run {

/// What a process inherits, and a program relies on without a thought: that no signal is ignored or
/// blocked, that standard streams are open, that it may use the files it makes, and that it may
/// open many. The first call of each tool's main(), while the process has one thread, sets all of
/// it, whatever started the tool. SIGHUP alone stays ignored, as nohup left it.
void settle_inheritance();

/// Whether SIGHUP was ignored and so stays it.
bool ignores_hangup();

/// In a child, between fork and exec: a rank gets the umask, the limit of descriptors and the
/// ignored SIGHUP that the tool got, and otherwise signals as a shell gives them.
void hand_on_inheritance();

}  // namespace tutti::run
