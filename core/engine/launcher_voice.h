#pragma once

#include <functional>
#include <memory>
#include <string>

#include "tutti/core/settings/options.h"

namespace tutti {

/// Announces to the launcher, through the job's store, that this rank ends because of an error of
/// its own. tutti-run can then tell it from ranks that end because this one left, whichever process
/// ends first. A thread of its own sends the announcement, because a store may not answer.
class LauncherVoice {
 public:
  /// `on_told` is called once the announcement was made or has failed. It may run on any thread,
  /// but never after the destructor.
  LauncherVoice(const Options& options, std::function<void()> on_told);
  ~LauncherVoice();
  LauncherVoice(const LauncherVoice&) = delete;

  /// Called when another rank's end has failed an operation in this process. A later failure, in
  /// another communicator too, may be its consequence, so this process announces nothing any more.
  static void fall_silent();
  /// Starts the announcement. Returns false if no launcher listens, if another communicator of this
  /// process has announced, after fall_silent(), or if the system gives no thread.
  bool tell();
  bool has_told() const;

 private:
  struct State;
  const Options& options_;
  const std::shared_ptr<State> state_;
};

}  // namespace tutti
