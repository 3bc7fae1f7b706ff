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

/// Events of one rank in Chrome's trace format. Off unless started; recording is a few tens of
/// nanoseconds and bounded: past a million events the rest is counted and dropped. Any thread.
///
/// Spans of one row that overlap get rows of their own below it ("negotiated", "negotiated 2"), for
/// the format knows only spans that follow each other or lie within each other.
class Timeline : public std::enable_shared_from_this<Timeline> {
 public:
  /// Without a clock of its own it knows no times but those that it is given.
  explicit Timeline(int rank, bool has_clock = true) : rank_(rank), has_clock_(has_clock) {}
  bool on() const { return on_; }
  /// The time of what happens now, in a step that began at `step`: exact while it records, so that
  /// what one step begins keeps its order; else `step`.
  Clock::time_point exact(Clock::time_point step) const {
    return on_ && has_clock_ ? Clock::now() : step;
  }
  void start();
  /// Ends recording and hands out the events, as write_timeline() takes them.
  std::string stop();

  /// A span on a named row of this rank. It is empty if it would end before it begins, because the
  /// caller knows the time of its step alone.
  void span(std::string_view row, std::string_view name, Clock::time_point begin,
            Clock::time_point end, std::string_view detail = {});
  /// A span of a program's own, which may lie within another one of its row.
  void nested_span(std::string_view row, std::string_view name, Clock::time_point begin,
                   Clock::time_point end);
  void instant(std::string_view row, std::string_view name, Clock::time_point when);
  /// For a launch on a device: its parts become spans of that name on rows "device: pack" and so
  /// on, also after this is gone. Null while it is off.
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

/// Writes a whole trace of the ranks' events, whose times count from the first of them; throws
/// Error(io) that names the file.
void write_timeline(const std::string& file, const std::vector<std::string>& ranks);

}  // namespace tutti
