// A program's blocking calls, made as the engine makes them if the backend serves them.

#include <fmt/format.h>

#include "tests/simulation/judge/oracle.h"
#include "tests/simulation/world/rank.h"
#include "tests/simulation/world/world.h"

namespace tutti::simulation {

Collective SimRank::collective_of(Use& use, Call& call) {
  const auto& operation = *use.operation;
  const auto kind = operation.kind;
  Collective made;
  made.kind = kind;
  made.dtype = operation.dtype;
  if (reduces(kind)) made.op = operation.op;
  const bool is_root = operation.root == rank_;
  const bool is_rooted = kind == CollectiveKind::broadcast || kind == CollectiveKind::reduce ||
                         kind == CollectiveKind::gather || kind == CollectiveKind::scatter;
  if (is_rooted || is_pair(kind)) made.root = operation.root;
  made.input = use.in_bytes > 0 ? use.in : nullptr;
  made.output = use.out_bytes > 0 ? use.out : nullptr;
  if (kind == CollectiveKind::broadcast) made.input = made.output = use.out;
  if (kind == CollectiveKind::recv) made.input = use.out;
  if (kind == CollectiveKind::send) made.output = use.in;
  if (kind == CollectiveKind::scatter && !is_root) made.input = nullptr;
  auto& counts = call.counts.emplace_back();
  const auto size = static_cast<size_t>(context_.size);
  switch (kind) {
    case CollectiveKind::barrier:
      made.dtype = DataType::f32;
      break;
    case CollectiveKind::allgather:
    case CollectiveKind::gather:
      counts.assign(size, operation.count());
      break;
    case CollectiveKind::scatter:
    case CollectiveKind::reduce_scatter:
      for (int rank = 0; rank < context_.size; ++rank)
        counts.push_back(rows_of(operation, rank, context_.size) * operation.row());
      break;
    case CollectiveKind::alltoall:
      counts.assign(size, operation.count() / context_.size);
      break;
    default:
      counts = {operation.count()};
      break;
  }
  made.send_counts = counts;
  if (kind == CollectiveKind::alltoall) {
    made.recv_counts = counts;
    made.longest = counts[0];
  }
  return made;
}

// Begins a blocking call. Returns false if the thread continues later.
bool SimRank::block(Thread& thread, const Action& action) {
  const auto& first = action.operations.front();
  if (!world_.from().world.serves_blocking) {
    if (submit(thread, action, false)) {
      std::vector<std::shared_ptr<WorkState>> works;
      for (size_t i = 0; i < action.operations.size(); ++i) {
        works.push_back(thread.unwaited.back()->work);
        thread.unwaited.pop_back();
      }
      thread.awaited = std::move(works);
    }
    return wait(thread);
  }
  // The call of another thread has the token (the right to drive the node).
  if (call_) {
    resume(thread, std::chrono::microseconds(50));
    return false;
  }
  if (const auto why = why_refused(first.name)) {
    refuse(thread, action, *why);
    return true;
  }
  auto& call = call_.emplace();
  call.parts.emplace(node_->peers());
  call.thread = &thread;
  call.name = first.name;
  call.counts.reserve(action.operations.size());
  const auto& world = world_.from().world;
  for (size_t i = 0; i < action.operations.size(); ++i)
    call.uses.push_back(
        &make_use(thread, action.operations[i], static_cast<int>(i), random_.chance(500)));
  world_.note(rank_, "blocks in", first.name);
  std::optional<Error> error;
  auto state = OperationState::done;
  auto& blocking = node_->blocking();
  const bool went_well = guarded([&] {
    Launch launch;
    launch.queue = kBlockingQueue;
    if (is_pair(first.kind))
      blocking.begin_pairs(action.operations.size());
    else
      launch.tag = blocking.begin_all();
    if (const auto* why = node_->why_none_begins()) {
      error = named(*why, first.name);
      return;
    }
    size_t left = call.uses.size();
    // The receives are posted before the sends.
    for (const bool sends : {false, true})
      for (auto* use : call.uses) {
        if ((use->operation->kind == CollectiveKind::send) != sends) continue;
        if (is_pair(first.kind)) blocking.add_peer(use->operation->root);
        launch.name = use->operation->name;
        const auto collective = collective_of(*use, call);
        // Only the last part spins, because the peer needs this rank's receive before its own send
        // can end.
        launch.spins = --left == 0 ? world.spins : 0;
        const Window window{collective.output, use->operation->count()};
        const auto bytes = static_cast<size_t>(use->operation->bytes());
        const bool is_direct = collective.kind == CollectiveKind::allreduce &&
                               collective.input == collective.output &&
                               use->operation->bytes() >= world.in_place_bytes &&
                               end_->shares(collective.output, bytes);
        launch.windows = {&window, is_direct ? size_t{1} : 0};
        call.parts->add(use->operation->name, is_pair(first.kind) ? use->operation->root : -1,
                        end_->start(collective, launch));
      }
    state = call.parts->advance();
  });
  if (!went_well) {
    const auto* broken = node_->broken();
    error = named(broken != nullptr ? *broken : Error(ErrorCode::internal, "a rank cannot go on"),
                  first.name);
  }
  if (error || state != OperationState::pending) {
    if (!error && state != OperationState::done) {
      blocking.waits(call.name, world_.events().now());
      plan_turn(world_.events().now());
      return false;
    }
    end_call(error);
    return false;
  }
  blocking.waits(call.name, world_.events().now());
  plan_turn(world_.events().now());
  return false;
}

// Checks the blocking call. Returns true if the node needs another step.
bool SimRank::poll_call() {
  auto& call = *call_;
  auto& blocking = node_->blocking();
  auto state = OperationState::pending;
  std::optional<Error> error;
  const bool went_well = guarded([&] {
    state = call.parts->advance();
    if (state != OperationState::pending) return;
    const auto* why = node_->why_blocking_never_ends();
    if (why != nullptr) error = named(*why, blocking.name());
  });
  if (!went_well) {
    end_call(named(*node_->broken(), call.name));
    return false;
  }
  if (state == OperationState::pending && !error) return true;
  if (state == OperationState::done || error) {
    end_call(error);
    return false;
  }
  const auto now = world_.events().now();
  if (!call.failed_since) call.failed_since = now;
  const auto* reason = call.parts->failure();
  if (node_->may_hear_why(reason, *call.failed_since, now)) return true;
  error = named(node_->why_blocking_failed(reason), call.name);
  end_call(error);
  return false;
}

void SimRank::end_call(std::optional<Error> error) {
  auto call = std::move(*call_);
  call_.reset();
  call.parts.reset();
  node_->blocking().end(error ? &*error : nullptr);
  for (auto* use : call.uses) end_use(*use, error ? &*error : nullptr);
  world_.note(rank_, error ? "fails in" : "comes back from", call.name);
  ++call.thread->at;
  resume(*call.thread, std::chrono::microseconds(random_.between(0, 3)));
}

}  // namespace tutti::simulation
