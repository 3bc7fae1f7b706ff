#include "tests/simulation/world/shared_net.h"

#include <fmt/format.h>

#include <utility>

#include "tests/backends/support/forwarding_backend.h"

namespace tutti::simulation {

namespace {

Geometry geometry_of(const World& world) {
  return {world.chunk_bytes, world.one_shot_bytes, world.in_place_bytes};
}

/// The backend over links. It reports whether it would let its rank sleep.
class RestBackend final : public test::TransparentBackend {
 public:
  using TransparentBackend::TransparentBackend;
  bool lets_sleep() const { return lets_sleep_; }
  bool arm() override { return lets_sleep_ = rest().arm(); }
  int descriptor() const override { return -1; }

 private:
  bool lets_sleep_ = false;
};

}  // namespace

/// The shipped backend of one rank, which also records its events in shared memory.
class MemoryBackend final : public test::TransparentBackend {
 public:
  MemoryBackend(SharedNet& net, int rank, std::unique_ptr<Backend> inner, RestBackend& over_links,
                std::function<void()> on_wake)
      : TransparentBackend(std::move(inner)),
        net_(net),
        rank_(rank),
        over_links_(over_links),
        on_wake_(std::move(on_wake)) {}

  void ring() {
    net_.sees(Sight::ring);
    sleeps_unrung_ = false;
    on_wake_();
  }
  /// Called before anything moves. Checks that a rank which armed its backend, and was not woken,
  /// had nothing to do in shared memory.
  void wakes() {
    if (!std::exchange(sleeps_unrung_, false)) return;
    if (!rest().arm() && over_links_.lets_sleep())
      net_.broken_promises.push_back(
          fmt::format("rank {} could go on in shared memory, and nobody rang it", rank_));
  }
  void sees(Sight sight) { net_.sees(sight); }

  bool progress() override {
    wakes();
    return rest().progress();
  }
  bool arm() override {
    wakes();
    return sleeps_unrung_ = rest().arm();
  }
  int descriptor() const override { return -1; }
  OperationPtr start(const Collective& collective, const Launch& launch) override;

 private:
  class Watched;
  void note_start(const Collective& collective, const Launch& launch);

  SharedNet& net_;
  const int rank_;
  RestBackend& over_links_;  // the inner one owns it
  const std::function<void()> on_wake_;
  bool sleeps_unrung_ = false;
};

/// An operation in shared memory that records its events.
class MemoryBackend::Watched final : public test::ForwardingOperation {
 public:
  Watched(MemoryBackend& backend, OperationPtr rest)
      : ForwardingOperation(std::move(rest)), backend_(backend) {}
  OperationState advance() override {
    backend_.wakes();
    state_ = ForwardingOperation::advance();
    if (state_ == OperationState::vetoed) backend_.sees(Sight::veto);
    return state_;
  }
  void cancel() override {
    if (state_ == OperationState::pending) backend_.sees(Sight::cancel);
    ForwardingOperation::cancel();
  }

 private:
  MemoryBackend& backend_;
  OperationState state_ = OperationState::pending;
};

OperationPtr MemoryBackend::start(const Collective& collective, const Launch& launch) {
  wakes();
  const bool is_here = rest().packs_itself(collective, launch);
  if (is_here) note_start(collective, launch);
  auto operation = rest().start(collective, launch);
  if (!is_here) return operation;
  if (!operation) {
    sees(Sight::done_at_once);
    return operation;
  }
  return OperationPtr(new Watched(*this, std::move(operation)));
}

void MemoryBackend::note_start(const Collective& collective, const Launch& launch) {
  constexpr int kBlocking = 2;
  const bool is_pair =
      collective.kind == CollectiveKind::send || collective.kind == CollectiveKind::recv;
  sees(Sight::start);
  if (is_pair) sees(Sight::pair);
  if (launch.queue == kBlocking) sees(Sight::blocking);
  if (launch.contributors > 0 && launch.contributors < net_.world_.size) sees(Sight::join);
  if (!launch.windows.empty()) sees(Sight::direct);
  if (collective.input != nullptr && rest().shares(collective.input, 1)) sees(Sight::shared_input);
  // Two messages may mean an operation without a cut, so only more of them count.
  if (!is_pair && rest().predict(collective, launch).messages > 2) sees(Sight::many_chunks);
  if (is_pair && collective.send_counts[0] * size_of(collective.dtype) > net_.geometry_.chunk_bytes)
    sees(Sight::many_chunks);
}

SharedNet::SharedNet(Events& events, const World& world)
    : StreamNet(events, world),
      world_(world),
      geometry_(geometry_of(world)),
      memory_(world.size, shared_block_bytes(geometry_)),
      ends_(static_cast<size_t>(world.size), nullptr) {}

SharedNet::~SharedNet() = default;

std::unique_ptr<Backend> SharedNet::over(int rank, const Context& context,
                                         std::unique_ptr<Backend> rest, const EndHooks& hooks) {
  auto known = std::make_unique<RestBackend>(std::move(rest));
  auto& kept = *known;
  auto memory = memory_.of(
      rank, [this](int other) { ring(other); },
      [this, rank] {
        if (rank == 0 || rank != world_.lacks_memory) return true;
        sees(Sight::no_memory);
        return false;
      });
  auto end = std::make_unique<MemoryBackend>(
      *this, rank,
      make_shared_memory_backend(context, std::move(known), std::move(memory), geometry_), kept,
      hooks.on_wake);
  ends_[static_cast<size_t>(rank)] = end.get();
  return end;
}

void SharedNet::ring(int rank) { ends_[static_cast<size_t>(rank)]->ring(); }

}  // namespace tutti::simulation
