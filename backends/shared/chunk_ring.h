#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "tutti/backends/shared/sleep_line.h"
#include "tutti/base/sync.h"
#include "tutti/collectives/collective.h"

namespace tutti {

/// The operation that begins with a chunk, as its rank publishes it. It has whole words only: a
/// word that is written in smaller parts than it is read must reach the cache before it can be
/// read.
struct ChunkCall {
  uint64_t how = 0;      // verdict (32 bits), dtype, op, algorithm, kind (8 each)
  uint64_t extent = 0;   // elements (48 bits), root (16)
  uint64_t subject = 0;  // hash of its name, scale and counts; 0: they are agreed on already

  uint32_t verdict() const { return static_cast<uint32_t>(how); }
  DataType dtype() const { return static_cast<DataType>(how >> 32 & 0xff); }
  ReduceOp op() const { return static_cast<ReduceOp>(how >> 40 & 0xff); }
  uint8_t algorithm() const { return static_cast<uint8_t>(how >> 48 & 0xff); }
  CollectiveKind kind() const { return static_cast<CollectiveKind>(how >> 56); }
  int64_t count() const { return static_cast<int64_t>(extent & kMostCount); }
  int root() const { return static_cast<int>(extent >> kCountBits); }
  void tell(CollectiveKind kind, DataType dtype, ReduceOp op, uint8_t algorithm, int64_t elements,
            int root, uint64_t named, uint32_t verdict) {
    how = verdict | static_cast<uint64_t>(dtype) << 32 | static_cast<uint64_t>(op) << 40 |
          static_cast<uint64_t>(algorithm) << 48 | static_cast<uint64_t>(kind) << 56;
    extent = static_cast<uint64_t>(elements) | static_cast<uint64_t>(root) << kCountBits;
    subject = named;
  }
  static constexpr int kCountBits = 48;
  static constexpr uint64_t kMostCount = (uint64_t{1} << kCountBits) - 1;
  // One branch only: this runs between seeing the peers and reducing.
  bool operator==(const ChunkCall& other) const {
    return ((how ^ other.how) | (extent ^ other.extent) | (subject ^ other.subject)) == 0;
  }
};

/// The line in which a rank publishes one of its chunks, in its own memory. No other rank writes to
/// it. A small payload is in the line itself, so that flag and data are one transfer.
template <class Sync>
struct alignas(128) ChunkLineOf {
  typename Sync::template Atomic<uint64_t> in{0};       // the chunk whose input is here, plus one
  typename Sync::template Atomic<uint64_t> retired{0};  // chunks that its rank no longer reads
  ChunkCall call;
  static constexpr size_t kPayload = 88;
  std::byte payload[kPayload];
};
using ChunkLine = ChunkLineOf<Threads>;
static_assert(sizeof(ChunkLine) == 128);

/// The line in which a rank publishes its progress.
template <class Sync>
struct alignas(128) ProgressLineOf {
  typename Sync::template Atomic<uint64_t> out{0};  // the last chunk with a result, plus one
  typename Sync::template Atomic<uint64_t> retired{0};
  typename Sync::template Atomic<uint64_t> given_up{0};  // the first given up chunk, plus one
};
using ProgressLine = ProgressLineOf<Threads>;

/// One rank's view of a queue of chunks that all ranks fill, reduce and drain together. Chunks have
/// growing numbers. Every rank has kSlots slots, which the chunks use in turn. On each rank a chunk
/// passes through these states:
///
///   free --publish_filled--> filled --publish_reduced--> reduced --drained--> drained --> retired
///                               \---------finish_reduced (no third stage)------/
///
///   it may be filled   once all ranks have retired the chunk that was in its slot before
///   it may be reduced  once all ranks have filled it
///   it may be drained  once all ranks have reduced it
///   it is retired      once its rank has published that it is drained: with the next word that it
///                      publishes, or by publish_retired()
///
///   the ring:  flowing --give_up(chunk)--> stopped at that chunk --begin_epoch--> flowing
///              flowing, stopped --abort--> aborted, for good
///
/// A stopped ring fills, reduces and drains only the chunks before the one at which it stopped.
/// Peers neither reduce nor drain a chunk that a rank gave up, because that rank's program may
/// change the memory that they read. Every word has one writer. Numbers only grow, except that a
/// rank may later give up an earlier chunk. One thread at a time uses the ring; any thread may call
/// abort().
template <class Sync, size_t kSlotCount = 4>
class alignas(64) ChunkRingOf {
 public:
  using Line = ChunkLineOf<Sync>;
  using Progress = ProgressLineOf<Sync>;
  using SleepLines = std::vector<SleepLineOf<Sync>*>;
  /// The words of one rank; there is a Peer for this rank too.
  struct Peer {
    Line* lines = nullptr;  // one per slot
    Progress* progress = nullptr;
    uint64_t retired = 0;  // the last value seen
  };
  enum class Stage : uint8_t { none, fill, reduce, drain };

  static constexpr size_t kSlots = kSlotCount;
  static constexpr size_t slot_of(uint64_t chunk) { return chunk % kSlots; }

  /// `sleepers`: one per rank.
  ChunkRingOf(int rank, std::vector<Peer> peers, SleepLines sleepers)
      : peers_(std::move(peers)),
        sleepers_(std::move(sleepers)),
        rank_(static_cast<size_t>(rank)),
        own_lines_(peers_[rank_].lines),
        own_progress_(peers_[rank_].progress) {}

  size_t size() const { return peers_.size(); }
  Line& line(size_t rank, uint64_t chunk) const { return peers_[rank].lines[slot_of(chunk)]; }
  Line& own_line(uint64_t chunk) const { return own_lines_[slot_of(chunk)]; }
  const Progress& own_progress() const { return *own_progress_; }

  /// One past the last chunk that exists, and one past the last chunk that this rank has filled,
  /// reduced and drained.
  uint64_t end() const { return end_; }
  uint64_t filled() const { return filled_; }
  uint64_t reduced() const { return reduced_; }
  uint64_t drained() const { return drained_; }

  // --- Changing what the ring carries ---
  /// Adds this many chunks; returns the number of the first one.
  uint64_t extend(uint64_t chunks) {
    const uint64_t first = end_;
    end_ += chunks;
    return first;
  }
  /// Skips all chunks before this one. They must be over on all ranks. Every rank knows that from
  /// the lines that all ranks have published with one of them.
  void skip_to(uint64_t chunk) {
    reduced_ = drained_ = chunk;
    filled_ = std::max(filled_, chunk);
    end_ = std::max(end_, chunk);
  }
  /// Empties the ring, which flows again from this chunk on. All ranks must be done with the
  /// earlier chunks.
  void begin_epoch(uint64_t first) {
    first_ = retired_ = end_ = filled_ = reduced_ = drained_ = told_retired_ = first;
    for (auto& peer : peers_) peer.retired = first;
    stopped_at_ = kNever;
  }
  /// Gives up all chunks from this one on. After the return this rank's program may change the
  /// memory that its peers read in place.
  void give_up(uint64_t chunk) {
    if (chunk >= stopped_at_) return;
    stopped_at_ = chunk;
    own_progress_->given_up.store(chunk + 1, std::memory_order_release);
    Sync::fence();
  }
  void abort() { aborted_.store(true); }
  bool is_aborted() const { return aborted_.load(std::memory_order_relaxed); }

  // --- Which step is possible now ---
  /// Returns whether all chunks are over and the next chunk, once it exists, may be filled at once.
  bool can_begin() {
    return drained_ == end_ && stopped_at_ == kNever && !is_aborted() && has_free_slot();
  }
  bool can_fill() { return filled_ != end_ && filled_ < stopped_at_ && has_free_slot(); }
  bool can_reduce() const {
    return reduced_ != filled_ && reduced_ < stopped_at_ && all_filled(reduced_) &&
           !is_given_up(reduced_);
  }
  bool can_drain() const {
    return drained_ != reduced_ && drained_ < stopped_at_ && all_reduced(drained_);
  }
  /// Returns the stage to run next. Chunks are drained in order, so a chunk that
  /// `ends_when_reduced()` waits until all earlier ones are drained. One more filled chunk keeps
  /// the other ranks busy while this rank reduces.
  template <class EndsWhenReduced>
  Stage next_stage(const EndsWhenReduced& ends_when_reduced) {
    const bool fillable = can_fill();
    if (fillable && filled_ - reduced_ < 2) return Stage::fill;
    if (can_reduce() && (drained_ == reduced_ || !ends_when_reduced())) return Stage::reduce;
    if (can_drain()) return Stage::drain;
    return fillable ? Stage::fill : Stage::none;
  }
  /// Returns whether a rank has not filled this chunk yet.
  bool lacks(size_t rank, uint64_t chunk) const {
    return line(rank, chunk).in.load(std::memory_order_acquire) <= chunk;
  }
  /// Returns whether any rank gave up this chunk in this epoch. This is checked again after a
  /// peer's memory was read, so that bytes which its program has changed are never taken for its
  /// input.
  bool is_given_up(uint64_t chunk) const {
    for (const auto& peer : peers_)
      if (peer.progress->given_up.load(std::memory_order_acquire) - 1 - first_ <= chunk - first_)
        return true;
    return false;
  }

  /// Returns whether all ranks published the same operation with this chunk. All must have filled
  /// it.
  bool all_tell_alike(uint64_t chunk) const {
    read_lines(chunk);
    const auto& mine = own_line(chunk).call;
    const size_t slot = slot_of(chunk);
    for (const auto& peer : peers_)
      if (!(peer.lines[slot].call == mine)) return false;
    return true;
  }

  // --- What was done. What is published is seen by peers that look later, but not by those that
  // sleep: wake_sleepers() follows before this rank sleeps or its caller goes on. ---
  void publish_filled() {
    auto& line = own_line(filled_);
    Sync::writes(&line.call);
    // The progress line is not written: peers read it, so a store to it would wait for them.
    line.retired.store(drained_, std::memory_order_release);
    told_retired_ = drained_;
    ++messages_;
    publish(line.in, ++filled_);
  }
  void publish_reduced() {
    own_progress_->retired.store(drained_, std::memory_order_release);
    told_retired_ = drained_;
    ++messages_;
    publish(own_progress_->out, ++reduced_);
  }
  /// Finishes a chunk that needs no third stage. Publishes nothing.
  void finish_reduced() {
    read_lines(reduced_);
    drained_ = ++reduced_;
  }
  void finish_drained() {
    read_lines(drained_);
    ++drained_;
  }
  /// Publishes the chunks that this rank has drained, since others may wait for their slots while
  /// this rank waits for the others. Returns false if there is nothing new to publish.
  bool publish_retired() {
    if (drained_ == told_retired_) return false;
    told_retired_ = drained_;
    publish(own_progress_->retired, drained_);
    return true;
  }
  /// Calls ring(rank) for each peer that sleeps, if anything was published since the last call. Its
  /// fence delays all loads until the published store has got its cache line back from the peers,
  /// so callers call it where that costs nothing.
  template <class Ring>
  void wake_sleepers(Ring ring) {
    if (std::exchange(has_published_, false)) look_for_sleepers(ring);
  }
  /// Called after this rank has set its SleepLine. Returns whether it has nothing to do and nothing
  /// to publish.
  template <class EndsWhenReduced>
  bool may_sleep(const EndsWhenReduced& ends_when_reduced) {
    return next_stage(ends_when_reduced) == Stage::none && drained_ == told_retired_;
  }

  // --- Waiting for the peers, for at most `looks` polls ---
  template <class Ring>
  bool await_filled(int looks, uint64_t chunk, Ring ring) {
    return await(
        looks, [&] { return all_filled(chunk); }, ring);
  }
  template <class Ring>
  bool await_reduced(int looks, uint64_t chunk, Ring ring) {
    return await(
        looks, [&] { return all_reduced(chunk); }, ring);
  }

  /// Returns the number of chunks published to the peers.
  uint64_t messages() const { return messages_; }

 private:
  static constexpr uint64_t kNever = ~uint64_t{0};
  static constexpr int kQuickLooks = 16;  // peers that are awake arrive within these

  using Word = typename Sync::template Atomic<uint64_t>;

  // A slot is free when all ranks have retired its previous chunk.
  bool has_free_slot() { return filled_ - retired_ < kSlots || learn_retired(); }
  bool learn_retired();
  bool all_filled(uint64_t chunk) const {
    const size_t slot = slot_of(chunk);
    for (const auto& peer : peers_)
      if (peer.lines[slot].in.load(std::memory_order_seq_cst) <= chunk) return false;
    read_lines(chunk);
    return true;
  }
  bool all_reduced(uint64_t chunk) const {
    for (const auto& peer : peers_)
      if (peer.progress->out.load(std::memory_order_seq_cst) <= chunk) return false;
    return !is_given_up(chunk);
  }
  // Declares to Sync that this rank reads the published lines of all ranks. The protocol allows
  // that from when all have filled the chunk until this rank has drained it.
  void read_lines(uint64_t chunk) const {
    for (const auto& peer : peers_) Sync::reads(&peer.lines[slot_of(chunk)].call);
  }
  template <class Ring>
  [[gnu::noinline]] void look_for_sleepers(Ring ring) {
    Sync::fence();
    for (size_t rank = 0; rank < sleepers_.size(); ++rank)
      if (rank != rank_ && sleepers_[rank]->take()) ring(static_cast<int>(rank));
  }
  void publish(Word& word, uint64_t value) {
    word.store(value, std::memory_order_release);
    has_published_ = true;
  }
  // Polls with pauses: each poll takes the line away from the peer that is about to write it.
  template <class Came, class Ring>
  bool await(int looks, const Came& came, Ring ring) {
    for (int look = 0; look < looks; ++look) {
      if (came()) return true;
      if (look == kQuickLooks) wake_sleepers(ring);
      Sync::pause();
    }
    return false;
  }

  std::vector<Peer> peers_;
  uint64_t end_ = 0;  // one past the last chunk
  uint64_t filled_ = 0, reduced_ = 0, drained_ = 0;
  uint64_t retired_ = 0;  // chunks that all ranks had retired when this rank last checked
  // --- the next cache line ---
  uint64_t stopped_at_ = kNever;  // kNever: the ring flows
  uint64_t told_retired_ = 0;
  uint64_t first_ = 0;  // first chunk of this epoch
  uint64_t messages_ = 0;
  const SleepLines sleepers_;
  const size_t rank_;
  Line* const own_lines_;
  Progress* const own_progress_;
  bool has_published_ = false;  // since the last check for sleeping peers
  typename Sync::template Atomic<bool> aborted_{false};
};

// Kept out of line, because a free slot is mostly found without it.
template <class Sync, size_t kSlotCount>
[[gnu::noinline]] bool ChunkRingOf<Sync, kSlotCount>::learn_retired() {
  const uint64_t needed = filled_ - kSlots + 1;
  retired_ = drained_;
  for (auto& peer : peers_) {
    if (peer.lines == own_lines_) continue;
    // A peer publishes it with every word, so the line that this rank read last mostly has it.
    const auto look = [&](const Word& word) {
      peer.retired = std::max(peer.retired, word.load(std::memory_order_seq_cst));
      return peer.retired >= needed;
    };
    bool is_enough = look(peer.lines[slot_of(filled_ - 1)].retired);
    for (size_t slot = 0; slot < kSlots && !is_enough; ++slot)
      is_enough = look(peer.lines[slot].retired);
    if (!is_enough) look(peer.progress->retired);
    retired_ = std::min(retired_, peer.retired);
  }
  return retired_ >= needed;
}

using ChunkRing = ChunkRingOf<Threads>;

}  // namespace tutti
