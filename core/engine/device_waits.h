#pragma once

#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "tutti/core/scheduling/entry.h"

namespace tutti {

/// Keeps what the program waits for on its devices: which streams wait for which Works, and for
/// which names it has waited on the host. The lock of the hand-over guards it.
class DeviceWaits {
 public:
  /// From now on everything that is put on `stream` comes after `work`. False: that Work is done.
  bool add(const std::shared_ptr<WorkState>& work, StreamRef stream);
  /// Adds the Works that the stream of the entry's input waits for to what the entry is behind.
  void find(Entry& entry) const;
  /// The program has waited on the host for an operation of this name.
  void waited_on_host(const std::string& name);
  /// Whether it has, as far as is known.
  bool has_waited_on_host(const std::string& name) const { return on_host_.contains(name); }

 private:
  struct StreamWait {
    StreamRef stream;
    std::weak_ptr<WorkState> work;
  };
  std::vector<StreamWait> streams_;  // of Works that are not done
  std::unordered_set<std::string> on_host_;
};

}  // namespace tutti
