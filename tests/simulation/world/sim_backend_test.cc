// The simulated backend passes the suite of all backends. A lock protects the world. A rank that
// makes progress runs all events that can happen.

#include "tests/simulation/world/sim_backend.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>

#include "tests/backends/conformance/backend_conformance.h"
#include "tests/simulation/links/locked_transport.h"

namespace tutti::test {
namespace {

using simulation::Events;
using simulation::SimBackend;
using simulation::SimNet;
using simulation::SimTraits;

struct World {
  World(int size, const SimTraits& traits) : net(events, size, traits) {}
  void settle() {
    while (events.run_next()) {
    }
  }
  std::recursive_mutex mutex;
  Events events;
  SimNet net;
};

using Held = std::lock_guard<std::recursive_mutex>;

class LockedOperation final : public Operation {
 public:
  LockedOperation(std::shared_ptr<World> world, OperationPtr inner)
      : world_(std::move(world)), inner_(std::move(inner)) {}
  ~LockedOperation() override {
    const Held lock(world_->mutex);
    inner_.reset();
  }
  OperationState advance() override {
    const Held lock(world_->mutex);
    return inner_->advance();
  }
  void cancel() override {
    const Held lock(world_->mutex);
    inner_->cancel();
  }
  const Error* failure() const override {
    const Held lock(world_->mutex);
    return inner_->failure();
  }

 private:
  const std::shared_ptr<World> world_;
  OperationPtr inner_;
};

class SettlingTransport final : public simulation::LockedTransport {
 public:
  SettlingTransport(std::shared_ptr<World> world, SimBackend& end, int descriptor)
      : LockedTransport(world->mutex),
        world_(std::move(world)),
        end_(end),
        descriptor_(descriptor) {}
  bool progress() override {
    const Held lock(world_->mutex);
    uint64_t rung = 0;
    static_cast<void>(!::read(descriptor_, &rung, sizeof rung));
    world_->settle();
    return end_.progress();
  }
  bool arm() override {
    const Held lock(world_->mutex);
    world_->settle();
    return end_.arm();
  }
  int descriptor() const override { return descriptor_; }
  void abort(const Error& error) noexcept override {
    const Held lock(world_->mutex);
    end_.abort(error);
  }
  void goodbye(double seconds) noexcept override {
    const Held lock(world_->mutex);
    inner().goodbye(seconds);
    world_->settle();
  }

 private:
  Transport& inner() const override { return *end_.transport(); }

  const std::shared_ptr<World> world_;
  SimBackend& end_;
  const int descriptor_;
};

class LockedBackend final : public Backend {
 public:
  LockedBackend(std::shared_ptr<World> world, int rank)
      : world_(std::move(world)),
        descriptor_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
        end_(world_->net.make_end(rank)),
        transport_(world_, *end_, descriptor_) {
    end_->on_wake = [this] {
      const uint64_t one = 1;
      static_cast<void>(!::write(descriptor_, &one, sizeof one));
    };
  }
  ~LockedBackend() override {
    const Held lock(world_->mutex);
    end_.reset();
    ::close(descriptor_);
  }
  Capabilities capabilities() const override { return end_->capabilities(); }
  std::unique_ptr<Region> allocate(size_t bytes, Device device) override {
    const Held lock(world_->mutex);
    return end_->allocate(bytes, device);
  }
  bool packs_itself(const Collective& collective, const Launch& launch) const override {
    return end_->packs_itself(collective, launch);
  }
  OperationPtr start(const Collective& collective, const Launch& launch) override {
    const Held lock(world_->mutex);
    return OperationPtr(new LockedOperation(world_, end_->start(collective, launch)));
  }
  bool works_elsewhere() const override { return end_->works_elsewhere(); }
  std::string_view algorithm(const Collective& collective) const override {
    return end_->algorithm(collective);
  }
  Transport* transport() override { return &transport_; }
  bool progress() override { return transport_.progress(); }
  bool arm() override { return transport_.arm(); }
  int descriptor() const override { return descriptor_; }
  void abort(const Error& error) noexcept override { transport_.abort(error); }

 private:
  const std::shared_ptr<World> world_;
  const int descriptor_;
  std::unique_ptr<SimBackend> end_;
  SettlingTransport transport_;
};

BackendMaker maker(const std::string& name, const SimTraits& traits) {
  return {name, [traits](int size) {
            const auto world = std::make_shared<World>(size, traits);
            Backends ends;
            for (int rank = 0; rank < size; ++rank)
              ends.push_back(std::make_unique<LockedBackend>(world, rank));
            return ends;
          }};
}

// This suite cannot ask for device memory and streams, because the simulated backend has none.
INSTANTIATE_TEST_SUITE_P(Simulated, BackendConformance,
                         testing::Values(maker("plain", {}), maker("packs", {.packs = true}),
                                         maker("elsewhere", {.works_elsewhere = true, .salt = 7}),
                                         maker("stubborn", {.cannot_cancel = true,
                                                            .fails_before_reason = true})));

}  // namespace
}  // namespace tutti::test
