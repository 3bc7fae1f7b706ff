// The part of the engine that runs a collective at once, for a caller that waits for it.

#include <fmt/format.h>
#include <sched.h>

#include "tutti/base/process/pause.h"
#include "tutti/core/engine/engine.h"

namespace tutti {

bool Engine::run_now(std::string_view name, const Collective& collective, uint64_t layout) {
  Launch launch;
  launch.queue = kBlockingQueue;
  launch.name = name;
  launch.layout = layout;
  if (!backend_->packs_itself(collective, launch)) return false;
  check_not_forked(name);
  if (!usable_) {
    const std::lock_guard lock(submit_mutex_);
    check_usable(name);
  }
  if (in_callback())
    throw Error(
        ErrorCode::callback,
        fmt::format("\"{}\": a blocking call inside a callback would wait for itself", name))
        .with_tensor(name);
  const bool is_allreduce = collective.kind == CollectiveKind::allreduce;
  const int64_t count = is_allreduce ? collective.send_counts[0] : 0;
  const int64_t bytes = count * size_of(collective.dtype);
  const Window window{collective.output, count};
  if (bytes >= kLeastSharedBytes && collective.input == collective.output &&
      backend_->shares(window.data, static_cast<size_t>(bytes)))
    launch.windows = {&window, 1};

  auto self = take_token();
  std::optional<Error> error;
  bool drove = false;
  const bool went_well = guarded([&] {
    launch.tag = ++blocking_runs_;
    ++counting_.caller_runs;
    if (is_shut_) {
      error = about(*left_, name);
      return;
    }
    launch.spins = spin_rounds_ > 0 ? kBlockingSpins : 0;
    const auto operation = backend_->start(collective, launch);
    auto state = OperationState::done;
    Clock::time_point since{};  // when this thread first gave its core away
    for (int round = 0; operation && (state = operation->advance()) == OperationState::pending;
         ++round) {
      if (spin_rounds_ > 0 && round % kBlockingLooks != kBlockingLooks - 1) {
        pause_core();
        continue;
      }
      const auto now = Clock::now();
      if (since == Clock::time_point{}) since = now;
      // Where other programs have the cores, few yields take long; and who yields drives nothing,
      // so that it would not see a rank go.
      if (now - since < (spin_rounds_ > 0 ? kBlockingSpinning : kBlockingYielding) &&
          (spin_rounds_ > 0 || round < kBlockingYields)) {
        ::sched_yield();
        continue;
      }
      drove = true;
      self = shared_from_this();
      blocking_ = name;
      blocking_since_ = since;
      state = drive_blocking(*operation, launch.tag, error);
      break;
    }
    if (state == OperationState::done || error) return;
    if (broken())
      error = about(*broken(), name);
    else if (operation->failure() != nullptr)
      error = Error(*operation->failure()).with_tensor(name);
    else
      error =
          Error(ErrorCode::internal, fmt::format("\"{}\" failed although no rank was lost", name));
  });
  if (!went_well) {
    self = shared_from_this();
    error = about(broken().value_or(Error(ErrorCode::internal, "a rank cannot go on")), name);
  }
  blocking_ = {};
  // That calls disagree is known to all ranks; any other failure is this rank's alone, and its
  // peers wait for its part of this call.
  if (error && error->code() != ErrorCode::mismatch && blocking_failed_ == 0)
    blocking_failed_ = launch.tag;
  if (drove)
    guarded([&] {
      count_wait(blocking_since_);
      publish_statistics();
      leave_to_background();
    });
  put_token_back();
  if (error) throw Error(*error);
  return true;
}

// Until the operation is over, or never will be: then `error` says why.
OperationState Engine::drive_blocking(Operation& operation, uint64_t call,
                                      std::optional<Error>& error) {
  int idle_rounds = 0;
  WaitAccount account{blocking_since_, nullptr};
  auto state = OperationState::pending;
  while ((state = operation.advance()) == OperationState::pending) {
    if (const auto why = why_never(call)) {
      error = about(*why, blocking_);
      return state;
    }
    const bool moved = step();
    charge(account, moved, operation.lacks_ranks());
    if (moved)
      idle_rounds = 0;
    else
      rest(Deadline::never(), idle_rounds);
  }
  charge(account, true, false);
  return state;
}

// Why blocking call number `call` cannot end any more, if that is so.
std::optional<Error> Engine::why_never(uint64_t call) const {
  if (!left_) return {};
  if (const auto* departure = scheduler_->departure_before_blocking(call)) return *departure;
  // A rank that left has finished this call, so it will end here.
  return left_->code() == ErrorCode::peer_left ? std::optional<Error>() : left_;
}

}  // namespace tutti
