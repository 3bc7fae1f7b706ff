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

/// How far a Work is to come.
enum class Milestone : uint8_t {
  on_its_way,  // what opens its gate is on a stream, or it is done
  done
};

/// What makes Works progress, as they see it: the engine.
class Driver {
 public:
  virtual ~Driver() = default;
  /// Returns once `work` has come to the milestone or the deadline passed.
  virtual void drive(class WorkState& work, Milestone milestone, Deadline deadline) = 0;
  /// The error of a Work that no thread of the program has asked for.
  virtual void report(const std::string& line) = 0;
  /// True in a fork of the process whose driver this is.
  virtual bool forked() const = 0;
  /// In such a fork: throws Error(closed) that names `what` as refused.
  virtual void check_not_forked(std::string_view what) const = 0;
  /// True in the thread that runs the callbacks of this driver.
  virtual bool in_callback() const = 0;
  /// What is put on `stream` from now on comes after `work`.
  virtual void stream_waits(const std::shared_ptr<class WorkState>& work, StreamRef stream) = 0;
  /// Whether an operation of this name is the first one on a device that the program waits for,
  /// as far as is known.
  virtual bool is_first_on_device(const std::string& name) const = 0;
  /// The program has waited on the host for an operation of this name on a device.
  virtual void was_on_device(const std::string& name) = 0;
  /// Whether ranks that are threads of this process have streams on one device of this kind.
  virtual bool ranks_share_device(DeviceRuntime& runtime) const = 0;
};

/// What a Work points to. Parts (the tensors of a group) finish one by one; the last one ends it.
class WorkState {
 public:
  WorkState(std::shared_ptr<Driver> driver, std::string name, int parts);
  /// Reports an error that no thread saw.
  ~WorkState();

  bool done() const { return completion_.done(); }
  bool has_come_to(Milestone milestone) const {
    return done() ||
           (milestone == Milestone::on_its_way && is_on_its_way_.load(std::memory_order_acquire));
  }
  const std::string& name() const { return name_; }
  Driver& driver() { return *driver_; }

  // --- called by the engine ---
  /// One part is over. True if it was the last one: the callbacks are handed over then. A second
  /// error is dropped.
  bool finish_part(std::optional<Error> error, std::vector<WorkCallback>& callbacks) noexcept;
  /// Begins anew, for `parts` parts; the caller has the only handle. Reports an error that no
  /// thread saw.
  void reuse(int parts);
  void set_output(size_t index, Tensor output);
  void set_received(std::vector<int64_t> received);
  void set_source(int rank) { source_.store(rank, std::memory_order_relaxed); }
  /// Streams of this runtime can wait for it, and its tensors live on that device; before it is
  /// handed out.
  void gate_streams(DeviceRuntime& runtime, Device device) {
    runtime_ = &runtime;
    device_ = device;
    gate_ = runtime.take_word();
  }
  bool gates_streams() const { return runtime_ != nullptr; }
  /// What streams wait for, if it has one part only: the backend that works on that part may open
  /// it (set it to 1) in stream order. Else null.
  uint64_t* only_gate() const { return parts_ == 1 ? gate_ : nullptr; }
  /// Whether what opens the gate is on a stream.
  void set_on_its_way(bool is_so) { is_on_its_way_.store(is_so, std::memory_order_release); }
  /// In order of `stream`: lets the streams that wait go on.
  void open_gate(StreamRef stream) { runtime_->write_word(stream, gate_, 1); }
  std::exception_ptr exception() const { return completion_.exception(); }

  // --- called for the program, by Work ---
  void wait(Deadline deadline);
  /// Whether this thread has waited for a Work since it last asked.
  static bool take_waited();
  void then(WorkCallback callback);
  static void wait_on(const std::shared_ptr<WorkState>& state, StreamRef stream);
  Tensor output(size_t index);
  std::vector<int64_t> received();
  int source() const { return source_.load(std::memory_order_relaxed); }

  /// Threads that wait for it now, and since when (only while waiters > 0): evidence that its step
  /// will not go on by itself.
  std::atomic<int> waiters{0};
  std::atomic<Clock::time_point::rep> waiting_since{0};

 private:
  void drive(Milestone milestone, Deadline deadline);
  void throw_if_failed();
  void report_unseen();

  const std::shared_ptr<Driver> driver_;
  const std::string name_;
  const int parts_;  // at first
  Completion completion_;
  std::atomic<bool> is_on_its_way_{false};
  std::atomic<int> source_{-1};       // of a receive
  DeviceRuntime* runtime_ = nullptr;  // constant once handed out; null: host memory
  Device device_;                     // likewise; on which its tensors live
  uint64_t* gate_ = nullptr;  // set to 1 when streams may go on: here, or earlier in stream order
  std::vector<Tensor> outputs_;  // this and the next: under the completion's mutex
  std::vector<int64_t> received_;
};

}  // namespace tutti
