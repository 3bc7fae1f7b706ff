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

/// The name of the operation that begins with a chunk, for the error text if the ranks disagree.
struct alignas(64) NameLine {
  char text[64] = {};
};

/// Runs the operations of one queue in shared memory, of all kinds except send and recv. Operations
/// are cut into chunks that fit into the cache. The chunks of all operations form one sequence,
/// numbered upwards. Each chunk passes through three stages on every rank:
///   fill    pack the elements that others reduce into this rank's slot, and publish it
///   reduce  when all ranks have published: reduce this rank's share of the chunk straight from the
///           peers' slots, in rank order, and publish the result
///   drain   when all results are published: unpack them
/// While one chunk is reduced, the next is filled and the previous one is drained. A small
/// operation is one chunk, and every rank reduces all of it, so it has no drain stage.
///
/// If the memory of an operation is itself shared, it is neither packed nor unpacked. Peers read
/// the input in place, and the owner of a share writes the result into the output. With each chunk
/// a rank publishes which of its memory is used in place. The CacheChoice decides whether packed
/// elements stay in the cache.
///
/// A reduce is an allreduce that only its root drains. The other kinds have another middle stage:
///   move    when all ranks have published: copy the parts for this rank (reduce_scatter: reduce
///           them) straight from the peers' slots to the output; no third stage follows
/// If the input of these kinds is in shared memory, it is not packed but read in place. Then a
/// third stage waits until all ranks have read it.
///
/// The ChunkRing decides which stage may run on which chunk. Each rank publishes its verdict (go or
/// veto) with the first chunk of an operation. Nothing is written to any rank's output before all
/// verdicts are known.
class Pipeline {
 public:
  static size_t block_bytes(const Geometry& geometry = {});
  /// sender_bytes() returns the bytes of a sender's part of a Pipeline with one receiver; a
  /// receiver fills no slots. pair_bytes() returns the bytes that one rank needs for both
  /// directions of a pair.
  static size_t sender_bytes(const Geometry& geometry = {});
  static size_t pair_bytes(const Geometry& geometry = {}) {
    return sender_bytes(geometry) + lines_bytes();
  }

  /// `blocks` has this queue's block of every rank. `sleepers` has one line per rank. If `pair` is
  /// not empty, the Pipeline has two ranks, and the first only sends to the second. `pair` then
  /// holds their ranks in the communicator.
  Pipeline(int rank, SharedMemory& memory, const std::vector<std::byte*>& blocks,
           std::vector<SleepLine*> sleepers, const Geometry& geometry = {},
           std::vector<int> pair = {});
  ~Pipeline();

  /// Returns null if the operation is already done (see Launch::spins).
  OperationPtr start(const Collective& collective, const Launch& launch);
  /// Returns the traffic that start() will count: messages are chunks published to the peers, and
  /// bytes are those that peers read or that are written into their memory.
  Traffic predict(const Collective& collective, const Launch& launch) const;
  bool progress();
  /// Returns false if progress() can do something now.
  bool may_sleep();
  bool idle() const { return operations_.empty(); }
  void abort() { ring_.abort(); }
  /// Returns the peers that have not started the oldest operation yet.
  std::vector<int> missing() const;
  bool lacks_ranks() const;
  void count(TransportCounters& counters) const;

  static std::string_view algorithm(const Collective& collective, int size,
                                    const Geometry& geometry = {});

 private:
  class Call;
  struct Parts;
  enum Algorithm : uint8_t { kOneShot, kTwoShot, kDirect, kFused, kMove };
  // The offsets, in a rank's shared memory, of an operation's elements and of the outputs of its
  // FusedUpdate. The rank publishes them as the payload of the operation's first chunk.
  struct Places {
    uint64_t elements = 0;
    uint64_t outputs = 0;
  };
  // The memory of one rank, besides its lines. Each array has one entry per slot of the ring.
  struct Peer {
    NameLine* names = nullptr;
    std::byte* slots = nullptr;
    std::byte* results = nullptr;
  };

  int size() const { return static_cast<int>(peers_.size()); }
  // Even ranks reduce downwards and odd ranks upwards. So ranks 2i and 2i + 1 both begin at the
  // border between their shares; see Order.
  Order own_order() const { return rank_ % 2 == 0 ? Order::descending : Order::ascending; }
  OperationPtr enqueue(const Collective& collective, const Launch& launch, uint64_t begin);
  bool run_here(const Collective& collective, const Launch& launch);
  bool move_here(const Collective& collective, const Launch& launch);
  size_t own_rank() const { return static_cast<size_t>(rank_); }
  Peer& own() { return peers_[own_rank()]; }
  Call& call_of(uint64_t chunk);
  // Returns the offset of a chunk within a rank's `slots`, which is also its offset within
  // `results`.
  size_t slot_at(uint64_t chunk) const {
    return ChunkRing::slot_of(chunk) * static_cast<size_t>(geometry_.chunk_bytes);
  }
  static size_t lines_bytes();
  void fill();
  void fill_one_shot(const Call& call, uint64_t chunk, Range range);
  void fill_two_shot(const Call& call, uint64_t chunk, Range range, Range mine);
  void leave_input(const Call& call, Range range, std::byte* place, Destination destination);
  uint64_t told_place(size_t rank, uint64_t chunk, size_t at) const;
  void tell_name(uint64_t chunk, uint64_t subject, std::string_view name);
  void tell_call(const Call& call, uint64_t chunk);
  Places own_places(const std::byte* elements, const FusedUpdate* update) const;
  void reduce();
  void drain();
  void drain_shares(const Call& call, uint64_t chunk);
  std::byte* small_place(size_t rank, uint64_t chunk, size_t bytes) const;
  void reduce_all(Call& call, uint64_t chunk);
  void reduce_share(Call& call, uint64_t chunk);
  bool find_share(const Call& call, uint64_t chunk, size_t rank, Range mine);
  void reduce_past_caches(Call& call, Range range, std::byte* result);
  bool reduce_direct(Call& call, uint64_t chunk);
  Places places_of(size_t rank, uint64_t chunk) const;
  bool ends_when_reduced();
  bool is_agreed(uint64_t chunk) const;
  bool learn_verdict(Call& call, uint64_t chunk);
  bool differs_in_place_only(uint64_t chunk) const;
  uint64_t end_of_all(const Call& call, uint64_t chunk) const;
  std::string describe_disagreement(uint64_t chunk) const;
  int64_t elements_of_chunk(Algorithm algorithm, CollectiveKind kind, DataType dtype,
                            int64_t count) const;
  // --- pipeline_move.cc ---
  static int64_t parts_of(CollectiveKind kind, int size);
  int64_t moved_at_once(CollectiveKind kind, DataType dtype) const;
  void fill_move(const Call& call, uint64_t chunk);
  void move(Call& call, uint64_t chunk);
  void take_moved(const Call& call, uint64_t chunk, Range range);
  void reduce_part(const Call& call, uint64_t chunk, Range range);
  void learn_sources(Call& call, uint64_t chunk);
  bool is_read_in_place(uint64_t chunk) const;
  bool is_in_place(const Call& call, size_t rank) const;
  const std::byte* moved_from(const Call& call, size_t rank, uint64_t chunk, int64_t begin) const;
  Traffic predict_move(const Collective& collective) const;
  // Returns the function that wakes a sleeping rank.
  auto bell() {
    return [this](int rank) { memory_.ring(rank); };
  }
  // Returns a function that calls ends_when_reduced().
  auto its_end() {
    return [this] { return ends_when_reduced(); };
  }
  void retire_finished();
  void fail_all(const std::optional<Error>& why);
  void forget(Call& call);

  const int rank_;
  const Geometry geometry_;  // one_shot_bytes counts the data of one rank here
  SharedMemory& memory_;
  ChunkRing ring_;
  CacheChoice choice_;
  std::vector<Peer> peers_;
  const std::vector<int> pair_;
  std::deque<Call*> operations_;  // oldest first
  std::vector<std::unique_ptr<Call>> spare_;
  uint64_t allocations_ = 0;
  uint64_t epoch_ = 0;                      // upper bits of the tags
  uint64_t named_[ChunkRing::kSlots] = {};  // per slot: ChunkCall::subject of its NameLine
  std::vector<const std::byte*> inputs_;
  std::vector<std::byte*> outputs_;
  std::vector<std::byte*> share_outputs_;  // addresses to which the result of a share is written
  std::vector<std::byte> block_;           // for temporary elements; stays in the L1 cache
  uint64_t bytes_ = 0;
  uint64_t copied_ = 0;  // bytes copied into slots and out of them
};

}  // namespace tutti
