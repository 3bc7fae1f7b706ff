#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tutti/backends/backend.h"
#include "tutti/core/agreement/bucket.h"
#include "tutti/core/scheduling/entry.h"
#include "tutti/core/scheduling/pair_operation.h"
#include "tutti/core/scheduling/verdict_gate.h"
#include "tutti/kernels/convert.h"

namespace tutti {

/// A pool of regions, so that a repeated step allocates none. A size is rounded up by less than an
/// eighth, or by less than 4 KiB if that is more. The pool is bounded in two ways. A host region
/// that was not used during the last kForgetAfter calls of take() is returned to the backend.
/// Device regions are exempt, because freeing one blocks the caller until the device is idle. If
/// there are more than 64 regions, the one that was unused for longest is returned.
class RegionPool {
 public:
  static constexpr uint64_t kForgetAfter = 1024;
  explicit RegionPool(Backend& backend) : backend_(backend) {}
  /// Returns a region of at least `bytes`. On a device the region also has room for a veto flag
  /// behind these bytes.
  std::unique_ptr<Region> take(size_t bytes, Device device = {});
  void give_back(std::unique_ptr<Region> region, Device device = {});
  uint64_t allocations() const { return allocations_; }
  /// Returns the total size in bytes of the regions in the pool.
  size_t free_bytes() const;

 private:
  Backend& backend_;
  struct Free {
    Device device;
    std::unique_ptr<Region> region;
    uint64_t since = 0;  // value of takes_ when the region was given back
  };
  std::vector<Free> free_;  // ordered by time without use, longest first
  uint64_t takes_ = 0;
  uint64_t allocations_ = 0;
};

class PreparedPair;

/// The source of an operation. It determines how the ranks identify the operation.
struct Origin {
  enum class Kind : uint8_t {
    negotiated,  // an answer of rank 0; `number` is unused, the tag identifies it
    planned,     // a bucket of a plan; `number` is its sequence number
    pair,        // a prepared pair of send and receive; `number` is the index of its use
  };
  Kind kind = Kind::negotiated;
  uint64_t number = 0;
  PreparedPair* in = nullptr;  // the prepared pair, or null
};

///   waiting --start--> running --done, vetoed or failed-------------------> over
///   running --the plan was vetoed before it--> cancelled -----------------> over
///   running --a rank that it needs has left-------> doomed ---------------> over
///   running --fails, and no rank is known as cause--> unexplained
///   unexplained --a rank that it needs has left---> doomed
///   doomed  --the plan was vetoed before it-------> cancelled
///   over    --its pair or plan repeats it---------> waiting
/// If an operation stays unexplained, the communicator breaks.
enum class RunState : uint8_t { waiting, running, cancelled, doomed, unexplained, over };

/// One collective that the backend runs. It owns the collective's memory, knows the entries that
/// the collective serves, and packs and unpacks their tensors. The Collective's spans point into
/// this object, so it must not move.
class Run {
 public:
  Run(uint64_t tag, RegionPool& pool) : tag_(tag), pool_(pool) {}
  ~Run();
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  /// Makes a fused allreduce. `entries` has one entry per slice. It is empty if this rank takes
  /// part without data (joined, or vetoing). `contributors` is the divisor of an average. `device`
  /// is the device on which the backend works.
  static std::unique_ptr<Run> bucket(uint64_t tag, RegionPool& pool, const Bucket& bucket,
                                     std::vector<Entry*> entries, int contributors, Device device);
  /// Prepares the same operation for its next use. The scheduler must have filled entries() before.
  void repeat(uint64_t tag);
  /// Makes an operation of another kind: one answer, or several allgathers or reduce_scatters that
  /// share a bucket. Without `entries` this rank vetoes (refuses to run) it. In that case, if parts
  /// are exchanged, `given` has the number of rows that this rank would send to each rank. Throws
  /// Error(out_of_memory).
  static std::unique_ptr<Run> moved(uint64_t tag, RegionPool& pool,
                                    std::span<const Response> answers,
                                    const std::vector<int64_t>& given, std::vector<Entry*> entries,
                                    int rank, int size);
  /// Returns whether the Run can be used again with repeat(). Call it before finish().
  bool can_repeat() const;

  /// Changes from waiting to running. `verdict` is 0 unless this rank vetoes the operation. `queue`
  /// is the Launch queue for buckets, for operations on a device, and for operations that the
  /// backend packs itself.
  void start(Backend& backend, uint32_t verdict, int queue, Clock::time_point now);
  /// Checks a pending operation on a device. A gate is memory for which streams wait. When the
  /// write that opens the operation's gates is on a stream, marks the gates' Works and returns
  /// true, once.
  bool tell_on_its_way();
  /// Copies staged results to the user's memory. Requires that the operation is done.
  void finish();
  /// Cancels the operation because the plan was vetoed at an earlier bucket. Its result is
  /// discarded, and its entries are requested again.
  void cancel();
  /// Records that `rank` left before it finished this operation, which therefore can never
  /// complete.
  void doom(int rank);
  /// Called when the operation failed and no known cause explains it. Returns the time of the first
  /// such call.
  Clock::time_point wait_for_cause(Clock::time_point now);
  void end() { life_.state = RunState::over; }

  RunState state() const { return life_.state; }
  /// Returns whether the operation was cancelled or doomed.
  bool is_given_up() const {
    return life_.state == RunState::cancelled || life_.state == RunState::doomed;
  }
  int doomed_by() const { return life_.doomed_by; }
  const Origin& origin() const { return origin_; }
  void set_origin(const Origin& origin) { origin_ = origin; }
  bool is_planned() const { return origin_.kind == Origin::Kind::planned; }
  bool is_in_pair() const { return origin_.kind == Origin::Kind::pair; }
  uint64_t tag() const { return tag_; }
  const Collective& collective() const { return collective_; }
  std::vector<Entry*>& entries() { return entries_; }
  const std::vector<Entry*>& entries() const { return entries_; }
  const std::vector<BucketSlice>& slices() const { return slices_; }
  Operation* operation() const { return operation_.get(); }
  int64_t bytes() const;
  bool is_on_device() const { return device_.kind != DeviceKind::cpu; }  // the backend works there
  /// Returns the predicted traffic that this rank sends. Requires a started operation of a plan or
  /// pair.
  const Traffic& traffic() const { return predicted_.traffic; }
  Clock::time_point started() const { return started_; }
  /// On a device: sets the object that records the times of the operation's parts; null: no
  /// timeline.
  void set_spans(std::shared_ptr<const DeviceSpans> spans) { on_device_.spans = std::move(spans); }

 private:
  void take_single(const Response& response, const std::vector<int64_t>& given, Entry* entry,
                   int rank, int size);
  void take_members(std::span<const Response> answers, int size);
  void bind_members();
  void pack_members();
  void unpack_members();
  void stage(const Signature& signature, Entry* entry, int64_t input_count, int64_t output_count);
  static void fill(void* self, Range range, std::byte* bucket);
  static void drain(void* self, Range range, const std::byte* bucket, Scale scale);
  static const std::byte* input_of(void* self, Range range);
  static std::byte* output_of(void* self, Range range);
  static void fill_with_nothing(void* self, Range range, std::byte* bucket);

  void bind();
  void start_on_device(Launch& launch);
  void contribute_nothing();
  bool must_keep_input_apart(bool is_packed) const;
  void keep_input_apart(bool is_packed);
  bool is_one_tensor() const;

  uint64_t tag_;
  RegionPool& pool_;
  Collective collective_;
  std::vector<int64_t> send_counts_, recv_counts_;
  std::vector<int64_t> rows_;  // number of rows from each rank, if that is part of the result
  std::vector<Entry*> entries_;
  std::vector<BucketSlice> slices_;
  // One allgather or reduce_scatter in a shared bucket: numbers of elements and rows of each rank.
  struct Member {
    std::vector<int64_t> counts, rows;
  };
  std::vector<Member> members_;
  int rank_ = 0;  // this rank; only set for kinds other than allreduce
  std::unique_ptr<Region> region_, output_region_;
  /// A copy of an input on its device, and the event after which the copy is complete.
  struct Copying {
    DeviceRuntime& runtime;
    StreamRef stream;
    std::unique_ptr<StreamPoint> done = {};
    Copying(DeviceRuntime& used, Device device)
        : runtime(used), stream(used.create_stream(device)) {}
    ~Copying() { runtime.destroy_stream(stream); }
    bool is_over() const noexcept {
      try {
        return done && runtime.reached(done->event());
      } catch (const std::exception&) {
        return false;  // the device has failed for good
      }
    }
    Copying(const Copying&) = delete;
    Copying& operator=(const Copying&) = delete;
  };
  std::vector<Piece> inputs_, outputs_;
  std::vector<Window> windows_;  // set if the whole bucket is in shared memory
  bool may_share_ = false;
  bool updates_ = false;  // the FusedUpdate must still be applied to the result
  Scale prescale_;
  int contributors_ = 0;
  size_t region_bytes_ = 0;  // size of a bucket's region, which is taken when the bucket starts
  Device device_;            // the device on which the backend works
  struct Predicted {
    Traffic traffic;
    int64_t windows = -1;  // number of windows in the prediction; -1: not predicted yet
  };
  Predicted predicted_;
  /// Used if the backend works in the memory of a device.
  struct OnDevice {
    DeviceLaunch launch;
    std::vector<void*> ready;
    std::vector<uint64_t*> gates;
    std::vector<WorkState*> gated;       // the Works to which `gates` belong
    std::shared_ptr<std::byte> nothing;  // contribution of a rank without entries
    std::unique_ptr<Copying> copying;
    std::shared_ptr<const DeviceSpans> spans;
  };
  OnDevice on_device_;
  VerdictGate gate_;       // used by an operation of a plan
  PairOperation in_pair_;  // used by an operation of a pair
  OperationPtr operation_;
  Origin origin_;
  struct Life {
    RunState state = RunState::waiting;
    int doomed_by = -1;
    Clock::time_point unexplained_since;
  };
  Life life_;
  Clock::time_point started_;
};

}  // namespace tutti
