// One step of the engine, and its statistics and log.

#include "tutti/core/engine/engine.h"

#include <fmt/format.h>

#include <utility>

namespace tutti {

// --- one step -----------------------------------------------------------------------------------

void Engine::fill_batch() {
  turns_.bell().silence();
  // After a step that threw, the batch still has its entries. They have already been finished.
  batch_.operations.clear();
  batch_.joins.clear();
  batch_.is_watched = watches_ > 0;
  batch_.is_told = voice_.has_told();
  if (asks_deaths_) batch_.deaths = deaths_->news();
  auto& offered = hand_over_.take();
  batch_.operations.swap(offered.operations);
  batch_.joins.swap(offered.joins);
  if (offered.closing) {
    batch_.closes = true;
    batch_.error = std::move(*offered.closing);
    offered.closing.reset();
  }
  for (auto& region : offered.retired) retiring_.add(std::move(region));
  offered.retired.clear();
}

bool Engine::step() {
  tally_.catch_up([this] { publish_statistics(); });
  // Reads the time before it takes the batch. An operation may be submitted before a thread begins
  // to wait. If the wait began before `now`, the batch therefore contains the operation.
  const auto now = Clock::now();
  fill_batch();
  const bool moved = node_->step(batch_, now);
  if (retiring_.may_have_unused()) free_retired();
  if (some_wake_) {
    some_wake_ = false;
    turns_.wake_drivers();
  }
  return moved;
}

void Engine::free_retired() {
  if (node_->blocking().is_waiting()) return;   // a blocking call may use any of the memory
  std::vector<std::unique_ptr<Region>> unused;  // destroyed after the lock is released
  const auto lock = hand_over_.lock();
  unused = retiring_.take_unused(entries_.pending());
}

void Engine::end_part(WorkState& work, std::optional<Error> error) noexcept {
  std::vector<WorkCallback> callbacks;
  if (!work.finish_part(std::move(error), callbacks)) return;
  for (auto& callback : callbacks) try {
      post([callback = std::move(callback), exception = work.exception()] { callback(exception); });
    } catch (const std::bad_alloc&) {
      // Without memory to queue a callback, the callback is destroyed and not called. The other
      // callbacks run.
    }
}

void Engine::work_ended() {
  turns_.wake_drivers();
  wake();  // the thread that runs the engine may sleep in the poller
}

void Engine::publish_statistics() {
  const auto counters = backend_->counters();
  uint64_t submitting = 0;
  {
    const auto lock = hand_over_.lock();
    submitting = entries_.allocations();
  }
  tally_.publish([&](Statistics& published) {
    const auto waits = published.wait_seconds;
    published = counting_;
    const auto calls = node_->blocking().over() + node_->blocking().pairs();
    published.operations += calls;
    published.tensors += calls;
    published.wait_seconds = waits;
    published.data_messages = counters.messages_sent;
    published.data_bytes = counters.bytes_sent;
    published.control_messages = counters.control_messages_sent;
    published.control_bytes = counters.control_bytes_sent;
    published.negotiation_messages = node_->negotiation_messages();
    published.allocations = counters.allocations + node_->scheduler().allocations() + submitting;
    published.copied_bytes = counters.copied_bytes;
    published.bytes_to_peer = counters.bytes_to_peer;
  });
}

Statistics Engine::statistics() {
  check_not_forked("statistics");
  auto statistics = tally_.read(turns_, [this] { guarded([this] { publish_statistics(); }); });
  statistics.wakeups = turns_.wakeups();
  return statistics;
}

void Engine::log(LogLevel level, const std::string& line) noexcept {
  if (level > options_.log_level) return;
  try {
    const std::lock_guard lock(log_mutex_);
    if (options_.log) return options_.log(level, line);
  } catch (...) {
    // If the program's log sink throws, the line goes to standard error.
  }
  log_to_stderr(level, line);
}

}  // namespace tutti
