#pragma once

#include <functional>
#include <memory>
#include <string>

#include "tutti/core/settings/options.h"

namespace tutti {

/// Announces to the launcher, through the job's store, that this rank ends because of its own
/// error. Other ranks may end because this one left. Because of the announcement, tutti-run knows
/// which rank failed first, whichever process ends first. A separate thread sends the announcement,
/// because a store may not answer.
class LauncherVoice {
 public:
  /// `on_told` is called once the announcement has succeeded or failed. It may run on any thread,
  /// but never after the destructor.
  LauncherVoice(const Options& options, std::function<void()> on_told);
  ~LauncherVoice();
  LauncherVoice(const LauncherVoice&) = delete;

  /// Called when the end of another rank has failed an operation in this process. Later failures,
  /// also in another communicator, may be consequences. So this process makes no announcement from
  /// now on.
  static void fall_silent();
  /// Starts the announcement. Returns false if no announcement will be made. The reasons are that
  /// there is no launcher, that another communicator of this process has already made one, that
  /// fall_silent() was called, or that the system cannot make a thread.
  bool tell();
  bool has_told() const;

 private:
  struct State;
  const Options& options_;
  const std::shared_ptr<State> state_;
};

}  // namespace tutti
