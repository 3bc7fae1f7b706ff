// Where any thread of the program hands over operations, and where those that their stream makes
// only after another operation's Work wait for that Work.

#include <fmt/format.h>

#include <utility>

#include "tutti/core/engine/engine.h"

namespace tutti {

namespace {

std::string pending_key(const Entry& entry) { return entry_key(entry.request); }

}  // namespace

Engine::Submission::Submission(Engine& engine, std::string_view name)
    : engine_((engine.check_not_forked(name), engine)),
      lock_(engine.submit_mutex_),
      before_(engine.submitted_.size()) {
  // With submit_mutex_ held, so that nothing enters once the door is shut.
  engine.check_usable(name);
}

Engine::Submission::~Submission() {
  if (committed_) return;
  auto& submitted = engine_.submitted_;
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
  engine_.submitted_.push_back(&entry);
  return entry;
}

void Engine::Submission::commit(bool ring) {
  committed_ = true;
  const auto now = Clock::now();
  auto& submitted = engine_.submitted_;
  bool has_waited = WorkState::take_waited();
  for (size_t i = before_; i < submitted.size(); ++i) {
    auto& entry = *submitted[i];
    entry.submitted = now;
    entry.order = ++engine_.submissions_;
    entry.request.after_wait = std::exchange(has_waited, false);
    if (entry.ready) engine_.find_waits(entry);
    engine_.submitted_bytes_ += entry.input.bytes();
    if (entry.plan_id != engine_.quiet_plan_ || !entry.fits_plan) engine_.quiet_bytes_ = 0;
  }
  if (ring && engine_.submitted_bytes_ >= engine_.quiet_bytes_) engine_.wake();
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
  const std::lock_guard lock(submit_mutex_);
  check_usable(entry->request.name);
  auto& slot = entries_.at(entry->request.name);
  if (slot.pending)
    throw Error(ErrorCode::duplicate_name,
                fmt::format("rank {} has joined already; wait for that Work first", context_.rank))
        .with_rank(context_.rank);
  slot = std::move(*entry);
  slot.pending = true;
  slot.submitted = Clock::now();
  slot.order = ++submissions_;
  joins_.push_back(&slot);
  wake();
}

// --- memory that the program frees ------------------------------------------------------------

void Engine::retire(std::unique_ptr<Region> region) noexcept {
  try {
    const std::lock_guard lock(submit_mutex_);
    retired_.push_back(nullptr);
    retired_.back() = std::move(region);
  } catch (const std::bad_alloc&) {
    keep_for_good(region.release());  // somebody may use it
    return;
  }
  wake();
}

// --- tensors behind a stream that waits ---------------------------------------------------------

namespace {

bool is_over(const std::weak_ptr<WorkState>& work) {
  const auto state = work.lock();
  return !state || state->done();
}

}  // namespace

void Engine::stream_waits(const std::shared_ptr<WorkState>& work, StreamRef stream) {
  const std::lock_guard lock(submit_mutex_);
  std::erase_if(stream_waits_, [](const StreamWait& wait) { return is_over(wait.work); });
  if (work->done()) return;
  stream_waits_.push_back({stream, work});
  // A plan that has both in one bucket is stuck; that a stream waits is the evidence for which
  // Scheduler::plan_is_stuck() looks. The time is there before the count.
  if (work->waiters.load(std::memory_order_relaxed) == 0)
    work->waiting_since.store(Clock::now().time_since_epoch().count());
  work->waiters.fetch_add(1);
}

bool Engine::is_first_on_device(const std::string& name) const {
  const std::lock_guard lock(submit_mutex_);
  return !device_names_.contains(name);
}

void Engine::was_on_device(const std::string& name) {
  constexpr size_t kMost = 65536;  // of programs that make new names in every step
  const std::lock_guard lock(submit_mutex_);
  if (device_names_.size() >= kMost) device_names_.clear();
  device_names_.insert(name);
}

bool Engine::ranks_share_device(DeviceRuntime& runtime) const {
  return ranks_here_ > 1 && ranks_here_ > runtime.count();
}

void Engine::find_waits(Entry& entry) {
  for (const auto& wait : stream_waits_)
    if (wait.stream == entry.input.stream() && !is_over(wait.work))
      entry.behind.push_back(wait.work);
}

}  // namespace tutti
