#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/collectives/executor.h"

namespace tutti {

/// Records events of one rank in Chrome's trace format. It is off until started. Recording an event
/// takes a few tens of nanoseconds. After a million events, further events are only counted. Any
/// thread may use it.
///
/// Overlapping spans of one row are drawn on extra rows below it ("negotiated", "negotiated 2"),
/// because the format allows only spans that follow each other or nest.
class Timeline : public std::enable_shared_from_this<Timeline> {
 public:
  /// If `has_clock` is false, the timeline never reads a clock and uses only the times passed in.
  explicit Timeline(int rank, bool has_clock = true) : rank_(rank), has_clock_(has_clock) {}
  bool on() const { return on_; }
  /// Returns the time to record for an event of a step that began at `step`. While the timeline
  /// records, it is the current time, so that the events of one step keep their order. Otherwise it
  /// is `step`.
  Clock::time_point exact(Clock::time_point step) const {
    return on_ && has_clock_ ? Clock::now() : step;
  }
  void start();
  /// Ends recording and returns the events in the form that write_timeline() expects.
  std::string stop();

  /// Records a span on a named row of this rank. A span whose end is before its beginning becomes
  /// empty. Such spans occur because a caller may know only the time of its step.
  void span(std::string_view row, std::string_view name, Clock::time_point begin,
            Clock::time_point end, std::string_view detail = {});
  /// Records a span of the program's own. It may nest in another span of its row.
  void nested_span(std::string_view row, std::string_view name, Clock::time_point begin,
                   Clock::time_point end);
  void instant(std::string_view row, std::string_view name, Clock::time_point when);
  /// Returns a recorder for a launch on a device. The parts of the launch become spans called
  /// `name` on the rows "device: pack" and so on. The recorder may outlive this object. Returns
  /// null while the timeline is off.
  std::shared_ptr<const DeviceSpans> device_spans(std::string name);

 private:
  struct Event {
    std::string row, name, detail;
    Clock::time_point begin, end;
    bool may_nest;
  };
  void record(Event event);

  const int rank_;
  const bool has_clock_;
  std::atomic<bool> on_{false};
  std::mutex mutex_;
  std::vector<Event> events_;
  uint64_t dropped_ = 0;
};

/// Writes the events of all ranks into one trace file. Times are relative to the first event.
/// Throws Error(io) that names the file.
void write_timeline(const std::string& file, const std::vector<std::string>& ranks);

}  // namespace tutti
