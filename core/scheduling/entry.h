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

/// A tensor of a device on its way through host memory, as the engine sees it; see staging.h.
class Staged {
 public:
  virtual ~Staged() = default;
  /// Whether the input's elements before `end` are in host memory. The device's host function that
  /// tells of more of them wakes the engine.
  virtual bool arrived(int64_t end) const = 0;
  /// An allreduce's elements [begin, begin + count) are final.
  virtual void finished(int64_t begin, int64_t count) noexcept = 0;
};

/// A point of a stream: what the stream was given before has happened there.
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

/// One named operation of this rank, from submission to completion, and again when the name comes
/// again. Owned by the engine; while pending touched only by the holder of its token.
struct Entry {
  Request request;
  TensorView input;
  TensorView output;                   // equal to input if in place
  bool library_output = false;         // the engine makes the output when its size is known
  Tensor made;                         // that output
  std::unique_ptr<StreamPoint> ready;  // of memory that stays on its device: when it may be used
  // What the input's stream waits for: not handed to the scheduler before these are done.
  std::vector<std::weak_ptr<WorkState>> behind;
  Staged* staged = nullptr;  // of a device's that goes through host memory; the work keeps it
  std::shared_ptr<WorkState> work;
  std::shared_ptr<WorkState> last_work;  // of the use of the name before this one
  size_t output_index = 0;               // of the work's outputs
  int64_t divide_output_by = 1;          // sparse average: the made output is divided at the end
  Clock::time_point submitted;
  uint64_t order = 0;  // grows with each submission on this rank, also where the time stands still

  // The engine's table (entry_table.h); guarded by its mutex for submissions.
  bool pending = false;
  bool reuses_work = false;             // the Work is kept for the next use of the name
  bool shared = false;                  // the memory lies in a Region that the peers reach
  const FusedUpdate* update = nullptr;  // what becomes of the result

  // The plan that the name was looked up in, and what was found. 0: none yet.
  uint32_t plan_id = 0;
  int64_t plan_index = -1;
  bool fits_plan = false;
  bool held_by_plan = false;
  bool waits_in_plan = false;  // its last slice is not launched
  Entry* older = nullptr;      // the entries that the plan holds, in order of submission
  Entry* newer = nullptr;

  int64_t sent_id = -1;  // the number by which it was asked for; -1: in full
  /// The device of its memory. A scatter has no input outside its root, so its output tells.
  Device device() const { return (input.data() != nullptr ? input : output).device(); }

  int64_t left = 0;       // allreduce: elements of answered slices that are not final yet
  int64_t final_end = 0;  // allreduce: end of the last final slice, for the restart
};

}  // namespace tutti
