#include <fmt/format.h>

#include <array>
#include <optional>

#include "tutti/backends/shared/pairs.h"
#include "tutti/backends/shared/pipeline.h"
#include "tutti/backends/shared/shared_memory.h"
#include "tutti/base/error.h"
#include "tutti/collectives/chooser.h"

namespace tutti {

namespace {

/// Each queue has a Pipeline of all ranks. Blocking sends and receives use the Pipeline of their
/// two ranks. Every other operation goes to `rest_`.
class SharedMemoryBackend final : public Backend {
 public:
  SharedMemoryBackend(const Context& context, std::unique_ptr<Backend> rest,
                      std::unique_ptr<SharedMemory> memory, const Geometry& geometry)
      : rest_(std::move(rest)),
        memory_(std::move(memory)),
        geometry_(geometry),
        rank_(context.rank),
        size_(context.size),
        capabilities_(rest_->capabilities()),
        sleeper_(reinterpret_cast<SleepLine*>(memory_->first(context.rank))) {
    const Chooser chooser(context.algorithms);
    for (int kind = 0; kind < kCollectiveKindCount; ++kind)
      is_overridden_[static_cast<size_t>(kind)] =
          chooser.overrides(static_cast<CollectiveKind>(kind));
    std::vector<SleepLine*> sleepers;
    for (int rank = 0; rank < size_; ++rank)
      sleepers.push_back(reinterpret_cast<SleepLine*>(memory_->first(rank)));
    for (int queue = 0; queue < kQueues; ++queue) {
      std::vector<std::byte*> blocks;
      for (int rank = 0; rank < size_; ++rank)
        blocks.push_back(memory_->first(rank) + kHeaderBytes +
                         static_cast<size_t>(queue) * Pipeline::block_bytes(geometry));
      pipelines_.push_back(std::make_unique<Pipeline>(context.rank, *memory_, std::move(blocks),
                                                      sleepers, geometry));
    }
    if (sizeof(SleepLine) + Pairs::bytes_of_words(size_) > kHeaderBytes) return;
    std::vector<std::byte*> words;
    for (int rank = 0; rank < size_; ++rank)
      words.push_back(memory_->first(rank) + sizeof(SleepLine));
    pairs_.emplace(context.rank, *memory_, words, std::move(sleepers), geometry);
  }

  static size_t block_bytes(const Geometry& geometry) {
    return kHeaderBytes + kQueues * Pipeline::block_bytes(geometry);
  }

  bool progress() override {
    if (is_asleep_) {
      sleeper_->take_down();
      is_asleep_ = false;
    }
    bool moved = rest_->progress();
    for (auto& pipeline : pipelines_) moved |= pipeline->progress();
    if (pairs_) moved |= pairs_->progress();
    return moved;
  }
  bool arm() override {
    if (!rest_->arm()) return false;
    bool all_idle = !pairs_ || pairs_->idle();
    for (const auto& pipeline : pipelines_) all_idle &= pipeline->idle();
    if (all_idle) return true;
    // The sleep line is set before the last check. So either this check sees what a peer publishes,
    // or the peer sees that this rank sleeps.
    sleeper_->put_up();
    is_asleep_ = true;
    for (const auto& pipeline : pipelines_)
      if (!pipeline->may_sleep()) return false;
    return !pairs_ || pairs_->may_sleep();
  }
  int descriptor() const override { return rest_->descriptor(); }
  void abort(const Error& error) noexcept override {
    for (auto& pipeline : pipelines_) pipeline->abort();
    if (pairs_) pairs_->abort();
    rest_->abort(error);
  }

  Capabilities capabilities() const override { return capabilities_; }
  std::unique_ptr<Region> allocate(size_t bytes, Device device) override {
    if (device.kind != DeviceKind::cpu) return rest_->allocate(bytes, device);
    return memory_->allocate(bytes);
  }
  bool shares(const std::byte* data, size_t bytes) const override {
    return memory_->place_of(data, bytes) != SharedMemory::kNowhere;
  }
  bool packs_itself(const Collective& collective, const Launch& launch) const override {
    if (is_pair(collective.kind)) return is_blocking_pair(launch);
    return launch.queue != kNoQueue && is_for_pipelines(collective);
  }

  OperationPtr start(const Collective& collective, const Launch& launch) override {
    if (!packs_itself(collective, launch) || !is_valid(collective.dtype) ||
        (reduces(collective.kind) && !can_reduce(collective.dtype, collective.op)))
      return rest_->start(collective, launch);
    if (is_pair(collective.kind)) return pairs_->start(collective, launch);
    require_valid({collective.kind,
                   rank_,
                   size_,
                   collective.root,
                   collective.send_counts,
                   collective.recv_counts,
                   {},
                   false});
    return pipelines_[static_cast<size_t>(launch.queue)]->start(collective, launch);
  }
  Traffic predict(const Collective& collective, const Launch& launch) override {
    if (!packs_itself(collective, launch) || is_pair(collective.kind))
      return rest_->predict(collective, launch);
    return pipelines_[static_cast<size_t>(launch.queue)]->predict(collective, launch);
  }
  std::string_view algorithm(const Collective& collective) const override {
    if (!is_for_pipelines(collective)) return rest_->algorithm(collective);
    return Pipeline::algorithm(collective, size_, geometry_);
  }
  std::vector<int> missing(int queue) const override {
    auto ranks = pipelines_[static_cast<size_t>(queue)]->missing();
    return ranks.empty() && pairs_ ? pairs_->missing() : ranks;
  }
  Transport* transport() override { return rest_->transport(); }
  TransportCounters counters() override {
    auto counters = rest_->counters();
    for (const auto& pipeline : pipelines_) pipeline->count(counters);
    if (pairs_) pairs_->count(counters);
    return counters;
  }

 private:
  static constexpr size_t kHeaderBytes = 4096;

  bool is_overridden(CollectiveKind kind) const {
    return is_overridden_[static_cast<size_t>(kind)];
  }
  // Returns whether a send or receive goes through Pairs. Only blocking sends and receives do; all
  // others are matched by name. Both ranks get the same result.
  bool is_blocking_pair(const Launch& launch) const {
    return pairs_ && launch.queue != kNoQueue && !launch.name.empty() &&
           !is_overridden(CollectiveKind::send) && !is_overridden(CollectiveKind::recv);
  }
  // Returns whether the queues of all ranks run this collective. Sends and receives are left out,
  // because they have no position in the order that is common to all ranks. Kinds that exchange
  // parts are left out if the length of the longest part of all ranks is not known.
  bool is_for_pipelines(const Collective& collective) const {
    if (is_overridden(collective.kind)) return false;
    if (exchanges_parts(collective.kind)) return collective.longest >= 0;
    return !is_pair(collective.kind);
  }

  const std::unique_ptr<Backend> rest_;
  const std::unique_ptr<SharedMemory> memory_;
  const Geometry geometry_;
  const int rank_;
  const int size_;
  const Capabilities capabilities_;
  SleepLine* const sleeper_;
  bool is_asleep_ = false;
  // By kind: true if the user's scores name a schedule, which then runs for all sizes.
  std::array<bool, kCollectiveKindCount> is_overridden_{};
  std::vector<std::unique_ptr<Pipeline>> pipelines_;
  // empty if there are too many ranks for the PairWords to fit into the first block
  std::optional<Pairs> pairs_;
};

}  // namespace

std::unique_ptr<Backend> make_shared_memory_backend(const Context& context,
                                                    std::unique_ptr<Backend> rest,
                                                    std::unique_ptr<SharedMemory> memory,
                                                    const Geometry& geometry) {
  return std::make_unique<SharedMemoryBackend>(context, std::move(rest), std::move(memory),
                                               geometry);
}

size_t shared_block_bytes(const Geometry& geometry) {
  return SharedMemoryBackend::block_bytes(geometry);
}

}  // namespace tutti
