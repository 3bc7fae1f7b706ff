#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "tests/backends/conformance/transport_conformance.h"
#include "tests/simulation/links/locked_transport.h"
#include "tests/simulation/links/sim_network.h"
#include "tutti/backends/stream/stream_core.h"

// The simulated links keep the promises of every transport, so they are no easier than real ones.
// The threads of the suite share one world behind a lock. While they sleep, another thread runs its
// events.

namespace tutti::simulation {
namespace {

using test::TransportConformance;
using test::TransportMaker;
using test::Transports;

// A check that moves nothing takes as long as everything under way. The suite assumes rest when
// nothing moves within a few checks, and a busy machine allows only few.
constexpr auto kLook = std::chrono::milliseconds(3);

class LockedWorld {
 public:
  LockedWorld(uint64_t seed, int size, const LinkShape& shape)
      : network_(
            events_, seed, size, [&](int, int) { return shape; }, counters_),
        thread_([this] { run(); }) {}
  ~LockedWorld() {
    {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  std::recursive_mutex& mutex() { return mutex_; }
  SimNetwork& network() { return network_; }
  void look() {
    bool is_over = false;
    events_.after(kLook, [&] { is_over = true; });
    while (!is_over) events_.run_next();
  }
  void asleep() { changed_.notify_all(); }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (!is_over_) {
      // The threads of the suite get the lock between any two events.
      if (!events_.run_next()) {
        changed_.wait(lock);
        continue;
      }
      lock.unlock();
      std::this_thread::yield();
      lock.lock();
    }
  }

  std::recursive_mutex mutex_;
  Events events_;
  LinkCounters counters_;
  SimNetwork network_;
  bool is_over_ = false;
  std::condition_variable_any changed_;
  std::thread thread_;
};

// A StreamCore in the world. A thread sleeps on its bell. Only an armed link of its own or an abort
// rings that bell.
class SleepingTransport final : public LockedTransport {
 public:
  SleepingTransport(std::shared_ptr<LockedWorld> world, int rank)
      : LockedTransport(world->mutex()), world_(std::move(world)) {
    const Held lock(world_->mutex());
    core_ = std::make_unique<StreamCore>(
        rank, world_->network().channels(rank, [this] { bell_.ring(); }));
  }
  ~SleepingTransport() override {
    const Held lock(world_->mutex());
    core_.reset();
    world_->asleep();
  }

  bool progress() override {
    const Held lock(world_->mutex());
    bell_.silence();
    const bool moved = core_->progress();
    if (!moved) world_->look();
    return moved;
  }
  bool arm() override {
    const Held lock(world_->mutex());
    const bool is_armed = core_->arm();
    world_->asleep();
    return is_armed;
  }
  int descriptor() const override { return bell_.descriptor(); }
  void abort(const Error& error) noexcept override {
    const Held lock(world_->mutex());
    core_->abort(error);
    bell_.ring();
  }
  void goodbye(double seconds) noexcept override {
    const auto deadline = Deadline::after(seconds);
    {
      const Held lock(world_->mutex());
      core_->begin_goodbye();
    }
    while (!deadline.passed()) {
      progress();
      const Held lock(world_->mutex());
      if (core_->is_flushed()) return;
    }
  }

 private:
  Transport& inner() const override { return *core_; }

  const std::shared_ptr<LockedWorld> world_;
  Bell bell_;
  std::unique_ptr<StreamCore> core_;
};

TransportMaker maker_of(const std::string& name, const LinkShape& shape) {
  return {name, "simulated", [shape](int size) {
            static std::atomic<uint64_t> seed{1};
            const auto world = std::make_shared<LockedWorld>(seed++, size, shape);
            Transports transports;
            for (int rank = 0; rank < size; ++rank)
              transports.push_back(std::make_unique<SleepingTransport>(world, rank));
            return transports;
          }};
}

// The megabytes of the suite travel in few pieces.
INSTANTIATE_TEST_SUITE_P(Simulated, TransportConformance,
                         testing::Values(maker_of("Plain", {}),
                                         maker_of("SplitAnywhere", {.buffer = 100'000,
                                                                    .short_writes = 300,
                                                                    .short_reads = 300,
                                                                    .late = 200}),
                                         maker_of("Slow",
                                                  {.latency = std::chrono::microseconds(100),
                                                   .bytes_per_second = 100'000'000,
                                                   .buffer = 200'000,
                                                   .late = 100,
                                                   .writing_fails = true})),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tutti::simulation
