// The shell's answers to the requests of its node.

#include <fmt/format.h>

#include <algorithm>

#include "tests/simulation/world/rank.h"
#include "tests/simulation/world/world.h"

namespace tutti::simulation {

namespace {

std::string text_of(std::string_view name) { return std::string(name.substr(0, name.find('\n'))); }

}  // namespace

void SimRank::finish(std::span<Entry* const> entries, const Error* error) {
  note_phase();
  counting_.operations += entries.size();
  std::vector<std::pair<std::shared_ptr<WorkState>, std::optional<Error>>> finishing;
  retiring_.an_operation_is_over();
  for (Entry* entry : entries) {
    std::optional<Error> why;
    if (error != nullptr)
      why = named(*error, entry->request.name);
    else if (!retiring_.empty() && retiring_.holds(*entry))
      why = Error(ErrorCode::invalid_argument, "its memory was freed").with_rank(rank_);
    world_.note(rank_, why ? "fails" : "finishes", text_of(entry->request.name));
    if (!entry->pending)
      world_.record().broken_promises.push_back(
          fmt::format("rank {} ends {} twice", rank_, text_of(entry->request.name)));
    finishing.emplace_back(std::move(entry->work), std::move(why));
    if (entry->made) entry->made = Tensor();
    entry->staged = nullptr;
    entry->ready.reset();
    entry->pending = false;
  }
  for (auto& [work, why] : finishing) {
    std::vector<WorkCallback> callbacks;
    if (!work || !work->finish_part(std::move(why), callbacks)) continue;
    on_work_over(*work);
    for (auto& callback : callbacks)
      world_.events().after(std::chrono::microseconds(random_.between(0, 50)),
                            [callback = std::move(callback)] { callback(nullptr); });
  }
}

void SimRank::finish_all(const Error& error) {
  note_phase();
  submitted_.clear();
  joins_.clear();
  finish(entries_.pending(), &error);
}

void SimRank::set_door(Door door, const Error& error) {
  note_phase();
  if (!broken_) broken_ = error;
  door_ = after_error(door_, door);
  world_.note(rank_, door == Door::broken ? "is broken" : "breaks", std::string_view(error.what()));
  if (door != Door::broken) return;
  auto& record = world_.record_of(rank_);
  if (record.broken == kNever) {
    record.broken = world_.micros();
    record.error_code = static_cast<int>(error.code());
    record.error_rank = error.rank();
    record.error_text = error.what();
  }
  ring();
}

void SimRank::ask_for_deaths() {
  note_phase();
  asks_ = true;
  read_deaths(world_.events().now() + Node::kLongestInquiry);
}

// A thread of the engine reads the deaths every 5 ms, and waits for the store as long as needed.
void SimRank::read_deaths(Time end) {
  Clock::duration takes = std::chrono::microseconds(random_.between(20, 1500));
  if (const auto* slow = world_.fault(Fault::Kind::store_slow, rank_))
    takes += std::chrono::microseconds(slow->length);
  const bool is_gone = world_.fault(Fault::Kind::store_gone, rank_) != nullptr;
  if (is_gone && random_.chance(500)) return;  // the store never answers
  auto known = world_.deaths();
  world_.events().after(takes, [this, end, is_gone, known = std::move(known)] {
    if (!asks_ || is_over_ || is_killed_) return;
    deaths_.emplace();
    deaths_->is_all = is_gone;
    if (!deaths_->is_all) deaths_->deaths = known;
    const bool goes_on = !deaths_->is_all && world_.events().now() < end;
    ring();
    if (goes_on)
      world_.events().after(std::chrono::milliseconds(5), [this, end] {
        if (asks_ && !is_over_ && !is_killed_) read_deaths(end);
      });
  });
}

bool SimRank::tell_launcher() {
  world_.record_of(rank_).tells_launcher = true;
  if (!world_.from().world.has_launcher) return false;
  Clock::duration takes = std::chrono::microseconds(random_.between(50, 5000));
  if (const auto* slow = world_.fault(Fault::Kind::launcher_slow, rank_))
    takes += std::chrono::microseconds(slow->length);
  world_.events().after(takes, [this] {
    if (is_over_ || is_killed_) return;
    is_told_ = true;
    ring();
  });
  return true;
}

ProcessState SimRank::process_of(int rank) {
  const auto& other = world_.rank(rank);
  if (other.is_killed()) return ProcessState::ended;
  return other.is_standing_still() ? ProcessState::stopped : ProcessState::runs;
}

void SimRank::log(LogLevel level, const std::string& line) {
  if (world_.is_traced() && level <= LogLevel::info) world_.note(rank_, "logs", line);
}

}  // namespace tutti::simulation
