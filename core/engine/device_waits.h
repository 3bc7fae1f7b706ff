#pragma once

#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "tutti/core/scheduling/entry.h"

namespace tutti {

/// Records which streams wait for which Works. Also records the names of operations for which the
/// program has waited on the host. The lock of the hand-over guards it.
class DeviceWaits {
 public:
  /// Records that all later work on `stream` runs after `work`. Returns false if `work` is already
  /// done.
  bool add(const std::shared_ptr<WorkState>& work, StreamRef stream);
  /// Adds to `entry.behind` the Works for which the stream of the entry's input waits.
  void find(Entry& entry) const;
  /// Records that the program has waited on the host for an operation of this name.
  void waited_on_host(const std::string& name);
  /// Returns whether the program has waited on the host for an operation of this name. Names may be
  /// forgotten if there are too many.
  bool has_waited_on_host(const std::string& name) const { return on_host_.contains(name); }

 private:
  struct StreamWait {
    StreamRef stream;
    std::weak_ptr<WorkState> work;
  };
  std::vector<StreamWait> streams_;  // streams that wait for unfinished Works
  std::unordered_set<std::string> on_host_;
};

}  // namespace tutti
