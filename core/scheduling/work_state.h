#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/core/scheduling/completion.h"
#include "tutti/tensor/device_runtime.h"
#include "tutti/tensor/tensor.h"

namespace tutti {

/// A stage in the progress of a Work, for which a thread can wait.
enum class Milestone : uint8_t {
  on_its_way,  // the write that opens its gate is on a stream, or the Work is done
  done
};

/// Runs operations so that Works make progress. The engine implements it.
class Driver {
 public:
  virtual ~Driver() = default;
  /// Returns once `work` has reached the milestone or the deadline has passed.
  virtual void drive(class WorkState& work, Milestone milestone, Deadline deadline) = 0;
  /// Logs the error of a Work whose result no thread has read.
  virtual void report(const std::string& line) = 0;
  /// Returns true in a fork of the process that made this driver.
  virtual bool forked() const = 0;
  /// Throws Error(closed) in a fork. The message says that `what` is refused.
  virtual void check_not_forked(std::string_view what) const = 0;
  /// Returns true in the thread that runs the callbacks of this driver.
  virtual bool in_callback() const = 0;
  /// Records that everything put on `stream` from now on comes after `work`.
  virtual void stream_waits(const std::shared_ptr<class WorkState>& work, StreamRef stream) = 0;
  /// Returns whether the program has never waited for a device operation of this name, as far as is
  /// known.
  virtual bool is_first_on_device(const std::string& name) const = 0;
  /// Records that the program has waited on the host for a device operation of this name.
  virtual void was_on_device(const std::string& name) = 0;
  /// Returns whether ranks that are threads of this process share devices of this kind.
  virtual bool ranks_share_device(DeviceRuntime& runtime) const = 0;
};

/// The state to which a Work points. Its parts (the tensors of a group) finish one by one. The Work
/// is done when the last part is finished.
class WorkState {
 public:
  WorkState(std::shared_ptr<Driver> driver, std::string name, int parts);
  /// Logs an error that no thread has seen.
  ~WorkState();

  bool done() const { return completion_.done(); }
  bool has_come_to(Milestone milestone) const {
    return done() ||
           (milestone == Milestone::on_its_way && is_on_its_way_.load(std::memory_order_acquire));
  }
  const std::string& name() const { return name_; }
  Driver& driver() { return *driver_; }

  // --- called by the engine ---
  /// Finishes one part. Only the first error is kept. Returns true for the last part. In that case
  /// `callbacks` has the callbacks that must run.
  bool finish_part(std::optional<Error> error, std::vector<WorkCallback>& callbacks) noexcept;
  /// Makes the Work pending again, with `parts` parts. The caller must have the only handle. Logs
  /// an error that no thread has seen.
  void reuse(int parts);
  void set_output(size_t index, Tensor output);
  void set_received(std::vector<int64_t> received);
  void set_source(int rank) { source_.store(rank, std::memory_order_relaxed); }
  /// Makes a gate, so that streams of this runtime can wait for the Work. `device` holds its
  /// tensors. Called before the user gets the Work.
  void gate_streams(DeviceRuntime& runtime, Device device) {
    runtime_ = &runtime;
    device_ = device;
    gate_ = runtime.take_word();
  }
  bool gates_streams() const { return runtime_ != nullptr; }
  /// Returns the gate (memory for which streams wait), or null if the Work has several parts. The
  /// backend that runs the only part may open the gate (set it to 1) in stream order.
  uint64_t* only_gate() const { return parts_ == 1 ? gate_ : nullptr; }
  /// Sets whether the write that opens the gate is on a stream.
  void set_on_its_way(bool is_so) { is_on_its_way_.store(is_so, std::memory_order_release); }
  /// Opens the gate in the order of `stream`, so that the streams which wait for it go on.
  void open_gate(StreamRef stream) { runtime_->write_word(stream, gate_, 1); }
  std::exception_ptr exception() const { return completion_.exception(); }

  // --- called for the program, by Work ---
  void wait(Deadline deadline);
  /// Returns whether this thread has waited for a Work since its last call of take_waited().
  static bool take_waited();
  void then(WorkCallback callback);
  static void wait_on(const std::shared_ptr<WorkState>& state, StreamRef stream);
  Tensor output(size_t index);
  std::vector<int64_t> received();
  int source() const { return source_.load(std::memory_order_relaxed); }

  /// The number of threads and streams that wait for the Work, and the time at which the first of
  /// them began (valid while waiters > 0). PlanFollower takes a waiter as evidence that the step
  /// may be stuck.
  std::atomic<int> waiters{0};
  std::atomic<Clock::time_point::rep> waiting_since{0};

 private:
  void drive(Milestone milestone, Deadline deadline);
  void throw_if_failed();
  void report_unseen();

  const std::shared_ptr<Driver> driver_;
  const std::string name_;
  const int parts_;  // number of parts at construction
  Completion completion_;
  std::atomic<bool> is_on_its_way_{false};
  std::atomic<int> source_{-1};       // the rank whose data a receive got
  DeviceRuntime* runtime_ = nullptr;  // null: host memory; fixed after the user has the Work
  Device device_;                     // the device of its tensors; fixed like runtime_
  uint64_t* gate_ = nullptr;          // becomes 1 when streams may go on
  std::vector<Tensor> outputs_;       // guarded, like received_, by the completion's mutex
  std::vector<int64_t> received_;
};

}  // namespace tutti
