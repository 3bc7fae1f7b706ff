#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tutti/backends/device/device_backend.h"
#include "tutti/backends/hierarchical/device_plan.h"
#include "tutti/tensor/device_runtime.h"

namespace tutti {

/// The streams of one queue. Only `packing` waits for the user's streams. So `copying` and the
/// inner backend's streams wait only for the ranks' own work.
struct LevelsStreams {
  StreamRef packing, copying;
};

/// The resources of one operation: pinned host memory, memory of the device if it needs some, an
/// event, and a word that streams write and the host polls. Later operations reuse them.
struct LevelsScratch {
  std::byte* pinned = nullptr;
  size_t bytes = 0;
  std::unique_ptr<Region> device;
  size_t device_bytes = 0;
  uint64_t* word = nullptr;
  uint64_t turn = 0;
  void* event = nullptr;
};

class LevelsOperation;

/// The state that all operations of a backend share. Except for the bell and is_aborted, only the
/// thread that drives the engine uses it.
struct LevelsPlace {
  DeviceRuntime* runtime = nullptr;
  Device device;
  std::unique_ptr<Backend> inner, cross, control;
  LevelsGrid grid;
  int size = 1;
  std::shared_ptr<DeviceBell> bell = std::make_shared<DeviceBell>();
  std::atomic<bool> is_aborted{false};
  std::vector<std::unique_ptr<LevelsScratch>> free;
  std::vector<LevelsOperation*> running;
  std::optional<Deadline> breaking_off;  // deadline of the cleanup after an abort

  std::unique_ptr<LevelsScratch> take(size_t bytes, size_t device_bytes);
};

/// A collective over both levels. Its LevelsPlan gives the calls. These are its stages:
///   1. All ranks agree, and then a bucket is packed.
///   2. The ranks of a host make the calls of `before`.
///   3. Each rank copies its share to host memory. The ranks that have the same number on
///      their hosts run `cross` on it. Each rank copies its share back.
///   4. The ranks of a host make the calls of `after`, and the bucket is unpacked.
/// No data moves before all ranks have agreed. So a veto leaves the memory of all devices
/// unchanged.
class LevelsOperation final : public Operation {
 public:
  LevelsOperation(LevelsPlace& place, const LevelsStreams& streams, const Collective& collective,
                  const Launch& launch);
  ~LevelsOperation() override;

  OperationState advance() override;
  void cancel() override;
  const Error* failure() const override { return failure_ ? &*failure_ : nullptr; }
  bool lacks_ranks() const override {
    return stage_ == Stage::agreeing && part_ && part_->lacks_ranks();
  }
  /// Does the next step, unless it must still wait for something. Returns true if it did a step.
  bool step();
  /// Releases the user's streams that wait for this operation.
  void open_gates();

 private:
  enum class Stage { agreeing, packing, before, fetching, crossing, after, unpacking, over };
  // The stages that the streams report. A stream writes `turn * kMarks + Mark` into
  // LevelsScratch::word.
  enum Mark : uint64_t { kPacked = 1, kFetched = 2, kUnpacked = 3, kMarks = 4 };

  uint64_t mark(Mark which) const { return scratch_->turn * kMarks + which; }
  bool has_passed(Mark which) const;
  void tell(StreamRef stream, Mark which);
  bool end(OperationState state);
  /// Advances `part_`. Returns true if `part_` is done. If `part_` has failed, this operation fails
  /// too.
  bool is_part_done();
  /// Starts the next of `calls`. On the device the call waits for the events `ready`. Returns false
  /// if no call is left.
  bool start_next(const std::vector<LevelsPlan::Call>& calls, std::span<void* const> ready);
  Collective collective_of(const LevelsPlan::Call& call) const;
  std::byte* memory_of(const LevelsPlan::Spot& spot) const;
  size_t bytes_of(int64_t count) const {
    return static_cast<size_t>(count * size_of(collective_.dtype));
  }
  void pack();
  void fetch();
  void cross();
  void put();
  void unpack();

  LevelsPlace& place_;
  const LevelsStreams streams_;
  Collective collective_;
  DeviceLaunch device_;
  const uint64_t tag_;
  const int contributors_;
  const bool is_bucket_;
  const LevelsPlan plan_;
  size_t next_ = 0;    // index into the calls of this stage
  uint64_t made_ = 0;  // number of calls started within this host; gives their tags
  std::unique_ptr<LevelsScratch> scratch_;
  Stage stage_ = Stage::agreeing;
  bool is_on_streams_ = false;
  OperationPtr part_;  // the operation that runs on a level now
  bool is_cancelled_ = false;
  OperationState state_ = OperationState::pending;
  std::optional<Error> failure_;
};

}  // namespace tutti
