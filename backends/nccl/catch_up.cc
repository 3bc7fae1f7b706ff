#include "tutti/backends/nccl/catch_up.h"

namespace tutti {

namespace {

// This tag is above all tags of operations, and differs from the Sequencer's tag.
constexpr uint64_t kTag = uint64_t{0xA2} << 56;

}  // namespace

CatchUp::CatchUp(Transport& transport) : size_(transport.size()), links_(transport, kTag) {
  for (int peer = 0; peer < size_; ++peer)
    if (peer != transport.rank()) links_.open(peer);
}

void CatchUp::ask(const Request& request) {
  for (int peer = 0; peer < size_; ++peer) links_.send(peer, request);
}

bool CatchUp::progress() {
  return links_.progress([this](int, const Request& request) { requests_.push_back(request); });
}

std::optional<CatchUp::Request> CatchUp::take() {
  if (requests_.empty()) return {};
  const auto request = requests_.front();
  requests_.pop_front();
  return request;
}

}  // namespace tutti
