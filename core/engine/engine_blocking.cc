// The part of the engine that runs blocking calls, on the calling thread.

#include <fmt/format.h>
#include <sched.h>

#include "tutti/base/check.h"
#include "tutti/base/process/pause.h"
#include "tutti/core/engine/engine.h"
#include "tutti/core/node/pair_calls.h"

namespace tutti {

void Engine::check_may_block(std::string_view name) {
  check_not_forked(name);
  if (!hand_over_.lets_in()) check_usable(hand_over_.lock(), name);
  if (in_callback())
    throw Error(
        ErrorCode::callback,
        fmt::format("\"{}\": a blocking call inside a callback would wait for itself", name))
        .with_tensor(name);
}

template <class Start>
void Engine::block(std::string_view name, const Start& start) {
  // If this thread must wait for the token, it keeps the engine alive, because another thread may
  // close the engine meanwhile.
  std::shared_ptr<Engine> self;
  if (!turns_.try_take()) {
    self = shared_from_this();
    turns_.claim();
  }
  std::optional<Error> error;
  bool drove = false;
  const bool went_well = guarded([&] {
    ++counting_.caller_runs;
    const OperationPtr operation = start();
    if (const auto* why = node_->why_none_begins()) {
      error = about(*why, name);
      return;
    }
    auto state = OperationState::done;
    Clock::time_point since{};  // time when this thread first yielded its core
    for (int round = 0; operation && (state = operation->advance()) == OperationState::pending;
         ++round) {
      if (spin_rounds_ > 0 && round % kBlockingLooks != kBlockingLooks - 1) {
        pause_core();
        continue;
      }
      const auto now = Clock::now();
      if (since == Clock::time_point{}) since = now;
      // If other programs occupy the cores, even a few yields take long. A thread that yields does
      // not run the engine, so it would notice a lost rank late. Therefore the time for yields is
      // limited too.
      if (now - since < (spin_rounds_ > 0 ? kBlockingSpinning : kBlockingYielding) &&
          (spin_rounds_ > 0 || round < kBlockingYields)) {
        ::sched_yield();
        continue;
      }
      drove = true;
      self = shared_from_this();
      node_->blocking().waits(name, since);
      state = drive_blocking(*operation, error);
      break;
    }
    if (state == OperationState::done || error) return;
    if (!drove) {
      drove = true;
      self = shared_from_this();
      node_->blocking().waits(name, Clock::now());
    }
    const auto* reason = operation->failure();
    await_cause(reason);
    error = about(node_->why_blocking_failed(reason), name);
  });
  if (!went_well) {
    self = shared_from_this();
    error = about(broken().value_or(Error(ErrorCode::internal, "a rank cannot go on")), name);
  }
  const auto since = node_->blocking().since();
  node_->blocking().end(error ? &*error : nullptr);
  tally_.blocking_ended();
  if (drove)
    guarded([&] {
      count_wait(since);
      publish_statistics();
      leave_to_background();
    });
  turns_.give();
  if (error) throw Error(*error);
}

bool Engine::run_now(std::string_view name, const Collective& collective, uint64_t layout) {
  Launch launch;
  launch.queue = kBlockingQueue;
  launch.name = name;
  launch.layout = layout;
  if (!backend_->packs_itself(collective, launch)) return false;
  check_may_block(name);
  const bool is_allreduce = collective.kind == CollectiveKind::allreduce;
  const int64_t count = is_allreduce ? collective.send_counts[0] : 0;
  const int64_t bytes = count * size_of(collective.dtype);
  const Window window{collective.output, count};
  if (bytes >= kLeastSharedBytes && collective.input == collective.output &&
      backend_->shares(window.data, static_cast<size_t>(bytes)))
    launch.windows = {&window, 1};

  block(name, [&]() -> OperationPtr {
    launch.tag = node_->blocking().begin_all();
    if (node_->why_none_begins() != nullptr) return nullptr;
    launch.spins = spin_rounds_ > 0 ? kBlockingSpins : 0;
    return backend_->start(collective, launch);
  });
  return true;
}

bool Engine::run_pairs_now(std::span<const PairCall> calls) {
  TUTTI_CHECK(!calls.empty() && calls.size() <= kMostPairCalls);
  Launch launch;
  launch.queue = kBlockingQueue;
  const auto launch_as = [&](const PairCall& call) -> const Launch& {
    launch.name = call.name;
    launch.layout = call.layout;
    return launch;
  };
  for (const auto& call : calls)
    if (!backend_->packs_itself(call.collective, launch_as(call))) return false;
  check_may_block(calls.front().name);
  PairCalls pairs(node_->peers());
  block(calls.front().name, [&]() -> OperationPtr {
    node_->blocking().begin_pairs(calls.size());
    if (node_->why_none_begins() != nullptr) return nullptr;
    for (const auto& call : calls) {
      node_->blocking().add_peer(call.collective.root);
      // Only the last operation may spin in start(). The peer's send may need this rank's receive,
      // so both must be started before this thread spins.
      launch.spins = spin_rounds_ > 0 && &call == &calls.back() ? kBlockingSpins : 0;
      pairs.add(call.name, call.collective.root, backend_->start(call.collective, launch_as(call)));
    }
    return OperationPtr(&pairs);
  });
  return true;
}

// Runs the engine until the operation has ended. If it can never complete, sets `error` to the
// reason and returns `pending`.
OperationState Engine::drive_blocking(Operation& operation, std::optional<Error>& error) {
  auto& blocking = node_->blocking();
  int idle_rounds = 0;
  WaitAccount account{blocking.since(), nullptr};
  auto state = OperationState::pending;
  while ((state = operation.advance()) == OperationState::pending) {
    if (const auto* why = node_->why_blocking_never_ends()) {
      error = about(*why, blocking.name());
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

// Runs the engine until the cause of a failed call is known, or cannot become known any more. A
// call may fail because of a lost rank before this rank knows which rank was lost.
void Engine::await_cause(const Error* reason) {
  const auto since = Clock::now();
  int idle_rounds = 0;
  while (node_->may_hear_why(reason, since, Clock::now()))
    if (!step()) rest(Deadline::at(node_->hears_no_more_at(since)), idle_rounds);
}

}  // namespace tutti
