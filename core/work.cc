#include "tutti/core/work.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tutti/core/scheduling/work_state.h"
#include "tutti/tensor/device_runtime.h"

namespace tutti {

namespace {
// A waiting thread checks its device for the first time after kFirstLook seconds. The intervals
// between checks then grow to kMostBetweenLooks seconds. The first interval is short, because a
// destructor may wait for hundreds of operations of a failed device.
constexpr double kFirstLook = 0.01, kMostBetweenLooks = 1;
}  // namespace

WorkState::WorkState(std::shared_ptr<Driver> driver, std::string name, int parts)
    : driver_(std::move(driver)), name_(std::move(name)), parts_(parts), completion_(parts) {}

WorkState::~WorkState() {
  if ((gate_ == nullptr && completion_.unseen_error() == nullptr) || driver_->forked()) return;
  if (gate_ != nullptr) runtime_->give_back_word(gate_);
  report_unseen();
}

void WorkState::report_unseen() {
  if (const auto* error = completion_.unseen_error())
    driver_->report(
        fmt::format("\"{}\" failed and nobody waited for it: {}", name_, error->what()));
}

bool WorkState::finish_part(std::optional<Error> error,
                            std::vector<WorkCallback>& callbacks) noexcept {
  return completion_.finish_part(std::move(error), callbacks, [this] {
    if (gate_ != nullptr) std::atomic_ref(*gate_).store(1, std::memory_order_release);
  });
}

void WorkState::reuse(int parts) {
  report_unseen();
  completion_.reuse(parts);
  is_on_its_way_.store(false, std::memory_order_relaxed);
  outputs_.clear();
  received_.clear();
  source_.store(-1, std::memory_order_relaxed);
}

void WorkState::set_output(size_t index, Tensor output) {
  const std::lock_guard lock(completion_.mutex());
  if (outputs_.size() <= index) outputs_.resize(index + 1);
  outputs_[index] = std::move(output);
}

void WorkState::set_received(std::vector<int64_t> received) {
  const std::lock_guard lock(completion_.mutex());
  received_ = std::move(received);
}

void WorkState::throw_if_failed() {
  if (const auto& error = completion_.see_error()) throw Error(*error);
}

namespace {
thread_local bool has_waited = false;
}  // namespace

bool WorkState::take_waited() { return std::exchange(has_waited, false); }

// A failed device makes no callbacks, so a thread that waits for a device checks it from time to
// time.
void WorkState::drive(Milestone milestone, Deadline deadline) {
  if (runtime_ == nullptr) return driver_->drive(*this, milestone, deadline);
  for (double seconds = kFirstLook; !has_come_to(milestone) && !deadline.passed();
       seconds = std::min(2 * seconds, kMostBetweenLooks)) {
    const auto next = Deadline::after(seconds);
    driver_->drive(*this, milestone, next.when() < deadline.when() ? next : deadline);
    if (has_come_to(milestone)) return;
    try {
      runtime_->require_alive(device_);
    } catch (const Error& error) {
      throw Error(error.code(),
                  fmt::format("\"{}\" waits for a device that has failed: {}", name_, error.what()))
          .with_tensor(name_);
    }
  }
}

void WorkState::wait(Deadline deadline) {
  if (!done()) {
    if (driver_->in_callback())
      throw Error(ErrorCode::callback,
                  fmt::format("waiting for \"{}\" inside a callback would wait for itself; use "
                              "then() to go on when it is done",
                              name_))
          .with_tensor(name_);
    drive(Milestone::done, deadline);
  }
  if (!done())
    throw Error(
        ErrorCode::timeout,
        fmt::format("\"{}\" was not done when the deadline of wait() passed; the operation "
                    "continues. Wait again; the stall report names the ranks that are missing",
                    name_))
        .with_tensor(name_);
  if (runtime_ != nullptr) driver_->was_on_device(name_);
  has_waited = true;
  throw_if_failed();
}

// The callback may drop the last handle, so this function does not touch the object after calling
// it.
void WorkState::then(WorkCallback callback) {
  driver_->check_not_forked(name_);
  if (!completion_.then(callback)) callback(completion_.exception());
}

// The stream holds the state, because the gate (the memory on which the stream waits) must live
// until the stream has passed it.
//
// In CUDA, a kernel's first launch waits until no stream of the process is busy. It holds a lock
// that every other launch needs. Pinning memory, as NCCL does to connect ranks, waits in a similar
// way. Suppose that this operation, or later work on the stream, launches a kernel for the first
// time or pins memory while the stream waits. Then neither the operation nor the stream can go on.
// So for the first operation of a name the host waits too. If the operation fails, the next wait()
// throws its error.
//
// Streams of one process share the device's hardware queues (8 in CUDA). A waiting stream blocks
// everything that other streams have put behind it in its queue. If ranks are threads that share a
// device, this may block what another rank needs to reach this very operation. So in that case the
// host waits until the write that opens the gate is on a stream. Then every stream waits only for
// earlier work, and two streams that share a queue cannot wait for each other.
void WorkState::wait_on(const std::shared_ptr<WorkState>& state, StreamRef stream) {
  auto& driver = *state->driver_;
  driver.check_not_forked(state->name_);
  if (state->runtime_ == nullptr) {
    state->wait(Deadline::never());
    return;
  }
  if (!driver.in_callback()) {
    if (driver.is_first_on_device(state->name_)) {
      state->drive(Milestone::done, Deadline::never());
      driver.was_on_device(state->name_);
    } else if (driver.ranks_share_device(*state->runtime_)) {
      state->drive(Milestone::on_its_way, Deadline::never());
    }
  }
  driver.stream_waits(state, stream);
  state->runtime_->wait_word(stream, state->gate_, 1);
  state->runtime_->host_function(stream, [state] {});
}

Tensor WorkState::output(size_t index) {
  driver_->check_not_forked(name_);
  const std::lock_guard lock(completion_.mutex());
  if (index >= outputs_.size())
    throw Error(ErrorCode::invalid_argument,
                fmt::format("\"{}\" has {} outputs, so none has the number {}; allreduce and "
                            "broadcast write into the caller's tensor",
                            name_, outputs_.size(), index))
        .with_tensor(name_);
  return outputs_[index];
}

std::vector<int64_t> WorkState::received() {
  driver_->check_not_forked(name_);
  const std::lock_guard lock(completion_.mutex());
  return received_;
}

namespace {

WorkState& checked(const std::shared_ptr<WorkState>& state) {
  if (!state)
    throw Error(ErrorCode::invalid_argument,
                "this Work is empty: it was made by Work() and not by a Communicator");
  return *state;
}

}  // namespace

bool Work::done() const { return checked(state_).done(); }

void Work::wait() { checked(state_).wait(Deadline::never()); }

void Work::wait(Deadline deadline) { checked(state_).wait(deadline); }

void Work::wait_on(StreamRef stream) {
  checked(state_);
  WorkState::wait_on(state_, stream);
}

void Work::then(std::function<void(std::exception_ptr)> callback) {
  checked(state_).then(std::move(callback));
}

Tensor Work::output(size_t index) {
  wait();
  return state_->output(index);
}

std::vector<int64_t> Work::received_counts() {
  wait();
  return state_->received();
}

int Work::source() {
  wait();
  return state_->source();
}

}  // namespace tutti
