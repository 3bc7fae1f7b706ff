#pragma once

#include <functional>
#include <memory>
#include <string>

#include "tutti/core/settings/options.h"

namespace tutti {

/// Tells the launcher, through the job's store, that this rank ends because of an error of its own,
/// so that tutti-run knows it from the ranks that end because it left, whichever process is faster.
/// A thread of its own does so, because a store may stand still.
class LauncherVoice {
 public:
  /// `on_told` is called when it has told, or could not; any thread; never after the destructor.
  LauncherVoice(const Options& options, std::function<void()> on_told);
  ~LauncherVoice();
  LauncherVoice(const LauncherVoice&) = delete;

  /// Another rank's end has failed an operation in this process: what fails later, in another
  /// communicator too, may come of that one, so nothing is told any more.
  static void fall_silent();
  /// False: no launcher listens, another communicator of this process has told, or it fell silent.
  bool tell();
  bool has_told() const;

 private:
  struct State;
  const Options& options_;
  const std::shared_ptr<State> state_;
};

}  // namespace tutti
