#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "tutti/core/scheduling/work_state.h"

namespace tutti::test {

/// The driver of Works that a test completes itself.
class IdleDriver : public Driver {
 public:
  void drive(WorkState&, Milestone, Deadline) override {}
  void report(const std::string&) override {}
  bool forked() const override { return false; }
  void check_not_forked(std::string_view) const override {}
  bool in_callback() const override { return false; }
  void stream_waits(const std::shared_ptr<WorkState>&, StreamRef) override {}
  bool is_first_on_device(const std::string&) const override { return false; }
  void was_on_device(const std::string&) override {}
  bool ranks_share_device(DeviceRuntime&) const override { return false; }
};

}  // namespace tutti::test
