#pragma once

#include <memory>
#include <string_view>
#include <utility>

#include "tutti/collectives/executor.h"
#include "tutti/tensor/device_runtime.h"

namespace tutti {

/// Measures a part of an operation on a stream, from construction to end(), and reports it to
/// `spans`. If `spans` is null, nothing is put on the stream. `part` must be a string literal.
class DeviceSpan {
 public:
  DeviceSpan(DeviceRuntime& runtime, StreamRef stream, std::shared_ptr<const DeviceSpans> spans,
             std::string_view part)
      : runtime_(runtime), stream_(stream), spans_(std::move(spans)), part_(part) {
    if (!spans_) return;
    begin_ = std::make_shared<Clock::time_point>();
    runtime.host_function(stream, [begin = begin_] { *begin = Clock::now(); });
  }
  void end() {
    if (!spans_) return;
    runtime_.host_function(stream_, [spans = std::move(spans_), begin = std::move(begin_),
                                     part = part_] { (*spans)(part, *begin, Clock::now()); });
  }

 private:
  DeviceRuntime& runtime_;
  const StreamRef stream_;
  std::shared_ptr<const DeviceSpans> spans_;
  const std::string_view part_;
  std::shared_ptr<Clock::time_point> begin_;
};

}  // namespace tutti
