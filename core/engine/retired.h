#pragma once

#include <memory>
#include <vector>

#include "tutti/collectives/region.h"
#include "tutti/core/scheduling/entry.h"

namespace tutti {

/// Memory that the program has given back while operations may still use it. Only the thread that
/// runs the engine uses this object.
class Retired {
 public:
  void add(std::unique_ptr<Region> region) {
    regions_.push_back(std::move(region));
    may_have_unused_ = true;
  }
  bool empty() const { return regions_.empty(); }
  /// Returns whether the operation's input or output is in memory that was given back.
  bool holds(const Entry& entry) const;
  /// Called when an operation has ended. Some of the memory may be unused from then on.
  void an_operation_is_over() { may_have_unused_ |= !regions_.empty(); }
  bool may_have_unused() const { return may_have_unused_; }
  /// Removes and returns the regions that no pending operation uses.
  std::vector<std::unique_ptr<Region>> take_unused(const std::vector<Entry*>& pending);

 private:
  std::vector<std::unique_ptr<Region>> regions_;
  bool may_have_unused_ = false;
};

}  // namespace tutti
