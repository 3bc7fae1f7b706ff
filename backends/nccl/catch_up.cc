#include "tutti/backends/nccl/catch_up.h"

#include <span>

namespace tutti {

namespace {

// Beyond all tags of operations, and another than the Sequencer's.
constexpr uint64_t kTag = uint64_t{0xA2} << 56;

}  // namespace

CatchUp::CatchUp(Transport& transport)
    : transport_(transport), links_(static_cast<size_t>(transport.size())) {
  for (int peer = 0; peer < transport.size(); ++peer)
    if (peer != transport.rank()) listen(peer);
}

void CatchUp::listen(int peer) {
  auto& link = links_[static_cast<size_t>(peer)];
  link.ticket = transport_.irecv(peer, kTag, link.next_received++,
                                 std::as_writable_bytes(std::span(&link.request, 1)));
}

void CatchUp::ask(const Request& request) {
  for (int peer = 0; peer < transport_.size(); ++peer) {
    auto& link = links_[static_cast<size_t>(peer)];
    if (link.ticket == 0) continue;  // itself, or gone
    auto& out = outgoing_.emplace_back(Outgoing{request, 0});
    out.ticket = transport_.isend(peer, {kTag, link.next_sent++, 0},
                                  std::as_bytes(std::span(&out.request, 1)));
  }
}

bool CatchUp::progress() {
  bool moved = false;
  while (!outgoing_.empty() && transport_.test(outgoing_.front().ticket) != TransferState::pending)
    outgoing_.pop_front();
  for (int peer = 0; peer < transport_.size(); ++peer) {
    auto& link = links_[static_cast<size_t>(peer)];
    while (link.ticket != 0) {
      const auto state = transport_.test(link.ticket);
      if (state == TransferState::pending) break;
      moved = true;
      link.ticket = 0;
      if (state == TransferState::failed) {
        has_lost_peer_ = true;
        break;
      }
      requests_.push_back(link.request);
      listen(peer);
    }
  }
  return moved;
}

std::optional<CatchUp::Request> CatchUp::take() {
  if (requests_.empty()) return {};
  const auto request = requests_.front();
  requests_.pop_front();
  return request;
}

}  // namespace tutti
