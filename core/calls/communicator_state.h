#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tutti/core/engine/engine.h"
#include "tutti/core/engine/staging.h"
#include "tutti/core/meeting/bootstrap.h"
#include "tutti/core/scheduling/work_state.h"
#include "tutti/core/settings/options.h"

namespace tutti {

class CommunicatorState;

/// One operation as this rank calls it. The pointers are valid during the call only. The tensors'
/// memory is used until the operation has ended.
struct OperationCall {
  CollectiveKind kind;
  const TensorView* input;  // its dtype and shape are sent to the other ranks (but see described())
  const TensorView* output;                // empty: the library makes the output, or there is none
  const ReduceOptions* options = nullptr;  // for kinds that reduce
  int root = 0;
  std::span<const int64_t> rows = {};  // see Request::rows
  int64_t output_rows = -1;            // see Request::output_rows
  bool library_output = false;
  int64_t divide_output_by = 1;
  bool tells_output = false;  // true on a scatter's non-root ranks, which have no input
  const TensorView& described() const { return tells_output ? *output : *input; }
  /// Returns the device of the caller's memory. Throws Error(invalid_argument) if input and output
  /// are on different devices.
  Device device(std::string_view name) const;
};

/// A name whose look-up is already done. Handles and the tensors of an arena hold one.
struct DeclaredTensor {
  DeclaredTensor(std::weak_ptr<const CommunicatorState> of, std::string_view called, Shape like,
                 DataType type)
      : owner(std::move(of)), name(called), shape(std::move(like)), dtype(type) {}
  /// Returns whether `state` is the communicator that declared the name. Their
  /// addresses are not compared, because a new communicator may have the address of an old one.
  bool is_of(const std::shared_ptr<CommunicatorState>& state) const {
    return !owner.owner_before(state) && !state.owner_before(owner);
  }

  const std::weak_ptr<const CommunicatorState> owner;
  const std::string name;
  const Shape shape;
  const DataType dtype;
  int64_t place = -1;   // see Signature::place
  uint64_t layout = 0;  // see Signature::layout
  bool shared = false;  // see Entry::shared
  const FusedUpdate* update = nullptr;
  Entry* entry = nullptr;
  uint64_t generation = 0;  // generation of the table that holds the entry
  int64_t peer = kNoPeer;   // for sends and receives: the peer for which `entry` was looked up
  static constexpr int64_t kNoPeer = -2;
};

/// Returns Signature::layout of memory that is not in an arena.
uint64_t layout_of(const TensorView& view);
Error op_means_nothing(std::string_view name, DataType dtype, ReduceOp op);
Error refused(std::string_view name, const std::string& why);

/// Holds everything that a Communicator owns. Every operation reaches the engine through it.
class CommunicatorState {
 public:
  CommunicatorState(Options options, Membership membership);
  ~CommunicatorState();

  /// The check functions throw Error(invalid_argument). The error text shows only the beginning of
  /// a very long name.
  void check_name(std::string_view name) const;
  void check_tensor(std::string_view name, const TensorView& view) const;
  void check_root(std::string_view name, int root) const;

  /// Starts an operation. `declared` is the name's finished look-up, or null. `ring` is true if the
  /// caller does not wait immediately, so another thread must be woken to run the engine.
  std::shared_ptr<WorkState> start(std::string_view name, DeclaredTensor* declared,
                                   const OperationCall& call, bool ring = true);
  /// Starts a group of operations, all or none. No member runs before every rank has submitted
  /// every member.
  struct Member {
    std::string_view name;
    OperationCall call;
  };
  std::shared_ptr<WorkState> start_group(std::string_view group, std::span<const Member> members);
  /// Starts separate operations in one submission. On host memory either all start or none.
  std::vector<std::shared_ptr<WorkState>> start_together(std::span<const Member> members,
                                                         bool ring);

  /// Operations on host memory that are submitted together, all or none. A name that repeats its
  /// last call costs one look-up; a handle saves even that.
  class Batch {
   public:
    /// `name` is the name of the call, for errors. `group` is the group of the operations, or empty
    /// if they form no group.
    Batch(CommunicatorState& state, std::string_view name, std::string_view group = {},
          int group_size = 0);
    /// Adds an operation and returns its Work. If `work` is given, the operation becomes a part of
    /// it. Otherwise the operation gets its own Work.
    const std::shared_ptr<WorkState>& add(std::string_view name, const OperationCall& call,
                                          std::shared_ptr<WorkState> work = nullptr,
                                          size_t output_index = 0);
    const std::shared_ptr<WorkState>& add(DeclaredTensor& declared, const OperationCall& call,
                                          std::shared_ptr<WorkState> work = nullptr);
    void commit(bool ring) { submission_.commit(ring); }
    /// Makes `work` ready for an operation with `parts` parts. A name uses two Works in turn,
    /// because the engine or the user may still hold the last one. If both are held, this function
    /// makes a new Work.
    void renew(std::shared_ptr<WorkState>& work, std::shared_ptr<WorkState>& last,
               std::string_view name, int parts);

   private:
    const std::shared_ptr<WorkState>& fill(Entry& entry, std::string_view name,
                                           const OperationCall& call,
                                           const DeclaredTensor* declared,
                                           std::shared_ptr<WorkState> work);
    CommunicatorState& state_;
    const std::string_view group_;
    const int group_size_;
    Engine::Submission submission_;
  };

  const Options options;
  Membership membership;
  std::shared_ptr<Engine> engine;
  int local_rank = 0;
  int local_size = 1;
  int hosts = 1;
  std::atomic<int> splits = 0;  // number of split() calls so far, equal on all ranks
  int epoch = 0;
  // Each rank's number before the first shrink (see Survivors); empty: no shrink yet.
  std::vector<int> first_ranks;
  int arenas = 0;  // number of arenas made so far, equal on all ranks
  struct GroupWorks {
    std::shared_ptr<WorkState> work, last;
  };
  /// Returns the two Works that a group uses in turn. The caller must hold a Batch while it calls
  /// this and uses the result, because the Batch's lock guards them. If there are too many groups
  /// (more than the cache has names), all are forgotten first.
  GroupWorks& group_works(std::string_view group);
  Capabilities capabilities;  // the backend's, without the devices that the options forbid
  std::string path;           // prefix of this communicator's keys in the store
  std::string timeline_file;  // the file that was given to start_timeline()

 private:
  /// Makes the request that the ranks compare. Checks everything that this rank can check alone.
  Request request(std::string_view name, const OperationCall& call) const;
  std::unique_ptr<Entry> entry(std::string_view name, const OperationCall& call) const;
  std::shared_ptr<WorkState> submit(std::unique_ptr<Entry> entry, bool ring);
  std::shared_ptr<WorkState> submit_group(std::string_view group,
                                          std::vector<std::unique_ptr<Entry>> entries);
  Staging& staging(Device device);
  /// Returns whether the backend works directly on this entry's memory. All ranks get the same
  /// result for equal requests. Throws Error(invalid_argument) for memory on a device that is not
  /// the backend's.
  bool stays_on_device(const Entry& entry);
  std::shared_ptr<WorkState> submit_there(std::string name,
                                          std::vector<std::unique_ptr<Entry>> entries, bool ring);

  mutable std::mutex mutex_;  // guards the members below
  std::vector<std::pair<Device, std::shared_ptr<Staging>>> stagings_;
  std::set<std::string> told_;  // operations already reported to go through host memory

  std::unordered_map<std::string, GroupWorks> group_works_;
};

}  // namespace tutti
