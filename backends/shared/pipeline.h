#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "tutti/backends/shared/cache_choice.h"
#include "tutti/backends/shared/chunk_ring.h"
#include "tutti/backends/shared/shared_memory.h"
#include "tutti/base/error.h"
#include "tutti/collectives/executor.h"
#include "tutti/kernels/reduce.h"

namespace tutti {

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
/// the result there; which memory is so, each rank tells with each chunk. Where what others read of
/// a chunk is left is the CacheChoice's.
///
/// A reduce is an allreduce that only its root drains. The other kinds have another middle stage:
///   move    when all ranks published: copy what is for this rank (reduce_scatter: reduce it)
///           straight from the peers' slots to where it belongs; no third stage follows
/// Input that lies in shared memory itself is not packed but read where it is; then its rank waits,
/// in the third stage, until all have read it.
///
/// The ChunkRing says what may be done with which chunk. The verdict of each rank comes with the
/// first chunk of an operation, and nothing is written to anyone's memory before all are known.
class Pipeline {
 public:
  static size_t block_bytes(const Geometry& geometry = {});
  /// Of one that a sender has for itself and a receiver, who fills no slots; of both for each
  /// other.
  static size_t sender_bytes(const Geometry& geometry = {});
  static size_t pair_bytes(const Geometry& geometry = {}) {
    return sender_bytes(geometry) + lines_bytes();
  }

  /// `blocks`: of this queue, one a rank. `sleepers`: of each rank. `pair`: it has two ranks, which
  /// are called so, and all that the first does is to send to the second.
  Pipeline(int rank, SharedMemory& memory, const std::vector<std::byte*>& blocks,
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
  void abort() { ring_.abort(); }
  /// Peers that have not come to the oldest operation.
  std::vector<int> missing() const;
  bool lacks_ranks() const;
  void count(TransportCounters& counters) const;

  static std::string_view algorithm(const Collective& collective, int size,
                                    const Geometry& geometry = {});

 private:
  class Call;
  struct Parts;
  enum Algorithm : uint8_t { kOneShot, kTwoShot, kDirect, kFused, kMove };
  // Where a rank's shared memory begins for this operation, as the payload of its first chunk.
  struct Places {
    uint64_t elements = 0;
    uint64_t outputs = 0;
  };
  // Memory of one rank, beside the words of its ring. There is one of each for each slot.
  struct Peer {
    NameLine* names = nullptr;
    std::byte* slots = nullptr;
    std::byte* results = nullptr;
  };

  int size() const { return static_cast<int>(peers_.size()); }
  // In caches: of each two neighbours one begins where their shares meet.
  Order own_order() const { return rank_ % 2 == 0 ? Order::descending : Order::ascending; }
  OperationPtr enqueue(const Collective& collective, const Launch& launch, uint64_t begin);
  bool run_here(const Collective& collective, const Launch& launch);
  bool move_here(const Collective& collective, const Launch& launch);
  size_t own_rank() const { return static_cast<size_t>(rank_); }
  Peer& own() { return peers_[own_rank()]; }
  Call& run_of(uint64_t chunk);
  // Returns where the slot of a chunk begins among a rank's slots, and among its results.
  size_t slot_at(uint64_t chunk) const {
    return ChunkRing::slot_of(chunk) * static_cast<size_t>(geometry_.chunk_bytes);
  }
  static size_t lines_bytes();
  void fill();
  void fill_one_shot(const Call& run, uint64_t chunk, Range range);
  void fill_two_shot(const Call& run, uint64_t chunk, Range range, Range mine);
  void leave_input(const Call& run, Range range, std::byte* place, Destination destination);
  uint64_t told_place(size_t rank, uint64_t chunk, size_t at) const;
  void tell_name(uint64_t chunk, uint64_t subject, std::string_view name);
  void tell_call(const Call& run, uint64_t chunk);
  Places own_places(const std::byte* elements, const FusedUpdate* update) const;
  void reduce();
  void drain();
  void drain_shares(const Call& run, uint64_t chunk);
  std::byte* small_place(size_t rank, uint64_t chunk, size_t bytes) const;
  void reduce_all(Call& run, uint64_t chunk);
  void reduce_share(Call& run, uint64_t chunk);
  bool find_share(const Call& run, uint64_t chunk, size_t rank, Range mine);
  void reduce_past_caches(Call& run, Range range, std::byte* result);
  bool reduce_direct(Call& run, uint64_t chunk);
  Places places_of(size_t rank, uint64_t chunk) const;
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
  // Wakes a rank that sleeps.
  auto bell() {
    return [this](int rank) { memory_.ring(rank); };
  }
  // Whether the next chunk to reduce is over then.
  auto its_end() {
    return [this] { return ends_when_reduced(); };
  }
  void retire_finished();
  void fail_all(const std::optional<Error>& why);
  void forget(Call& run);

  const int rank_;
  const Geometry geometry_;  // its one_shot_bytes are those of one rank
  SharedMemory& memory_;
  ChunkRing ring_;
  CacheChoice choice_;
  std::vector<Peer> peers_;
  const std::vector<int> pair_;
  std::deque<Call*> operations_;  // oldest first
  std::vector<std::unique_ptr<Call>> spare_;
  uint64_t allocations_ = 0;
  uint64_t epoch_ = 0;                      // upper bits of the tags
  uint64_t named_[ChunkRing::kSlots] = {};  // subjects whose names the own NameLines hold
  std::vector<const std::byte*> inputs_;
  std::vector<std::byte*> outputs_;
  std::vector<std::byte*> share_outputs_;  // where the result of a share is written to
  std::vector<std::byte> block_;           // elements on their way elsewhere, in the first cache
  uint64_t bytes_ = 0;
  uint64_t copied_ = 0;  // bytes into slots and out of them
};

}  // namespace tutti
