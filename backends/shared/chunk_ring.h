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

/// The description of an operation, which a rank publishes with the operation's first chunk. All
/// fields are 64-bit words and are written whole. If a word were written in smaller parts, a load
/// of it would wait until the parts have reached the cache.
struct ChunkCall {
  uint64_t how = 0;     // verdict (32 bits), dtype, op, algorithm, kind (8 each)
  uint64_t extent = 0;  // elements (48 bits), root (16)
  // hash of the operation's name, scale and counts; 0: the ranks have already agreed on them
  uint64_t subject = 0;

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
  // Compares with a single branch, because every reduction waits for this comparison of the ranks'
  // descriptions.
  bool operator==(const ChunkCall& other) const {
    return ((how ^ other.how) | (extent ^ other.extent) | (subject ^ other.subject)) == 0;
  }
};

/// The cache line in which a rank publishes a chunk that it has filled. It is in that rank's
/// memory, and only that rank writes it. A small payload fits into the line, so that flag and data
/// are one transfer.
template <class Sync>
struct alignas(128) ChunkLineOf {
  // number of the chunk whose input is in this slot, plus one. A rank that gives the chunk up
  // stores a smaller number.
  typename Sync::template Atomic<uint64_t> in{0};
  // number of chunks that this rank no longer reads
  typename Sync::template Atomic<uint64_t> retired{0};
  ChunkCall call;
  static constexpr size_t kPayload = 88;
  std::byte payload[kPayload];
};
using ChunkLine = ChunkLineOf<Threads>;
static_assert(sizeof(ChunkLine) == 128);

/// The cache line in which a rank publishes its progress.
template <class Sync>
struct alignas(128) ProgressLineOf {
  // number of the last chunk whose result is ready, plus one
  typename Sync::template Atomic<uint64_t> out{0};
  typename Sync::template Atomic<uint64_t> retired{0};
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
///   it is retired      once the rank has published that it has drained the chunk: with the next
///                      word that the rank publishes, or by publish_retired()
///
///   the ring:  flowing --give_up(chunk)--> stopped at that chunk --begin_epoch--> flowing
///              flowing, stopped --abort--> aborted, for good
///
/// A stopped ring fills, reduces and drains only the chunks before the one at which it stopped. It
/// takes back that it filled the others. So peers neither reduce nor drain them, because this
/// rank's program may change the memory that they read. Every word has one writer. Numbers only
/// grow, except those that are taken back. One thread at a time uses the ring; any thread may call
/// abort().
template <class Sync, size_t kSlotCount = 4>
class alignas(64) ChunkRingOf {
 public:
  using Line = ChunkLineOf<Sync>;
  using Progress = ProgressLineOf<Sync>;
  using SleepLines = std::vector<SleepLineOf<Sync>*>;
  /// The published lines of one rank. This rank has a Peer too.
  struct Peer {
    Line* lines = nullptr;  // one line per slot
    Progress* progress = nullptr;
    uint64_t retired = 0;  // the highest `retired` of the peer that this rank has seen
  };
  enum class Stage : uint8_t { none, fill, reduce, drain };

  static constexpr size_t kSlots = kSlotCount;
  static constexpr size_t slot_of(uint64_t chunk) { return chunk % kSlots; }

  /// `sleepers` has one line per rank.
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

  /// end() is one past the last chunk that exists. The next three functions return one past the
  /// last chunk that this rank has filled, reduced and drained.
  uint64_t end() const { return end_; }
  uint64_t filled() const { return filled_; }
  uint64_t reduced() const { return reduced_; }
  uint64_t drained() const { return drained_; }

  // --- Changing the chunks in the ring ---
  /// Adds this many chunks. Returns the number of the first one.
  uint64_t extend(uint64_t chunks) {
    const uint64_t first = end_;
    end_ += chunks;
    return first;
  }
  /// Skips all chunks before `chunk`. Every rank must have finished or dropped them. This rank
  /// knows that from the lines that all ranks have published.
  void skip_to(uint64_t chunk) {
    reduced_ = drained_ = chunk;
    filled_ = std::max(filled_, chunk);
    end_ = std::max(end_, chunk);
  }
  /// Empties the ring, which goes on with chunk `first`. All ranks must have finished the earlier
  /// chunks.
  void begin_epoch(uint64_t first) {
    retired_ = end_ = filled_ = reduced_ = drained_ = told_retired_ = first;
    for (auto& peer : peers_) peer.retired = first;
    stopped_at_ = kNever;
  }
  /// Gives up `chunk` and all later chunks. Afterwards this rank's program may change the memory
  /// that its peers read in place.
  void give_up(uint64_t chunk) {
    if (chunk >= stopped_at_) return;
    stopped_at_ = chunk;
    // Slots hold the latest chunks only. All ranks have retired the earlier ones.
    const uint64_t oldest = filled_ - std::min<uint64_t>(filled_, kSlots);
    for (uint64_t given = std::max(chunk, oldest); given < filled_; ++given) {
      auto& in = own_line(given).in;
      if (in.load(std::memory_order_relaxed) > given) in.store(given, std::memory_order_release);
    }
    Sync::fence();
  }
  void abort() { aborted_.store(true); }
  bool is_aborted() const { return aborted_.load(std::memory_order_relaxed); }

  // --- Which step is possible now ---
  /// Returns whether all chunks are finished and the next chunk can be filled immediately.
  bool can_begin() {
    return drained_ == end_ && stopped_at_ == kNever && !is_aborted() && has_free_slot();
  }
  bool can_fill() { return filled_ != end_ && filled_ < stopped_at_ && has_free_slot(); }
  bool can_reduce() const {
    return reduced_ != filled_ && reduced_ < stopped_at_ && all_filled(reduced_);
  }
  bool can_drain() const {
    return drained_ != reduced_ && drained_ < stopped_at_ && all_reduced(drained_);
  }
  /// Returns the stage to run next. Chunks are drained in order. So a chunk for which
  /// `ends_when_reduced()` is true must wait until all earlier chunks are drained. A second chunk
  /// is filled before the first is reduced, which keeps the other ranks busy while this rank
  /// reduces.
  template <class EndsWhenReduced>
  Stage next_stage(const EndsWhenReduced& ends_when_reduced) {
    const bool fillable = can_fill();
    if (fillable && filled_ - reduced_ < 2) return Stage::fill;
    if (can_reduce() && (drained_ == reduced_ || !ends_when_reduced())) return Stage::reduce;
    if (can_drain()) return Stage::drain;
    return fillable ? Stage::fill : Stage::none;
  }
  /// Returns whether a rank has not filled this chunk yet, or gave it up.
  bool lacks(size_t rank, uint64_t chunk) const {
    return line(rank, chunk).in.load(std::memory_order_acquire) <= chunk;
  }

  /// Returns whether all ranks published the same operation with this chunk. All ranks must have
  /// filled it.
  bool all_tell_alike(uint64_t chunk) const {
    read_lines(chunk);
    const auto& mine = own_line(chunk).call;
    const size_t slot = slot_of(chunk);
    for (const auto& peer : peers_)
      if (!(peer.lines[slot].call == mine)) return false;
    return true;
  }

  // --- Recording what this rank has done ---
  //
  // A polling peer sees what this rank publishes. A sleeping peer does not, so wake_sleepers() must
  // follow before this rank sleeps or its caller goes on.
  void publish_filled() {
    auto& line = own_line(filled_);
    Sync::writes(&line.call);
    // `retired` goes into the chunk's line, not into the progress line. Peers read the progress
    // line, so a store to it would wait for them.
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
  /// Finishes a chunk that needs no drain stage. Publishes nothing.
  void finish_reduced() {
    read_lines(reduced_);
    drained_ = ++reduced_;
  }
  void finish_drained() {
    read_lines(drained_);
    ++drained_;
  }
  /// Publishes the chunks that this rank has drained, because other ranks may wait for their slots
  /// while this rank waits for other ranks. Returns false if there is nothing new to publish.
  bool publish_retired() {
    if (drained_ == told_retired_) return false;
    told_retired_ = drained_;
    publish(own_progress_->retired, drained_);
    return true;
  }
  /// Calls ring(rank) for each sleeping peer if this rank published anything since the last call.
  /// This function contains a fence. Loads after the fence wait until the cache line that was
  /// published has come back from the peers. So it is called where this delay costs nothing.
  template <class Ring>
  void wake_sleepers(Ring ring) {
    if (std::exchange(has_published_, false)) look_for_sleepers(ring);
  }
  /// Called after this rank has set its SleepLine. Returns whether this rank has nothing to do and
  /// nothing to publish.
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
  // a peer that is awake usually publishes its line within this many polls
  static constexpr int kQuickLooks = 16;

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
    // This rank has read the peers' memory. If one of them gave up the chunk before that, its
    // program may have changed the bytes, and they must not be used as its input.
    return all_filled(chunk);
  }
  // Declares to Sync, which checks the protocol in tests, that this rank reads the published lines
  // of all ranks. That is allowed after all ranks have filled the chunk and before this rank has
  // drained it.
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
  // Pauses between polls, because each poll takes the cache line away from the peer that is about
  // to write it.
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
  uint64_t end_ = 0;  // one past the last chunk that exists
  uint64_t filled_ = 0, reduced_ = 0, drained_ = 0;
  uint64_t retired_ = 0;  // chunks that all ranks had retired when this rank last checked
  // --- the next cache line begins here ---
  uint64_t stopped_at_ = kNever;  // first chunk that was given up; kNever: none
  uint64_t told_retired_ = 0;
  uint64_t messages_ = 0;
  const SleepLines sleepers_;
  const size_t rank_;
  Line* const own_lines_;
  Progress* const own_progress_;
  bool has_published_ = false;  // something was published since the last check for sleepers
  typename Sync::template Atomic<bool> aborted_{false};
};

// This function is not inlined, because a free slot is usually found without it.
template <class Sync, size_t kSlotCount>
[[gnu::noinline]] bool ChunkRingOf<Sync, kSlotCount>::learn_retired() {
  const uint64_t needed = filled_ - kSlots + 1;
  retired_ = drained_;
  for (auto& peer : peers_) {
    if (peer.lines == own_lines_) continue;
    // A peer publishes `retired` with every chunk, so usually the line of its latest chunk has the
    // newest value.
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
