#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tests/simulation/links/sim_channel.h"

namespace tutti::simulation {

/// The links between all pairs of ranks for one epoch; a new communicator gets a new network. It
/// must outlive the channels and live until no more events happen.
class SimNetwork {
 public:
  SimNetwork(Events& events, uint64_t seed, int size,
             const std::function<LinkShape(int, int)>& shape, LinkCounters& counters)
      : size_(size), links_(static_cast<size_t>(size * size)) {
    for (int low = 0; low < size; ++low)
      for (int high = low + 1; high < size; ++high)
        links_[at(low, high)] = std::make_unique<SimLink>(
            events, Random::mix(seed + at(low, high) + 1), shape(low, high), counters);
  }

  SimLink& link(int one, int other) {
    return *links_[at(std::min(one, other), std::max(one, other))];
  }
  /// Opens all channels of a rank, for its StreamCore. `moved` is called when one of them may move.
  std::vector<std::unique_ptr<Channel>> channels(int rank, const std::function<void()>& moved) {
    std::vector<std::unique_ptr<Channel>> channels(static_cast<size_t>(size_));
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank) continue;
      const int end = rank < peer ? 0 : 1;
      link(rank, peer).on_moved(end, moved);
      channels[static_cast<size_t>(peer)] = link(rank, peer).open(end);
    }
    return channels;
  }
  /// Ends a rank's process. The rank must not use its channels afterwards.
  void kill(int rank) {
    for (int peer = 0; peer < size_; ++peer)
      if (peer != rank) link(rank, peer).kill(rank < peer ? 0 : 1);
  }

 private:
  size_t at(int low, int high) const { return static_cast<size_t>(low * size_ + high); }

  const int size_;
  std::vector<std::unique_ptr<SimLink>> links_;
};

}  // namespace tutti::simulation
