#include "tutti/backends/handshake/admission.h"

#include <fmt/format.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <utility>

namespace tutti {

bool has_input(int descriptor) {
  int bytes = 0;
  return ::ioctl(descriptor, FIONREAD, &bytes) == 0 && bytes > 0;
}

Admission::Admission(std::string door, LogSink log)
    : door_(std::move(door)), log_(std::move(log)) {}

Admission::~Admission() { tell(Clock::now()); }

Clock::time_point Admission::next_opening(Clock::time_point now) const {
  if (entries_.size() < kMostStrangers) return now;
  return std::max(now, entries_.front().since + kLeastStay);
}

void Admission::enter(const std::function<std::weak_ptr<Stranger>(uint64_t place)>& make,
                      Clock::time_point now) {
  if (entries_.size() >= kMostStrangers) dismiss_one(now);
  const auto place = ++last_place_;
  entries_.push_back({place, make(place), now});
}

bool Admission::make_room(Clock::time_point now) {
  if (entries_.empty() || now < entries_.front().since + kLeastStay) return false;
  dismiss_one(now);
  return true;
}

void Admission::leave(uint64_t place) {
  std::erase_if(entries_, [&](const Entry& entry) { return entry.place == place; });
}

void Admission::dismiss_one(Clock::time_point now) {
  const auto silent = std::find_if(entries_.begin(), entries_.end(), [&](Entry& entry) {
    if (entry.spoken || now < entry.since + kLeastStay) return false;
    const auto stranger = entry.stranger.lock();
    return !stranger || !(entry.spoken = stranger->has_spoken());
  });
  const auto chosen = silent == entries_.end() ? entries_.begin() : silent;
  const auto stranger = chosen->stranger.lock();
  const bool spoken = chosen->spoken;
  entries_.erase(chosen);
  if (!stranger) return;
  stranger->dismiss();
  turned_away(spoken ? Reason::unproved : Reason::silent,
              fmt::format("{} {} until another connection needed its place", stranger->name(),
                          spoken ? "did not prove itself" : "said nothing"),
              now);
}

void Admission::turned_away(Reason reason, std::string_view what, Clock::time_point now) {
  if (!log_) return;
  const bool is_first =
      std::all_of(counts_.begin(), counts_.end(), [](uint64_t count) { return count == 0; });
  if (is_first) first_seen_ = now;
  ++counts_[static_cast<size_t>(reason)];
  last_ = what;
  if (now < next_line_) return;
  next_line_ = now + kBetweenLines;
  tell(now);
}

void Admission::tell(Clock::time_point now) {
  const auto [silent, unproved, other_user] = counts_;
  const auto total = silent + unproved + other_user;
  if (total == 0) return;
  counts_ = {};
  if (total == 1)
    return log_(LogLevel::warning, fmt::format("{} turned a connection away: {}", door_, last_));
  log_(LogLevel::warning,
       fmt::format("{} turned {} connections away in {:.1f} s ({} said nothing, {} did not prove "
                   "themselves, {} of other users); the last: {}",
                   door_, total, std::chrono::duration<double>(now - first_seen_).count(), silent,
                   unproved, other_user, last_));
}

}  // namespace tutti
