#include "tutti/backends/stream/joint_transport.h"

#include <algorithm>
#include <chrono>

#include "tutti/base/deadline.h"

namespace tutti {

void JointTransport::abort(const Error& error) noexcept {
  for (const auto& part : parts_) part.transport->abort(error);
}

void JointTransport::discard(uint64_t first, uint64_t last) {
  for (const auto& part : parts_) part.transport->discard(first, last);
}

std::optional<PeerEvent> JointTransport::take_event() {
  if (auto event = own().take_event()) return event;
  for (size_t i = 1; i < parts_.size(); ++i)
    while (auto event = parts_[i].transport->take_event()) {
      if (event->kind != PeerEvent::Kind::lost) continue;
      if (!parts_[i].ranks.empty()) event->peer = parts_[i].ranks[static_cast<size_t>(event->peer)];
      return event;
    }
  return {};
}

double JointTransport::quiet_seconds(int peer) {
  double shortest = kQuietForEver;
  for (const auto& [transport, ranks] : parts_) {
    const auto found = std::find(ranks.begin(), ranks.end(), peer);
    if (!ranks.empty() && found == ranks.end()) continue;  // the peer is not a rank of this part
    const auto number = ranks.empty() ? peer : static_cast<int>(found - ranks.begin());
    shortest = std::min(shortest, transport->quiet_seconds(number));
  }
  return shortest;
}

void JointTransport::goodbye(double seconds) noexcept {
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  for (const auto& part : parts_)
    part.transport->goodbye(
        std::max(0.0, std::chrono::duration<double>(end - Clock::now()).count()));
}

}  // namespace tutti
