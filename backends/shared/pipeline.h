#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "tutti/backends/shared/shared_memory.h"
#include "tutti/backends/shared/sleep_line.h"
#include "tutti/collectives/executor.h"
#include "tutti/kernels/destination_choice.h"
#include "tutti/kernels/reduce.h"

namespace tutti {

/// What ranks tell each other about one chunk, in memory of the rank that writes it. No other
/// rank writes to it. A payload that fits lies here, so that flag and data are one transfer.
struct alignas(128) ChunkLine {
  std::atomic<uint64_t> in{0};       // one more than the chunk whose input is here
  std::atomic<uint64_t> retired{0};  // chunks that its rank reads no more from others
  // The operation that begins with this chunk. In whole words: what is written in smaller parts
  // than it is read has to reach the cache in between.
  struct Call {
    uint64_t how = 0;      // verdict (32 bits), dtype, op, algorithm, kind (8 each)
    uint64_t extent = 0;   // elements (48 bits), root (16)
    uint64_t subject = 0;  // hash of its name, scale and counts, if they are not agreed on already

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
    // In one branch: this stands between seeing the peers and reducing.
    bool operator==(const Call& other) const {
      return ((how ^ other.how) | (extent ^ other.extent) | (subject ^ other.subject)) == 0;
    }
  } call;
  static constexpr size_t kPayload = 88;
  std::byte payload[kPayload];
};
static_assert(sizeof(ChunkLine) == 128);

/// What a rank tells about its own progress.
struct alignas(128) ProgressLine {
  std::atomic<uint64_t> out{0};  // one more than the last chunk whose result is there
  std::atomic<uint64_t> retired{0};
  // Rank 0's words where all leave what others read of a chunk: for each kind, and for allreduces
  // and reduces in one shot.
  static constexpr size_t kOneShot = kCollectiveKindCount, kOneShotReduce = kOneShot + 1,
                          kWords = kOneShotReduce + 1;
  std::array<std::atomic<Destination>, kWords> destinations{};
};

/// For the message when ranks disagree: the name of the operation that begins with a chunk.
struct alignas(64) NameLine {
  char text[64] = {};
};

/// Operations of one queue, in shared memory: of all kinds but send and recv. They are cut into
/// chunks that stay in cache; the chunks of all operations form one sequence with growing numbers,
/// and each chunk goes through three stages on every rank:
///   fill    pack what others reduce into the own slot, publish it
///   reduce  when all ranks published: reduce the own share of the chunk straight from the peers'
///           slots, in rank order, publish the result
///   drain   when all results are there: unpack them
/// While one chunk is reduced the next is filled and the one before is drained. A small operation
/// is one chunk of which every rank reduces everything (no third stage). Memory that is shared
/// itself is neither packed nor unpacked: it is read where it is, and the owner of a share writes
/// the result there; which memory is so, each rank tells with each chunk. What others read of a
/// chunk is left in the own cache or in memory, as rank 0 finds best.
///
/// A reduce is an allreduce that only its root drains. The other kinds have another middle stage:
///   move    when all ranks published: copy what is for this rank (reduce_scatter: reduce it)
///           straight from the peers' slots to where it belongs; no third stage follows
/// Input that lies in shared memory itself is not packed but read where it is; then its rank waits,
/// in the third stage, until all have read it.
///
/// Slots are used in turn; one is filled anew when all ranks have retired the chunk that was in it.
/// Every word has one writer; numbers only grow. The verdict of each rank comes with the first
/// chunk of an operation, and nothing is written to anyone's memory before all are known.
class Pipeline {
 public:
  static constexpr int kSlots = 4;
  static size_t block_bytes(const Geometry& geometry = {});
  /// Of one that a sender has for itself and a receiver, who fills no slots; of both for each
  /// other.
  static size_t sender_bytes(const Geometry& geometry = {});
  static size_t pair_bytes(const Geometry& geometry = {}) {
    return sender_bytes(geometry) + lines_bytes();
  }

  /// `blocks`: of this queue, one a rank. `sleepers`: of each rank. `pair`: it has two ranks, which
  /// are called so, and all that the first does is to send to the second.
  Pipeline(int rank, SharedMemory& memory, std::vector<std::byte*> blocks,
           std::vector<SleepLine*> sleepers, const Geometry& geometry = {},
           std::vector<int> pair = {});
  ~Pipeline();

  /// Null: it is done; see Launch::spins.
  OperationPtr start(const Collective& collective, const Launch& launch);
  /// What start() will count as messages (chunks told to the peers) and bytes (read by them, or
  /// written into their memory).
  Traffic predict(const Collective& collective, const Launch& launch) const;
  bool progress();
  /// False if progress() would do something.
  bool may_sleep();
  bool idle() const { return operations_.empty(); }
  void abort() { aborted_.store(true); }
  /// Peers that have not come to the oldest operation.
  std::vector<int> missing() const;
  bool lacks_ranks() const;
  void count(TransportCounters& counters) const;

  static std::string_view algorithm(const Collective& collective, int size,
                                    const Geometry& geometry = {});

 private:
  class Call;
  enum Algorithm : uint8_t { kOneShot, kTwoShot, kDirect, kFused, kMove };
  // Where a rank's shared memory begins for this operation, as the payload of its first chunk.
  struct Places {
    uint64_t elements = 0;
    uint64_t outputs = 0;
  };
  struct Peer {
    ChunkLine* lines = nullptr;
    ProgressLine* progress = nullptr;
    NameLine* names = nullptr;
    std::byte* slots = nullptr;
    std::byte* results = nullptr;
    uint64_t retired = 0;  // as last seen
  };

  int size() const { return static_cast<int>(peers_.size()); }
  // In caches: of each two neighbours one begins where their shares meet.
  Order own_order() const { return rank_ % 2 == 0 ? Order::descending : Order::ascending; }
  OperationPtr enqueue(const Collective& collective, const Launch& launch, uint64_t begin);
  bool run_here(const Collective& collective, const Launch& launch);
  bool move_here(const Collective& collective, const Launch& launch);
  Peer& own() { return peers_[static_cast<size_t>(rank_)]; }
  Call& run_of(uint64_t chunk);
  static size_t slot_of(uint64_t chunk) { return chunk % kSlots; }
  // Where the slot of a chunk begins among a rank's slots, and among its results.
  size_t slot_at(uint64_t chunk) const {
    return slot_of(chunk) * static_cast<size_t>(geometry_.chunk_bytes);
  }
  static size_t lines_bytes();
  enum class Stage : uint8_t { none, fill, reduce, drain };
  Stage next_stage();
  bool can_fill();
  // A slot is free when all ranks have retired the chunk that was in it before.
  bool has_free_slot() { return filled_ - retired_ < kSlots || learn_retired(); }
  bool learn_retired();
  bool can_reduce() const;
  bool can_drain() const;
  void fill();
  void fill_one_shot(const Call& run, uint64_t chunk, Range range);
  void fill_two_shot(const Call& run, uint64_t chunk, Range range, Range mine);
  void leave_input(const Call& run, Range range, std::byte* place, Destination destination);
  Destination choose_destination(size_t word, uint64_t chunk);
  Destination destination_of(size_t rank, uint64_t chunk) const;
  uint64_t told_place(size_t rank, uint64_t chunk, size_t at) const;
  void learn_cost(size_t word, uint64_t chunk, size_t bytes);
  // Null: that chunk is not measured.
  float* time_of(uint64_t chunk) {
    return is_measured_[slot_of(chunk)] ? &spent_ns_[slot_of(chunk)] : nullptr;
  }
  void tell_name(uint64_t chunk, uint64_t subject, std::string_view name);
  void tell_call(const Call& run, uint64_t chunk);
  Places own_places(const std::byte* elements, const FusedUpdate* update) const;
  void publish_filled(uint64_t chunk);
  void reduce();
  void drain();
  void drain_shares(const Call& run, uint64_t chunk);
  std::byte* small_place(const Peer& peer, uint64_t chunk, size_t bytes) const;
  void reduce_all(Call& run, uint64_t chunk);
  void reduce_share(Call& run, uint64_t chunk);
  bool find_share(const Call& run, uint64_t chunk, size_t rank, Range mine);
  void reduce_past_caches(Call& run, Range range, std::byte* result);
  bool reduce_direct(Call& run, uint64_t chunk);
  Places places_of(size_t rank, uint64_t chunk) const;
  void publish_reduced(uint64_t chunk);
  bool ends_when_reduced();
  bool is_agreed(uint64_t chunk) const;
  bool learn_verdict(Call& run, uint64_t chunk);
  bool differs_in_place_only(uint64_t chunk) const;
  uint64_t end_of_all(const Call& run, uint64_t chunk) const;
  std::string describe_disagreement(uint64_t chunk) const;
  int64_t elements_of_chunk(Algorithm algorithm, CollectiveKind kind, DataType dtype,
                            int64_t count) const;
  // --- pipeline_move.cc ---
  static int64_t parts_of(CollectiveKind kind, int size);
  int64_t moved_at_once(CollectiveKind kind, DataType dtype) const;
  void fill_move(const Call& run, uint64_t chunk);
  void move(Call& run, uint64_t chunk);
  void take_moved(const Call& run, uint64_t chunk, Range range);
  void reduce_part(const Call& run, uint64_t chunk, Range range);
  void learn_sources(Call& run, uint64_t chunk);
  bool is_read_in_place(uint64_t chunk) const;
  bool is_in_place(const Call& run, size_t rank) const;
  const std::byte* moved_from(const Call& run, size_t rank, uint64_t chunk, int64_t begin) const;
  Traffic predict_move(const Collective& collective) const;
  void publish(std::atomic<uint64_t>& word, uint64_t value);
  void wake_sleepers();
  void retire_finished();
  void forget(Call& run);
  template <class Came>
  bool await(int looks, Came came);

  const int rank_;
  const Geometry geometry_;  // its one_shot_bytes are those of one rank
  SharedMemory& memory_;
  std::vector<Peer> peers_;
  const std::vector<SleepLine*> sleepers_;
  const std::vector<int> pair_;
  std::deque<Call*> operations_;  // oldest first
  std::vector<std::unique_ptr<Call>> spare_;
  uint64_t allocations_ = 0;
  uint64_t epoch_ = 0;  // upper bits of the tags
  uint64_t end_ = 0;    // one past the last operation's last chunk
  uint64_t filled_ = 0, reduced_ = 0, drained_ = 0, told_retired_ = 0;
  uint64_t retired_ = 0;         // chunks with which all ranks were done when last looked at
  uint64_t named_[kSlots] = {};  // subjects whose names the own NameLines hold
  bool has_published_ = false;   // and not looked yet which peers sleep
  // An operation that begins here was cancelled: nothing from this chunk on moves until the queue
  // begins anew. What was started before goes on.
  static constexpr uint64_t kNever = ~uint64_t{0};
  uint64_t void_from_ = kNever;
  std::atomic<bool> aborted_{false};
  std::vector<const std::byte*> inputs_;
  std::vector<std::byte*> outputs_;
  std::vector<std::byte*> share_outputs_;  // where the result of a share is written to
  std::vector<std::byte> block_;           // elements on their way elsewhere, in the first cache
  std::array<DestinationChoice, ProgressLine::kWords> destinations_;
  float spent_ns_[kSlots] = {};  // of each slot's chunk, on all stages, if it is measured
  bool is_measured_[kSlots] = {};
  uint64_t messages_ = 0, bytes_ = 0;
  uint64_t copied_ = 0;  // bytes into slots and out of them
};

}  // namespace tutti
