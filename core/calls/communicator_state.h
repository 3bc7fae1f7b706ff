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
#include "tutti/core/settings/reduce_options.h"

namespace tutti {

class CommunicatorState;

/// One operation as this rank calls it. Borrowed for the call, but for the tensors' memory.
struct OperationCall {
  CollectiveKind kind;
  const TensorView* input;   // of which the other ranks hear dtype and shape (but see described())
  const TensorView* output;  // empty: the library makes it, or there is none
  const ReduceOptions* options = nullptr;  // of kinds that reduce
  int root = 0;
  std::span<const int64_t> rows = {};  // see Request::rows
  int64_t output_rows = -1;            // see Request::output_rows
  bool library_output = false;
  int64_t divide_output_by = 1;
  bool tells_output = false;  // a scatter off its root has no input
  const TensorView& described() const { return tells_output ? *output : *input; }
  /// The device of the caller's memory. Throws Error(invalid_argument) if input and output are on
  /// two devices.
  Device device(std::string_view name) const;
};

/// A name looked up once: the handle's and the arena's tensors.
struct DeclaredTensor {
  DeclaredTensor(std::weak_ptr<const CommunicatorState> of, std::string_view called, Shape like,
                 DataType type)
      : owner(std::move(of)), name(called), shape(std::move(like)), dtype(type) {}
  /// Also false for a communicator that lies where one did that is gone.
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
  uint64_t generation = 0;  // of the table in which the entry was found
  int64_t peer = kNoPeer;   // for which it was found, if two ranks took part
  static constexpr int64_t kNoPeer = -2;
};

/// See Signature::layout, of memory outside of any arena.
uint64_t layout_of(const TensorView& view);
Error op_means_nothing(std::string_view name, DataType dtype, ReduceOp op);
Error refused(std::string_view name, const std::string& why);

/// What a Communicator owns, and the one way from its calls to the engine.
class CommunicatorState {
 public:
  CommunicatorState(Options options, Membership membership);
  ~CommunicatorState();

  /// Throw Error(invalid_argument), which shows no more than the beginning of a name that is too
  /// long.
  void check_name(std::string_view name) const;
  void check_tensor(std::string_view name, const TensorView& view) const;
  void check_root(std::string_view name, int root) const;

  /// `declared`: the name, looked up; null: it is not. `ring`: the caller does not wait at once.
  std::shared_ptr<WorkState> start(std::string_view name, DeclaredTensor* declared,
                                   const OperationCall& call, bool ring = true);
  /// All or none: no member runs before every member is there on every rank.
  struct Member {
    std::string_view name;
    OperationCall call;
  };
  std::shared_ptr<WorkState> start_group(std::string_view group, std::span<const Member> members);
  /// Operations of their own that are handed over together; on host memory all or none.
  std::vector<std::shared_ptr<WorkState>> start_together(std::span<const Member> members,
                                                         bool ring);

  /// Operations on host memory that are handed over together: all or none. Names that come again
  /// with the same call cost a look-up, handles not even that.
  class Batch {
   public:
    /// `name`: of the call, for errors. `group`: their group, empty for operations that only share
    /// the call.
    Batch(CommunicatorState& state, std::string_view name, std::string_view group = {},
          int group_size = 0);
    /// `work`: of which this is a part; null: the operation's own, which is returned.
    const std::shared_ptr<WorkState>& add(std::string_view name, const OperationCall& call,
                                          std::shared_ptr<WorkState> work = nullptr,
                                          size_t output_index = 0);
    const std::shared_ptr<WorkState>& add(DeclaredTensor& declared, const OperationCall& call,
                                          std::shared_ptr<WorkState> work = nullptr);
    void commit(bool ring) { submission_.commit(ring); }
    /// Makes `work` ready for `parts` parts. The uses of a name have two Works in turn, because the
    /// engine, or the user, may still hold the last one; a new one if both are held.
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
  std::atomic<int> splits = 0;  // calls of split so far, equal on all ranks
  int epoch = 0;
  std::vector<int> first_ranks;  // see Survivors; empty: nothing was shrunk
  int arenas = 0;                // made so far, equal on all ranks
  struct GroupWorks {
    std::shared_ptr<WorkState> work, last;
  };
  /// Of the uses of a group, kept for the next one. To be called and used while a Batch
  /// lives, whose lock guards them. When there are as many groups as the cache has names, all are
  /// forgotten.
  GroupWorks& group_works(std::string_view group);
  Capabilities capabilities;  // of the backend, without devices that options forbid
  std::string path;           // of this communicator in the store
  std::string timeline_file;  // of start_timeline

 private:
  /// What the ranks hear of a call; checks what this rank alone can see.
  Request request(std::string_view name, const OperationCall& call) const;
  std::unique_ptr<Entry> entry(std::string_view name, const OperationCall& call) const;
  std::shared_ptr<WorkState> submit(std::unique_ptr<Entry> entry, bool ring);
  std::shared_ptr<WorkState> submit_group(std::string_view group,
                                          std::vector<std::unique_ptr<Entry>> entries);
  Staging& staging(Device device);
  /// Whether the backend works on this entry's memory where it is. Equal on all ranks for equal
  /// requests. Throws Error(invalid_argument) for memory of another device than the backend's.
  bool stays_on_device(const Entry& entry);
  std::shared_ptr<WorkState> submit_there(std::string name,
                                          std::vector<std::unique_ptr<Entry>> entries, bool ring);

  mutable std::mutex mutex_;  // guards the following
  std::vector<std::pair<Device, std::shared_ptr<Staging>>> stagings_;
  std::set<std::string> told_;  // what goes through host memory

  std::unordered_map<std::string, GroupWorks> group_works_;
};

}  // namespace tutti
