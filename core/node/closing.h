#pragma once

#include <chrono>

#include "tutti/base/deadline.h"
#include "tutti/core/agreement/farewell.h"

namespace tutti {

/// The progress of this rank in closing its communicator, in Phase::closing.
///
///   telling --the launcher knows, or 1 s--> gathering --all timelines are here, or until--> over
struct Closing {
  enum class Stage : uint8_t {
    telling,  // waits until the launcher has this rank's error, before the peers may end because of
              // it
    gathering  // the farewell is sent; rank 0 waits for the other ranks' timelines
  };
  /// Closing waits for at most this long for a store that does not answer.
  static constexpr Clock::duration kLongestTelling = std::chrono::seconds(1);

  Stage stage = Stage::telling;
  Farewell farewell;        // what this rank has finished
  Clock::time_point until;  // end of this stage
};

}  // namespace tutti
