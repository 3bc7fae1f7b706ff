// Replaces the communicator's state and engine for core/membership/membership.cc by the simulated
// world, in which ranks connect only through the store. The simulation compiles that file once
// more, with this header before the shipped one of the same name.
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

/// The part of a backend that a split calls. Its ranks meet under keys of their own, or not at all.
class SplitBackend {
 public:
  explicit SplitBackend(bool meets) : meets_(meets) {}
  std::shared_ptr<Inheritance> split(const Context& context, int color, int key);

 private:
  const bool meets_;
};

/// What a rank knows of a communicator until it leaves.
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

/// Its constructor connects the ranks, like that of the shipped class.
class CommunicatorState {
 public:
  CommunicatorState(Options options, Membership membership);

  const Options options;
  Membership membership;
  std::shared_ptr<Engine> engine;
  int splits = 0;
  int epoch = 0;
  std::vector<int> first_ranks;  // see Survivors; empty before the first shrink
  std::string path;
};

}  // namespace tutti::simulated

namespace tutti {

using simulated::CommunicatorState;
using simulated::Engine;

/// Replaces the functions of core/meeting/bootstrap.h. The store is the world's.
Membership join_job(const Options& options);

}  // namespace tutti
