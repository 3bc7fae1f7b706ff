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

/// Regions that were used before, so that a steady step allocates none. Each is at most an eighth
/// larger than was asked for, or has room for 4 KiB. Bounded: a region of the host's memory that
/// was not asked for during the last kForgetAfter takes goes back to the backend, and so does the
/// one unused for longest when there are more than 64. Memory of a device stays: freeing it blocks
/// the caller until the device is idle.
class RegionPool {
 public:
  static constexpr uint64_t kForgetAfter = 1024;
  explicit RegionPool(Backend& backend) : backend_(backend) {}
  /// On a device there is room for a veto lane behind `bytes`.
  std::unique_ptr<Region> take(size_t bytes, Device device = {});
  void give_back(std::unique_ptr<Region> region, Device device = {});
  uint64_t allocations() const { return allocations_; }
  /// Of the regions that no Run has.
  size_t free_bytes() const;

 private:
  Backend& backend_;
  struct Free {
    Device device;
    std::unique_ptr<Region> region;
    uint64_t since = 0;  // how many takes there had been
  };
  std::vector<Free> free_;  // the one unused for longest first
  uint64_t takes_ = 0;
  uint64_t allocations_ = 0;
};

class PreparedPair;

/// Says where an operation comes from, and so how its ranks know that it is the same one.
struct Origin {
  enum class Kind : uint8_t {
    negotiated,  // an answer of rank 0; by its tag
    planned,     // a plan; `number` is the bucket's sequence in it
    pair,        // a prepared pair; `number` counts its uses
  };
  Kind kind = Kind::negotiated;
  uint64_t number = 0;
  PreparedPair* in = nullptr;  // the pair
};

///   waiting --start--> running --done, vetoed or failed-------------------> over
///   running --the plan was vetoed in front of it--> cancelled ------------> over
///   running --a rank that it needs has left-------> doomed ---------------> over
///   running --fails and no rank is known to be why--> unexplained
///   unexplained --a rank that it needs has left---> doomed
///   doomed  --the plan was vetoed in front of it--> cancelled
///   over    --its pair or plan repeats it---------> waiting
/// An operation that stays unexplained breaks the communicator.
enum class RunState : uint8_t { waiting, running, cancelled, doomed, unexplained, over };

/// One collective of the backend on its way: the memory it works on, the entries that it serves,
/// how their tensors are packed into that memory and unpacked. The Collective's spans point into
/// this object, which therefore stays where it is.
class Run {
 public:
  Run(uint64_t tag, RegionPool& pool) : tag_(tag), pool_(pool) {}
  ~Run();
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  /// A fused allreduce. `entries`: one per slice; empty if this rank takes part with nothing
  /// (joined, or vetoing). `contributors`: the divisor of average. `device`: where the backend
  /// works on it.
  static std::unique_ptr<Run> bucket(uint64_t tag, RegionPool& pool, const Bucket& bucket,
                                     std::vector<Entry*> entries, int contributors, Device device);
  /// The same bucket again, with the memory of entries(), which the scheduler has filled before.
  void repeat(uint64_t tag);
  /// Any other kind, of one answer, or allgathers or reduce_scatters that share a bucket. No
  /// `entries`: this rank vetoes; `given` are the rows that it then would give each rank, if parts
  /// are exchanged. May throw Error (out of memory).
  static std::unique_ptr<Run> moved(uint64_t tag, RegionPool& pool,
                                    std::span<const Response> answers,
                                    const std::vector<int64_t>& given, std::vector<Entry*> entries,
                                    int rank, int size);
  /// Whether repeat() can run it once more. Before finish().
  bool can_repeat() const;

  /// waiting -> running. Buckets go into `queue`.
  void start(Backend& backend, uint32_t verdict, int queue, Clock::time_point now);
  /// On a device, while the operation is pending: tells the Works whose gates it opens, the first
  /// time that it is on its way, and returns true then.
  bool tell_on_its_way();
  /// Copies what was staged to where the user wants it. After state done.
  void finish();
  /// Its plan was vetoed in front of it: what it does is void, and its entries are asked for again.
  void cancel();
  /// This rank left before it finished this run, which thus never ends.
  void doom(int rank);
  /// It failed, and nothing is known that explains it. Returns since when that is so.
  Clock::time_point wait_for_cause(Clock::time_point now);
  void end() { life_.state = RunState::over; }

  RunState state() const { return life_.state; }
  /// Whether it was cancelled or doomed.
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
  /// Of a replayed bucket that was started: what its plan says that this rank sends.
  const Traffic& traffic() const { return predicted_.traffic; }
  Clock::time_point started() const { return started_; }
  /// On a device: where it says when it did what; null: nobody asks.
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
  std::vector<int64_t>
      rows_;  // that this rank gets from each rank, if their numbers are its result
  std::vector<Entry*> entries_;
  std::vector<BucketSlice> slices_;
  // Of allgathers or reduce_scatters that share a bucket: elements of each rank, and rows.
  struct Member {
    std::vector<int64_t> counts, rows;
  };
  std::vector<Member> members_;
  int rank_ = 0;  // this one, where it must be known
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
  std::vector<Window> windows_;  // if all of the bucket is shared memory
  bool may_share_ = false;
  bool updates_ = false;  // the result was not used for what it is meant for
  Scale prescale_;
  int contributors_ = 0;
  size_t region_bytes_ = 0;  // of a bucket, taken when it starts
  Device device_;            // where the backend works on it
  struct Predicted {
    Traffic traffic;
    int64_t windows = -1;  // for so many; -1: not yet
  };
  Predicted predicted_;
  /// It has this where the backend works in the memory of a device.
  struct OnDevice {
    DeviceLaunch launch;
    std::vector<void*> ready;
    std::vector<uint64_t*> gates;
    std::vector<WorkState*> gated;       // whose gates these are
    std::shared_ptr<std::byte> nothing;  // what a rank without entries packs
    std::unique_ptr<Copying> copying;
    std::shared_ptr<const DeviceSpans> spans;
  };
  OnDevice on_device_;
  VerdictGate gate_;       // of an operation of a plan
  PairOperation in_pair_;  // of a pair
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
