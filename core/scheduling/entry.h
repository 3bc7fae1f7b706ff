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

/// A device tensor that is copied through host memory, in the form that the engine uses; see
/// staging.h.
class Staged {
 public:
  virtual ~Staged() = default;
  /// Returns whether all elements of the input before index `end` are in host memory. When more
  /// elements arrive, a host function on the device's stream wakes the engine.
  virtual bool arrived(int64_t end) const = 0;
  /// Called when an allreduce's elements [begin, begin + count) have their final values.
  virtual void finished(int64_t begin, int64_t count) noexcept = 0;
};

/// A point in a stream. The point is reached when all work that was put on the stream before the
/// point is done.
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

/// One named operation of this rank, from submission to completion. The next operation of the same
/// name reuses the Entry. The engine owns the Entry. While the operation is pending, only the
/// thread that runs the engine touches it.
struct Entry {
  Request request;
  TensorView input;
  TensorView output;                   // equal to input if in place
  bool library_output = false;         // the engine makes the output when its size is known
  Tensor made;                         // the output that the engine made
  std::unique_ptr<StreamPoint> ready;  // reached when the device memory may be used
  // Works for which the input's stream waits. The scheduler gets the entry only when they are done.
  std::vector<std::weak_ptr<WorkState>> behind;
  Staged* staged = nullptr;  // set if device memory goes through host memory; owned by the Work
  std::shared_ptr<WorkState> work;
  std::shared_ptr<WorkState> last_work;  // the Work of the name's previous operation
  size_t output_index = 0;               // index in the Work's outputs
  int64_t divide_output_by = 1;          // divisor for the made output (an average of sparse rows)
  Clock::time_point submitted;
  // Grows with each submission on this rank, even between submissions with the same `submitted`
  // time.
  uint64_t order = 0;

  // True while the operation is pending. The engine's table uses it (entry_table.h). Threads that
  // submit set it under the lock of the queue from them to the engine (hand_over.h).
  bool pending = false;
  bool reuses_work = false;             // the Work is kept for the next use of the name
  bool shared = false;                  // the memory is in a Region that the peers can access
  const FusedUpdate* update = nullptr;  // the update to apply to the result, or null

  // Id of the plan (recorded step) in which this name was looked up; 0: not looked up yet. The next
  // two fields have the result of the look-up.
  uint32_t plan_id = 0;
  int64_t plan_index = -1;
  bool fits_plan = false;
  bool held_by_plan = false;
  bool waits_in_plan = false;  // its last slice has not been launched yet
  Entry* older = nullptr;      // neighbours in the plan's list, which is in order of submission
  Entry* newer = nullptr;

  int64_t sent_id = -1;  // cache id that the request used; -1: the request was sent in full
  /// Returns the device of its memory. If it has no input (as in a scatter outside root), this is
  /// the output's device.
  Device device() const { return (input.data() != nullptr ? input : output).device(); }

  int64_t left = 0;       // allreduce: number of answered elements without a final value yet
  int64_t final_end = 0;  // allreduce: end of the last final slice; a new request begins here
};

}  // namespace tutti
