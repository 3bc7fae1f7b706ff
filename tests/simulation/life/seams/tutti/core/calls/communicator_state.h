// core/membership/membership.cc sees this in place of the communicator's state and engine: the
// simulated world, in which ranks connect through the store alone. The file is compiled for the
// simulation once more, with this header before the shipped one of this name.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/backends/backend.h"
#include "tutti/base/error.h"
#include "tutti/core/meeting/attempt.h"
#include "tutti/core/settings/options.h"

namespace tutti::simulation {
class World;
class Link;
}  // namespace tutti::simulation

namespace tutti::simulated {

/// The part of a backend that a split calls: its ranks meet under keys of their own, if at all.
class SplitBackend {
 public:
  explicit SplitBackend(bool meets) : meets_(meets) {}
  std::shared_ptr<Inheritance> split(const Context& context, int color, int key);

 private:
  const bool meets_;
};

/// A rank knows this of a communicator that it is in, until it leaves.
class Engine {
 public:
  Engine(simulation::World& world, simulation::Link& link, int rank, Context context);
  ~Engine();
  Engine(const Engine&) = delete;

  const Context& context() const { return context_; }
  SplitBackend& backend() { return backend_; }
  std::optional<Error> broken() const;
  int gone_rank() const;
  simulation::Link& link() const { return link_; }

  class WatchOverPeers {
   public:
    explicit WatchOverPeers(const std::shared_ptr<Engine>&) {}
    ~WatchOverPeers() {}
  };

 private:
  simulation::World& world_;
  simulation::Link& link_;
  const int rank_;
  const Context context_;
  SplitBackend backend_;
};

/// Its constructor connects the ranks, as the shipped one does.
class CommunicatorState {
 public:
  CommunicatorState(Options options, Membership membership);

  const Options options;
  Membership membership;
  std::shared_ptr<Engine> engine;
  int splits = 0;
  int epoch = 0;
  std::vector<int> first_ranks;  // see Survivors; empty: nothing was shrunk
  std::string path;
};

}  // namespace tutti::simulated

namespace tutti {

using simulated::CommunicatorState;
using simulated::Engine;

/// The functions of core/meeting/bootstrap.h. The store is the world's.
Membership join_job(const Options& options);

}  // namespace tutti
