#include "tutti/backends/peer/peer_exchange.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "tutti/backends/peer/peer_kinds.h"
#include "tutti/base/process/fork_guard.h"
#include "tutti/base/process/process_state.h"

namespace tutti {

namespace {

// This tag is above all tags of operations, and differs from the tags of other users of
// MessageLinks.
constexpr uint64_t kPeerTag = uint64_t{0xA3} << 56;
// The number of remembered tags. It exceeds the number of operations that all ranks can run at the
// same time.
constexpr size_t kMostRemembered = 4096;
constexpr double kPeerDrainSeconds = 3;
constexpr size_t kLeastScratch = 64 << 10;

}  // namespace

PeerExchange::PeerExchange(DeviceRuntime& runtime, Device device, std::shared_ptr<DeviceBell> bell,
                           std::unique_ptr<OwnWords> words, std::vector<PeerSeen> peers,
                           Transport& transport)
    : runtime_(runtime),
      device_(device),
      bell_(std::move(bell)),
      own_(std::move(words)),
      peers_(std::move(peers)),
      rank_(transport.rank()),
      size_(transport.size()),
      memory_(runtime, device,
              std::any_of(peers_.begin(), peers_.end(),
                          [](const auto& peer) { return !peer.is_near(); })),
      links_(transport, kPeerTag),
      packing_(runtime.create_stream(device)),
      reducing_(runtime.create_stream(device)),
      ending_(runtime.create_stream(device)),
      event_(runtime.create_event(device)),
      packed_turn_(load_word(own_->words().packed)),
      begun_turn_(std::max(load_word(own_->words().begun), load_word(own_->words().reduced))),
      awaited_packed_(static_cast<size_t>(size_)),
      awaited_reduced_(static_cast<size_t>(size_)),
      is_gone_(static_cast<size_t>(size_)) {
  for (int peer = 0; peer < size_; ++peer)
    if (peer != rank_) links_.open(peer);
}

PeerExchange::~PeerExchange() {
  const auto deadline = breaking_off_.value_or(Deadline::after(kPeerDrainSeconds));
  if (!is_closed_) store_word(own_->words().closed, load_word(own_->words().closed) + 1);
  if (!drain(deadline)) {
    // The device may still execute commands that use this memory.
    own_->keep();
    memory_.keep();
    for (const auto& peer : peers_)
      if (peer.words) peer.words->keep();
    for (auto& region : free_scratch_) keep_for_good(region.release());
  }
  runtime_.destroy_event(event_);
  for (const auto stream : {packing_, reducing_, ending_}) runtime_.destroy_stream(stream);
}

// --- operations ---------------------------------------------------------------------------------

PeerOperation& PeerExchange::operation_of(uint64_t tag) {
  if (const auto found = known_.find(tag); found != known_.end()) return *found->second;
  if (free_.empty()) {
    operations_.push_back(std::make_unique<PeerOperation>(*this));
    free_.push_back(operations_.back().get());
  }
  auto& operation = *free_.back();
  free_.pop_back();
  operation.open(tag);
  known_.emplace(tag, &operation);
  return operation;
}

bool PeerExchange::was_dropped(uint64_t tag) const {
  return std::find(dropped_.rbegin(), dropped_.rend(), tag) != dropped_.rend();
}

OperationPtr PeerExchange::start(const Collective& collective, const Launch& launch) {
  auto& operation = operation_of(launch.tag);
  OperationPtr held(&operation);
  operation.start(collective, launch, was_dropped(launch.tag));
  return held;
}

void PeerExchange::forget(PeerOperation& operation) {
  known_.erase(operation.tag());
  operation.device_ = {};
  operation.collective_ = {};
  free_.push_back(&operation);
}

void PeerExchange::recycle(PeerOperation& operation) {
  // When this returns, the caller frees the operation's memory. So no stream may use that memory
  // any more.
  if (!operation.is_quiet() && !break_off() && !operation.is_quiet()) {
    operation.is_abandoned_ = true;
    if (operation.scratch_) keep_for_good(operation.scratch_.release());
    operation.device_ = {};
    known_.erase(operation.tag());
    return;
  }
  if (operation.scratch_) free_scratch_.push_back(std::move(operation.scratch_));
  forget(operation);
}

std::unique_ptr<Region> PeerExchange::take_scratch(size_t bytes) {
  size_t size = kLeastScratch;
  while (size < bytes) size *= 2;
  const auto found = std::find_if(free_scratch_.begin(), free_scratch_.end(),
                                  [&](const auto& region) { return region->bytes() == size; });
  if (found == free_scratch_.end()) return memory_.allocate(size);
  auto region = std::move(*found);
  free_scratch_.erase(found);
  return region;
}

bool PeerExchange::progress() {
  const bool moved = links_.progress([this](int from, const PeerMessage& message) {
    const bool is_known = known_.contains(message.tag);
    // This rank has already released the operation that the message is about.
    if (!is_known && message.kind != PeerMessage::Kind::drop &&
        (message.kind == PeerMessage::Kind::answer || was_dropped(message.tag)))
      return;
    auto& operation = operation_of(message.tag);
    operation.on_message(from, message);
    if (message.kind != PeerMessage::Kind::drop || operation.has_started()) return;
    if (!was_dropped(message.tag)) dropped_.push_back(message.tag);
    if (dropped_.size() > kMostRemembered) dropped_.pop_front();
    forget(operation);
  });
  if (!moved || !links_.has_lost_peer()) return moved;
  for (int peer = 0; peer < size_; ++peer) {
    if (is_gone_[static_cast<size_t>(peer)] || !links_.is_gone(peer)) continue;
    is_gone_[static_cast<size_t>(peer)] = true;
    for (const auto& [tag, operation] : known_) operation->on_gone(peer);
  }
  return moved;
}

// --- turns and words ----------------------------------------------------------------------------

uint64_t PeerExchange::pack_turn() {
  runtime_.write_word(packing_, &own_->words().packed, ++packed_turn_);
  return packed_turn_;
}

// A rank that closes stores `closed` and then reads its peers' `begun`. A rank that begins a turn
// stores `begun` and then reads the peers' `closed`. So at least one of two such ranks sees the
// other's store.
uint64_t PeerExchange::begin_turn(const Collective& collective) {
  store_word(own_->words().begun, ++begun_turn_);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_ || !reads_from(collective, rank_, peer) ||
        load_word(words_of(peer).closed) <= peers_[static_cast<size_t>(peer)].generation)
      continue;
    end_turn(begun_turn_);
    return 0;
  }
  return begun_turn_;
}

void PeerExchange::end_turn(uint64_t turn) {
  runtime_.write_word(reducing_, &own_->words().reduced, turn);
}

void PeerExchange::await_packed(int rank, uint64_t mark) {
  auto& highest = awaited_packed_[static_cast<size_t>(rank)];
  highest = std::max(highest, mark);
  awaited_.push_back({&words_of(rank).packed, mark});
}

void PeerExchange::await_reduced(int rank, uint64_t mark) {
  auto& highest = awaited_reduced_[static_cast<size_t>(rank)];
  highest = std::max(highest, mark);
  awaited_.push_back({&words_of(rank).reduced, mark});
}

// Makes the stream wait until every word in awaited_ (a counter of a peer) has reached its value.
// Words that already have it are left out. A command on a stream costs the host more than a load,
// and ranks of one process wait for each other's commands.
void PeerExchange::hold(StreamRef stream) {
  std::erase_if(awaited_,
                [](const auto& awaited) { return load_word(*awaited.word) >= awaited.value; });
  if (!awaited_.empty()) runtime_.wait_words(stream, awaited_);
  awaited_.clear();
}

void PeerExchange::ring_after(StreamRef stream) {
  runtime_.host_function(stream, [bell = bell_] { bell->ring(); });
}

// --- the end ------------------------------------------------------------------------------------

void PeerExchange::abort() noexcept {
  is_aborted_ = true;
  bell_->ring();
}

bool PeerExchange::is_poisoned() const {
  for (int peer = 0; peer < size_; ++peer)
    if (load_word(words_of(peer).poisoned) != 0) return true;
  return false;
}

bool PeerExchange::has_died(int peer) const {
  const auto& seen = peers_[static_cast<size_t>(peer)];
  return !seen.is_near() && process_state(seen.pid) == ProcessState::ended;
}

// Frees the streams that wait for a dead process. A dead process stores no more words, so this rank
// stores the awaited values in its place. It sets `poisoned` first, so that no rank takes the data
// for a result. Words of a living process are left alone, because that process uses them for its
// next Communicator. A process that stored all awaited values before it died is not poisoned: peers
// that close later may still complete those operations.
void PeerExchange::free_streams_of_the_dead() {
  for (int peer = 0; peer < size_; ++peer) {
    const auto at = static_cast<size_t>(peer);
    if (peer == rank_ || !has_died(peer)) continue;
    auto& words = words_of(peer);
    if (load_word(words.packed) >= awaited_packed_[at] &&
        load_word(words.reduced) >= awaited_reduced_[at])
      continue;
    store_word(words.poisoned, 1);
    if (load_word(words.packed) < awaited_packed_[at])
      store_word(words.packed, awaited_packed_[at]);
    if (load_word(words.reduced) < awaited_reduced_[at])
      store_word(words.reduced, awaited_reduced_[at]);
  }
}

bool PeerExchange::break_off() {
  is_aborted_ = true;
  if (!is_closed_) {
    is_closed_ = true;
    store_word(own_->words().closed, load_word(own_->words().closed) + 1);
  }
  // A running operation may wait for a stream of the user. That stream may wait until an earlier
  // operation opens its gate. So the gates of all operations are opened.
  for (const auto& operation : operations_) operation->open_gates();
  // All waits of the cleanup share one deadline.
  if (!breaking_off_) breaking_off_ = Deadline::after(kPeerDrainSeconds);
  return drain(*breaking_off_) && await_peers(*breaking_off_);
}

template <class Condition>
bool PeerExchange::wait_until(const Condition& condition, Deadline deadline) {
  while (!condition()) {
    if (deadline.passed()) return false;
    // A peer's process may end while this rank waits, perhaps after its connection has already
    // ended.
    free_streams_of_the_dead();
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}

bool PeerExchange::drain(Deadline deadline) noexcept {
  try {
    for (const auto stream : {packing_, reducing_, ending_}) {
      runtime_.record(event_, stream);
      if (!wait_until([&] { return runtime_.reached(event_); }, deadline)) return false;
    }
    return true;
  } catch (const std::exception&) {
    // After a sticky error of CUDA every call on the device fails. The first failure was reported
    // with its operation. This function is called during cleanup, which must go on.
    return false;
  }
}

bool PeerExchange::await_peers(Deadline deadline) noexcept {
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    const auto& words = words_of(peer);
    const auto begun = load_word(words.begun);
    const auto is_over = [&] { return load_word(words.reduced) >= begun || has_died(peer); };
    if (!wait_until(is_over, deadline)) return false;
  }
  return true;
}

}  // namespace tutti
