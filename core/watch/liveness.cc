#include "tutti/core/watch/liveness.h"

#include <algorithm>
#include <limits>

namespace tutti {

using Seconds = std::chrono::duration<double>;

Liveness::Liveness(int rank, int size, double peer_timeout, double interval)
    : rank_(rank),
      timeout_(std::chrono::duration_cast<Clock::duration>(Seconds(peer_timeout))),
      interval_(std::chrono::duration_cast<Clock::duration>(
          Seconds(std::min({kInterval, interval, peer_timeout / 4})))),
      gap_(
          std::chrono::duration_cast<Clock::duration>(Seconds(std::min(3.0, peer_timeout * 0.75)))),
      quiet_since_(static_cast<size_t>(size)),
      heard_(static_cast<size_t>(size)),
      left_(static_cast<size_t>(size), false) {}

void Liveness::start(Clock::time_point now) {
  probing_ = true;
  std::fill(quiet_since_.begin(), quiet_since_.end(), now);
  next_ping_ = now + interval_;
}

void Liveness::heard(int peer, Clock::time_point when) {
  auto& quiet_since = quiet_since_[static_cast<size_t>(peer)];
  auto& heard = heard_[static_cast<size_t>(peer)];
  quiet_since = std::max(quiet_since, when);
  heard = std::max(heard, when);
}

Liveness::Result Liveness::tick(Clock::time_point now, bool pending) {
  Result result;
  if (!pending) {
    probing_ = false;
    return result;
  }
  // A gap between ticks means that this rank itself was stopped and received nothing. The silence
  // of every peer is then counted from now on.
  if (!probing_ || now - last_tick_ > gap_) start(now);
  last_tick_ = now;
  const auto quiet = [&](int peer) { return now - quiet_since_[static_cast<size_t>(peer)]; };
  const auto is_asked = [&](int peer) {
    return peer != rank_ && !left_[static_cast<size_t>(peer)];
  };
  // Every live peer answers each ping.
  const int size = static_cast<int>(heard_.size());
  for (int peer = 0; peer < size; ++peer)
    if (is_asked(peer) && quiet(peer) >= timeout_ / 2) result.silent.push_back(peer);
  std::stable_sort(result.silent.begin(), result.silent.end(),
                   [&](int one, int other) { return quiet(one) > quiet(other); });
  if (!result.silent.empty() && quiet(result.silent.front()) >= timeout_) return result;
  result.silent.clear();
  if (now >= next_ping_) {
    next_ping_ = now + interval_;
    for (int peer = 0; peer < size; ++peer)
      if (is_asked(peer)) result.ping.push_back(peer);
  }
  result.next = next_ping_;
  return result;
}

double Liveness::quiet_seconds(int peer, Clock::time_point now) const {
  return probing_ ? Seconds(now - quiet_since_[static_cast<size_t>(peer)]).count() : 0;
}

double Liveness::seconds_since_heard(int peer, Clock::time_point now) const {
  const auto heard = heard_[static_cast<size_t>(peer)];
  if (heard == Clock::time_point()) return std::numeric_limits<double>::infinity();
  return Seconds(now - heard).count();
}

}  // namespace tutti
