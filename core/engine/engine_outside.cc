// The services of the engine for its node (see Outside): it finishes operations, accepts or refuses
// calls, and asks the store and the system.

#include <fmt/format.h>

#include "tutti/base/process/process_state.h"
#include "tutti/core/engine/engine.h"

namespace tutti {

namespace {

Error freed_in_use(const std::string& name, int rank) {
  return Error(
             ErrorCode::invalid_argument,
             fmt::format(
                 "\"{}\": rank {} freed the SharedRegion in which its tensor lies before the Work "
                 "was done; wait for the Work first. The other ranks received what the memory held",
                 name, rank))
      .with_rank(rank)
      .with_tensor(name);
}

}  // namespace

void Engine::finish(std::span<Entry* const> entries, const Error* error) {
  counting_.operations += entries.size();
  // Publishes the statistics before any thread can see that a Work is done. So a thread that sees
  // the Work done also finds it counted.
  publish_statistics();
  some_wake_ = true;
  // After a Work is removed from its entry, only this function can finish the Work. So nothing may
  // throw after that point.
  finishing_.clear();
  finishing_.reserve(entries.size());
  std::vector<std::pair<size_t, Error>> failed;
  retiring_.an_operation_is_over();
  for (size_t i = 0; i < entries.size(); ++i) {
    const auto& entry = *entries[i];
    if (error != nullptr)
      failed.emplace_back(i, about(*error, entry.request.name));
    else if (!retiring_.empty() && retiring_.holds(entry))
      failed.emplace_back(i, freed_in_use(entry.request.name, context_.rank));
  }
  auto next_failed = failed.begin();
  {
    // From here on any thread may submit these names again, even before it sees that the Work is
    // done.
    const auto lock = hand_over_.lock();
    const bool is_closed = hand_over_.is_closed(lock);
    for (Entry* entry : entries) {
      const bool is_good = next_failed == failed.end() || next_failed->first != finishing_.size();
      if (!is_good) ++next_failed;
      if (entry->reuses_work && is_good && !is_closed)
        finishing_.push_back(entry->work);
      else
        finishing_.push_back(std::move(entry->work));
      if (entry->made) entry->made = Tensor();
      entry->staged = nullptr;
      entry->ready.reset();
      entry->pending = false;
    }
  }
  next_failed = failed.begin();
  for (size_t i = 0; i < finishing_.size(); ++i) {
    std::optional<Error> why;
    if (next_failed != failed.end() && next_failed->first == i)
      why.emplace(std::move((next_failed++)->second));
    end_part(*finishing_[i], std::move(why));
  }
  finishing_.clear();
}

// The table contains every pending entry, whichever list of the engine or of its node has it.
void Engine::finish_all(const Error& error) {
  std::vector<Entry*> pending;
  {
    const auto lock = hand_over_.lock();
    auto& offered = hand_over_.offered(lock);
    offered.operations.clear();
    offered.joins.clear();
    pending = entries_.pending();
  }
  finish(pending, &error);
}

void Engine::on_its_way() {
  publish_statistics();
  some_wake_ = true;
}

// Operations that were submitted before the door was broken still reach the node, in its next step.
void Engine::set_door(Door door, const Error& error) {
  {
    const auto lock = hand_over_.lock();
    ending_.break_with(error);
    hand_over_.move_door(lock, after_error(hand_over_.door(), door));
    if (!hand_over_.lets_in()) ending_.raise_all();
  }
  if (door != Door::broken) return;
  poller_.forget(backend_->descriptor());
  wake();
}

void Engine::on_first_departure(int rank) {
  const auto lock = hand_over_.lock();
  ending_.departed(rank);
}

void Engine::ask_for_deaths() {
  asks_deaths_ = true;
  deaths_->begin(Deadline::at(Clock::now() + Node::kLongestInquiry));
}

void Engine::stop_asking() {
  asks_deaths_ = false;
  deaths_->stop();
}

bool Engine::tell_launcher() { return voice_.tell(); }

ProcessState Engine::process_of(int rank) {
  return process_state(context_.places[static_cast<size_t>(rank)].pid);
}

// If the error is about a rank that is gone or silent, this process stops announcing later failures
// to the launcher, because they may be consequences.
Error Engine::about(const Error& error, std::string_view name) {
  if (error.code() == ErrorCode::peer_left || error.code() == ErrorCode::peer_lost ||
      error.code() == ErrorCode::peer_silent)
    LauncherVoice::fall_silent();
  return named(error, name);
}

int Engine::gone_rank() const {
  const auto lock = hand_over_.lock();
  return ending_.gone_rank();
}

void Engine::raise_when_over(std::shared_ptr<uint32_t> word) {
  const auto lock = hand_over_.lock();
  ending_.add_word(std::move(word));
  if (!hand_over_.lets_in()) ending_.raise_all();
}

}  // namespace tutti
