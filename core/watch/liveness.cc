#include "tutti/core/watch/liveness.h"

#include <algorithm>

namespace tutti {

using Seconds = std::chrono::duration<double>;

Liveness::Liveness(int rank, int size, double peer_timeout)
    : rank_(rank),
      timeout_(std::chrono::duration_cast<Clock::duration>(Seconds(peer_timeout))),
      interval_(
          std::chrono::duration_cast<Clock::duration>(Seconds(std::min(1.0, peer_timeout / 4)))),
      heard_(static_cast<size_t>(size)) {}

void Liveness::start(Clock::time_point now) {
  probing_ = true;
  std::fill(heard_.begin(), heard_.end(), now);
  next_ping_ = now + interval_;
}

void Liveness::heard(int peer, Clock::time_point when) {
  auto& last = heard_[static_cast<size_t>(peer)];
  last = std::max(last, when);
}

Liveness::Result Liveness::tick(Clock::time_point now, bool pending) {
  Result result;
  if (!pending) {
    probing_ = false;
    return result;
  }
  // If this rank itself was stopped it finds a gap: no peer is silent because nobody listened.
  if (!probing_ || now - last_tick_ > interval_ * 3) start(now);
  last_tick_ = now;
  const auto quiet = [&](int peer) { return now - heard_[static_cast<size_t>(peer)]; };
  // A peer that lives answers each ping.
  for (int peer = 0; peer < static_cast<int>(heard_.size()); ++peer)
    if (peer != rank_ && quiet(peer) >= timeout_ / 2) result.silent.push_back(peer);
  std::stable_sort(result.silent.begin(), result.silent.end(),
                   [&](int one, int other) { return quiet(one) > quiet(other); });
  if (!result.silent.empty() && quiet(result.silent.front()) >= timeout_) return result;
  result.silent.clear();
  if (now >= next_ping_) {
    next_ping_ = now + interval_;
    for (size_t peer = 0; peer < heard_.size(); ++peer)
      if (static_cast<int>(peer) != rank_) result.ping.push_back(static_cast<int>(peer));
  }
  result.next = next_ping_;
  return result;
}

double Liveness::quiet_seconds(int peer, Clock::time_point now) const {
  return probing_ ? Seconds(now - heard_[static_cast<size_t>(peer)]).count() : 0;
}

}  // namespace tutti
