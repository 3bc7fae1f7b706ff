// Threads of the program submit operations here. If an operation's stream waits for the Work of
// another operation, the entry records that Work.

#include <fmt/format.h>

#include <utility>

#include "tutti/core/engine/engine.h"

namespace tutti {

namespace {

std::string pending_key(const Entry& entry) { return entry_key(entry.request); }

}  // namespace

Engine::Submission::Submission(Engine& engine, std::string_view name)
    : engine_((engine.check_not_forked(name), engine)),
      lock_(engine.hand_over_.lock()),
      before_(engine.hand_over_.offered(lock_).operations.size()) {
  // The lock is held until this Submission is destroyed. close() takes the same lock, so the engine
  // stays open while the call adds its operations.
  engine.check_usable(lock_, name);
}

Engine::Submission::~Submission() {
  if (committed_) return;
  auto& submitted = engine_.hand_over_.offered(lock_).operations;
  for (size_t i = before_; i < submitted.size(); ++i) submitted[i]->pending = false;
  submitted.resize(before_);
}

Entry& Engine::Submission::claim(std::string_view key) { return hold(engine_.entries_.at(key)); }

Entry& Engine::Submission::claim(Entry& entry) {
  engine_.entries_.again(entry);
  return hold(entry);
}

Entry& Engine::Submission::hold(Entry& entry) {
  if (entry.pending)
    throw Error(ErrorCode::duplicate_name,
                fmt::format("\"{0}\" is pending already on rank {1}: it was submitted twice before "
                            "its Work was done. Wait for the first, or use another name",
                            entry.request.name, engine_.context_.rank))
        .with_rank(engine_.context_.rank)
        .with_tensor(entry.request.name);
  entry.pending = true;
  engine_.hand_over_.offered(lock_).operations.push_back(&entry);
  return entry;
}

void Engine::Submission::commit(bool ring) {
  committed_ = true;
  const auto now = Clock::now();
  auto& hand_over = engine_.hand_over_;
  auto& submitted = hand_over.offered(lock_).operations;
  bool has_waited = WorkState::take_waited();
  for (size_t i = before_; i < submitted.size(); ++i) {
    auto& entry = *submitted[i];
    entry.submitted = now;
    entry.order = hand_over.number(lock_);
    entry.request.after_wait = std::exchange(has_waited, false);
    if (entry.ready) engine_.device_waits_.find(entry);
    hand_over.count(lock_, entry.input.bytes(), entry.plan_id, entry.fits_plan);
  }
  if (ring && hand_over.must_ring(lock_)) engine_.wake();
}

void Engine::submit(std::vector<std::unique_ptr<Entry>> entries, bool ring) {
  Submission submission(*this, entries.front()->request.name);
  for (auto& entry : entries) {
    auto& slot = submission.claim(pending_key(*entry));
    slot = std::move(*entry);
    slot.pending = true;
  }
  submission.commit(ring);
}

void Engine::submit_join(std::unique_ptr<Entry> entry) {
  check_not_forked(entry->request.name);
  const auto lock = hand_over_.lock();
  check_usable(lock, entry->request.name);
  auto& slot = entries_.at(entry->request.name);
  if (slot.pending)
    throw Error(ErrorCode::duplicate_name,
                fmt::format("rank {} has joined already; wait for that Work first", context_.rank))
        .with_rank(context_.rank);
  slot = std::move(*entry);
  slot.pending = true;
  slot.submitted = Clock::now();
  slot.order = hand_over_.number(lock);
  hand_over_.offered(lock).joins.push_back(&slot);
  wake();
}

// --- memory that the program frees ------------------------------------------------------------

void Engine::retire(std::unique_ptr<Region> region) noexcept {
  try {
    const auto lock = hand_over_.lock();
    auto& retired = hand_over_.offered(lock).retired;
    retired.push_back(nullptr);
    retired.back() = std::move(region);
  } catch (const std::bad_alloc&) {
    keep_for_good(region.release());  // an operation may still use it
    return;
  }
  wake();
}

// --- tensors behind a stream that waits ---------------------------------------------------------

void Engine::stream_waits(const std::shared_ptr<WorkState>& work, StreamRef stream) {
  const auto lock = hand_over_.lock();
  if (!device_waits_.add(work, stream)) return;
  // If a plan has this operation and a later one of the stream in one bucket, the plan is stuck.
  // PlanFollower::is_stuck() detects that by the number of threads that wait for the Work. So a
  // waiting stream counts as one more thread. The time is stored before the count.
  if (work->waiters.load(std::memory_order_relaxed) == 0)
    work->waiting_since.store(Clock::now().time_since_epoch().count());
  work->waiters.fetch_add(1);
}

bool Engine::is_first_on_device(const std::string& name) const {
  const auto lock = hand_over_.lock();
  return !device_waits_.has_waited_on_host(name);
}

void Engine::was_on_device(const std::string& name) {
  const auto lock = hand_over_.lock();
  device_waits_.waited_on_host(name);
}

bool Engine::ranks_share_device(DeviceRuntime& runtime) const {
  return ranks_here_ > 1 && ranks_here_ > runtime.count();
}

}  // namespace tutti
