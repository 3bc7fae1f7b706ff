#include "tutti/backends/shared/pairs.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "tutti/base/error.h"

namespace tutti {

namespace {

std::vector<PairWords::Word*> words_at(const std::vector<std::byte*>& blocks) {
  std::vector<PairWords::Word*> words;
  for (auto* block : blocks) words.push_back(reinterpret_cast<PairWords::Word*>(block));
  return words;
}

}  // namespace

/// The shared memory of two ranks. Their Pipeline numbers the sender 0 and the receiver 1.
class Pairs::Memory final : public SharedMemory {
 public:
  Memory(SharedMemory& all, int sender, int receiver) : all_(all), ranks_{sender, receiver} {}
  const std::vector<int>& ranks() const { return ranks_; }
  std::unique_ptr<Region> allocate(size_t bytes) override { return all_.allocate(bytes); }
  std::unique_ptr<Region> allocate_for_good(size_t bytes) override {
    return all_.allocate_for_good(bytes);
  }
  uint64_t place_of(const std::byte* data, size_t bytes) const override {
    return all_.place_of(data, bytes);
  }
  std::byte* at(int rank, uint64_t place, size_t bytes) override {
    return all_.at(of(rank), place, bytes);
  }
  std::byte* first(int rank) override { return all_.first(of(rank)); }
  void ring(int rank) override { all_.ring(of(rank)); }

 private:
  int of(int rank) const { return ranks_[static_cast<size_t>(rank)]; }
  SharedMemory& all_;
  const std::vector<int> ranks_;
};

/// A send or receive of this rank that waits for the peer's first send or receive in their pair.
class Pairs::FirstCall final : public Operation {
 public:
  FirstCall(Pairs& pairs, const Collective& collective, const Launch& launch)
      : pairs_(pairs), collective_(collective), launch_(launch) {
    launch_.spins = 0;
    pairs_.awaiting_.push_back(this);
  }
  ~FirstCall() override { leave(); }

  OperationState advance() override {
    if (over_) return *over_;
    if (operation_) return operation_->advance();
    if (pairs_.aborted_.load(std::memory_order_relaxed)) return end(OperationState::failed);
    switch (pairs_.meet(peer())) {
      case Meeting::awaited:
        return OperationState::pending;
      case Meeting::refused:
        why_ = Error(ErrorCode::out_of_memory,
                     fmt::format("rank {} or rank {} has no shared memory for the blocking sends "
                                 "and receives between the two ({} bytes each); free memory, raise "
                                 "its limit, or call send() and recv(), which need none",
                                 pairs_.rank_, peer(), Pipeline::pair_bytes(pairs_.geometry_)));
        return end(OperationState::failed);
      case Meeting::met:
        break;
    }
    leave();
    operation_ = pairs_.start_met(collective_, launch_);
    return operation_ ? operation_->advance() : end(OperationState::done);
  }
  void cancel() override {
    if (over_) return;
    if (operation_) return operation_->cancel();
    end(OperationState::failed);
  }
  const Error* failure() const override {
    if (why_) return &*why_;
    return operation_ ? operation_->failure() : nullptr;
  }
  bool lacks_ranks() const override { return !operation_ || operation_->lacks_ranks(); }
  int peer() const { return collective_.root; }

 private:
  OperationState end(OperationState state) {
    leave();
    over_ = state;
    return state;
  }
  void leave() { std::erase(pairs_.awaiting_, this); }

  Pairs& pairs_;
  const Collective collective_;
  Launch launch_;
  OperationPtr operation_;
  std::optional<OperationState> over_;
  std::optional<Error> why_;
};

Pairs::Pairs(int rank, SharedMemory& memory, const std::vector<std::byte*>& words,
             std::vector<SleepLine*> sleepers, const Geometry& geometry)
    : rank_(rank),
      memory_(memory),
      geometry_(geometry),
      sleepers_(std::move(sleepers)),
      words_(rank, words_at(words), sleepers_),
      pairs_(words.size()) {}

Pairs::~Pairs() = default;

Pairs::Meeting Pairs::meet(int peer) {
  auto& pair = pairs_[static_cast<size_t>(peer)];
  if (pair.to) return Meeting::met;
  if (!words_.has_told(peer)) {
    std::optional<uint64_t> place;
    try {
      // The memory stays readable after the sender is gone: the sender may finish and leave while
      // the receiver still reads the last chunks.
      pair.region = memory_.allocate_for_good(Pipeline::pair_bytes(geometry_));
      place = pair.region->handle().offset;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::out_of_memory) throw;
    }
    words_.tell(peer, place, [&] { memory_.ring(peer); });
  }
  const auto meeting = words_.meeting(peer);
  if (meeting != Meeting::met) return meeting;
  auto* mine = pair.region->data();
  auto* theirs = memory_.at(peer, words_.place_of(peer), Pipeline::pair_bytes(geometry_));
  const size_t receiver_at = Pipeline::sender_bytes(geometry_);
  pair.sent = std::make_unique<Memory>(memory_, rank_, peer);
  pair.received = std::make_unique<Memory>(memory_, peer, rank_);
  pair.from = make_pipeline(*pair.received, theirs, mine + receiver_at);
  pair.to = make_pipeline(*pair.sent, mine, theirs + receiver_at);
  met_.push_back(peer);
  return Meeting::met;
}

std::unique_ptr<Pipeline> Pairs::make_pipeline(Memory& memory, std::byte* sender,
                                               std::byte* receiver) {
  const auto& ranks = memory.ranks();
  std::vector<SleepLine*> sleepers;
  for (const int rank : ranks) sleepers.push_back(sleepers_[static_cast<size_t>(rank)]);
  return std::make_unique<Pipeline>(ranks[0] == rank_ ? 0 : 1, memory,
                                    std::vector<std::byte*>{sender, receiver}, std::move(sleepers),
                                    geometry_, ranks);
}

Pipeline& Pairs::pipeline_of(const Collective& collective) {
  auto& pair = pairs_[static_cast<size_t>(collective.root)];
  return collective.kind == CollectiveKind::send ? *pair.to : *pair.from;
}

OperationPtr Pairs::start_met(const Collective& collective, const Launch& launch) {
  Collective broadcast = collective;
  broadcast.kind = CollectiveKind::broadcast;
  broadcast.root = 0;
  Launch told = launch;
  told.tag = 0;
  return pipeline_of(collective).start(broadcast, told);
}

OperationPtr Pairs::start(const Collective& collective, const Launch& launch) {
  if (meet(collective.root) == Meeting::met) return start_met(collective, launch);
  return OperationPtr(new FirstCall(*this, collective, launch));
}

bool Pairs::progress() {
  bool moved = false;
  const bool aborted = aborted_.load(std::memory_order_relaxed);
  for (const int peer : met_) {
    const auto& pair = pairs_[static_cast<size_t>(peer)];
    for (auto* pipeline : {pair.to.get(), pair.from.get()}) {
      if (aborted) pipeline->abort();
      moved |= pipeline->progress();
    }
  }
  return moved;
}

bool Pairs::may_sleep() {
  for (const int peer : met_) {
    const auto& pair = pairs_[static_cast<size_t>(peer)];
    if (!pair.to->may_sleep() || !pair.from->may_sleep()) return false;
  }
  return std::ranges::all_of(awaiting_,
                             [&](const FirstCall* call) { return words_.is_silent(call->peer()); });
}

bool Pairs::idle() const {
  return awaiting_.empty() && std::ranges::all_of(met_, [&](int peer) {
           const auto& pair = pairs_[static_cast<size_t>(peer)];
           return pair.to->idle() && pair.from->idle();
         });
}

std::vector<int> Pairs::missing() const {
  std::vector<int> ranks;
  for (const auto* call : awaiting_) ranks.push_back(call->peer());
  for (const int peer : met_) {
    const auto& pair = pairs_[static_cast<size_t>(peer)];
    if (!pair.to->missing().empty() || !pair.from->missing().empty()) ranks.push_back(peer);
  }
  std::ranges::sort(ranks);
  const auto [end, last] = std::ranges::unique(ranks);
  ranks.erase(end, last);
  return ranks;
}

void Pairs::count(TransportCounters& counters) const {
  for (const int peer : met_) {
    const auto& pair = pairs_[static_cast<size_t>(peer)];
    pair.to->count(counters);
    pair.from->count(counters);
  }
}

}  // namespace tutti
