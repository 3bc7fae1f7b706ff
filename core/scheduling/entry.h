#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/collectives/executor.h"
#include "tutti/core/agreement/request.h"
#include "tutti/core/scheduling/work_state.h"
#include "tutti/tensor/tensor.h"

namespace tutti {

/// A device tensor that goes through host memory, as the engine sees it; see staging.h.
class Staged {
 public:
  virtual ~Staged() = default;
  /// Returns whether the input's elements before `end` are in host memory. The device's host
  /// function that announces more of them wakes the engine.
  virtual bool arrived(int64_t end) const = 0;
  /// Called when an allreduce's elements [begin, begin + count) are final.
  virtual void finished(int64_t begin, int64_t count) noexcept = 0;
};

/// A point in a stream. It is reached when all work that the stream was given before is done.
class StreamPoint {
 public:
  StreamPoint(DeviceRuntime& runtime, Device device, StreamRef stream)
      : runtime_(runtime), event_(runtime.create_event(device)) {
    runtime.record(event_, stream);
  }
  ~StreamPoint() { runtime_.destroy_event(event_); }
  StreamPoint(const StreamPoint&) = delete;
  StreamPoint& operator=(const StreamPoint&) = delete;
  void* event() const { return event_; }

 private:
  DeviceRuntime& runtime_;
  void* const event_;
};

/// One named operation of this rank, from submission to completion. It is used again when the name
/// comes again. The engine owns it; while it is pending, only the holder of the token touches it.
struct Entry {
  Request request;
  TensorView input;
  TensorView output;                   // equal to input if in place
  bool library_output = false;         // the engine makes the output when its size is known
  Tensor made;                         // that output
  std::unique_ptr<StreamPoint> ready;  // device memory may be used from this point on
  // Works that the input's stream waits for. The scheduler does not get the entry before these are
  // done.
  std::vector<std::weak_ptr<WorkState>> behind;
  Staged* staged = nullptr;  // if device memory goes through host memory; the Work keeps it
  std::shared_ptr<WorkState> work;
  std::shared_ptr<WorkState> last_work;  // of the previous use of the name
  size_t output_index = 0;               // index in the Work's outputs
  int64_t divide_output_by = 1;          // sparse average: the made output is divided at the end
  Clock::time_point submitted;
  // Grows with each submission on this rank, even if `submitted` stays the same.
  uint64_t order = 0;

  // Belongs to the engine's table (entry_table.h). Submissions change it under the lock of the
  // hand-over.
  bool pending = false;
  bool reuses_work = false;             // the Work is kept for the next use of the name
  bool shared = false;                  // the memory lies in a Region that the peers reach
  const FusedUpdate* update = nullptr;  // applied to the result

  // The plan in which the name was looked up, and the result. 0: not looked up yet.
  uint32_t plan_id = 0;
  int64_t plan_index = -1;
  bool fits_plan = false;
  bool held_by_plan = false;
  bool waits_in_plan = false;  // its last slice is not launched yet
  Entry* older = nullptr;      // neighbours in the plan's list of entries, by submission
  Entry* newer = nullptr;

  int64_t sent_id = -1;  // number by which rank 0 was asked for it; -1: in full
  /// Returns the device of its memory. A scatter has no input outside its root, so there it is the
  /// output's device.
  Device device() const { return (input.data() != nullptr ? input : output).device(); }

  int64_t left = 0;       // allreduce: elements of answered slices that are not final yet
  int64_t final_end = 0;  // allreduce: end of the last final slice, where a new request begins
};

}  // namespace tutti
