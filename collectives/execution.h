#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "tutti/collectives/executor.h"
#include "tutti/collectives/schedule.h"

namespace tutti {

/// A schedule with facts that the executor derives from it, stored with the problem that it solves.
struct PreparedSchedule {
  PreparedSchedule(const Algorithm& algorithm, const Problem& problem);
  bool solves(const Algorithm& algorithm, const Problem& problem) const;

  const Algorithm* const algorithm;
  Problem problem;  // its counts refer to the two vectors below
  std::vector<int64_t> counts, recv_counts;
  const Schedule schedule;
  size_t most_in_round = 0;  // most messages in one round
  int64_t longest = 0;       // number of elements of the longest message
  int64_t sends = 0;         // number of messages sent
  bool receives_any = false;
  /// By step: true if the received elements may stay in the sender's memory. This requires that
  /// only reductions of the same round read them, each element once, and that these reductions do
  /// not write to memory that is being sent.
  std::vector<bool> is_viewable;
  int64_t sent_elements = 0;
  /// By step: true if the receiver of the sent elements returns their results.
  std::vector<bool> comes_back;
  /// By step: peers to which the result of the step's reduction is sent.
  std::vector<std::vector<int>> goes_back_to;
};

/// A posted receive.
struct Receive {
  Ticket ticket = 0;
  const Step* step = nullptr;
};

/// Received elements that stay in the sender's memory until they are reduced.
struct View {
  Ticket ticket = 0;
  int peer = -1;
  Range range;  // range of scratch that the receive would otherwise fill
  const std::byte* data = nullptr;
};

/// Results that were written to memory that a peer lent.
struct Returned {
  int peer = -1;
  Range range;  // range of the output that was written
  uint64_t place = 0;
};

/// A segment in flight: its memory and its state. Released lanes are reused. The one that was
/// released last comes first, because its memory is still in the cache.
struct Lane {
  int64_t segment = 0;
  const PreparedSchedule* prepared = nullptr;
  size_t round_begin = 0, round_end = 0;  // steps of the current round
  std::vector<Receive> receives;
  std::vector<Ticket> sends;
  std::vector<View> views;
  std::vector<Returned> returned;
  bool has_acted = false;  // the current round's copies and reductions are done
  std::byte* scratch = nullptr;
  std::byte* bucket = nullptr;  // packed elements, and outputs that wait for the verdict
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  bool is_direct = false;  // output is the user's memory
  int64_t bytes = 0;       // counted in LaneQueue::bytes_in_flight

  std::unique_ptr<Region> memory;
  size_t memory_bytes() const { return memory ? memory->bytes() : 0; }
};

class Execution;

/// Segments that share one limit on bytes in flight. The segments of an operation begin after all
/// segments of earlier operations have begun.
struct LaneQueue {
  std::vector<Execution*> waiting;  // operations with segments to begin, oldest first
  int64_t bytes_in_flight = 0;
  int64_t lanes = 0;
};

/// State that the operations of one Executor share.
class ExecutionPool {
 public:
  ExecutionPool(Transport& used, std::vector<int> host_of, const ExecutorOptions& wanted);
  ~ExecutionPool();

  Transport& transport;
  const std::vector<int> hosts;
  const ExecutorOptions options;
  uint64_t allocations = 0;
  LaneQueue queues[kQueues];
  std::vector<const std::byte*> operands;  // operands of the current reduction
  std::vector<std::byte*> results;         // outputs of the current reduction

  std::shared_ptr<const PreparedSchedule> prepare(const Algorithm& algorithm,
                                                  const Problem& problem);
  std::unique_ptr<Lane> take_lane(const PreparedSchedule& prepared, size_t scratch_bytes,
                                  size_t bucket_bytes);
  void give_back(std::unique_ptr<Lane> lane);
  Execution& take_execution();
  void give_back(Execution* execution) { free_executions_.push_back(execution); }

 private:
  std::vector<std::shared_ptr<const PreparedSchedule>> prepared_;
  size_t next_prepared_ = 0;  // entry to replace when the cache is full
  void fit(Lane& lane, size_t bytes);

  std::vector<std::unique_ptr<Lane>> free_lanes_;
  size_t lane_count_ = 0;
  size_t lane_bytes_ = 0;  // most bytes that any lane has needed so far
  size_t lane_tickets_ = 0;
  std::vector<std::unique_ptr<Execution>> executions_;
  std::vector<Execution*> free_executions_;
};

/// A running collective. The object is reused for one collective after another.
class Execution final : public Operation {
 public:
  explicit Execution(ExecutionPool& pool) : pool_(pool) {}
  /// Starts a collective. Throws for invalid arguments; then nothing runs.
  void begin(const Algorithm& algorithm, const Collective& collective, const Launch& launch);
  /// Returns the messages that begin() would send, without running anything.
  Traffic predict(const Algorithm& algorithm, const Collective& collective, const Launch& launch);
  OperationState advance() override;
  void cancel() override {
    if (state_ == OperationState::pending) give_up();
  }
  void release() override;
  bool lacks_ranks() const override { return !has_received_any_; }

 private:
  void take(const Collective& collective, const Launch& launch);
  void lay_out(const Algorithm& algorithm);
  // Returns the elements of the whole input or output that a segment covers.
  Range part_of(int64_t segment, int64_t whole) const;
  const PreparedSchedule& prepared_of(int64_t segment) const {
    return segment == segments_ - 1 ? *last_ : *first_;
  }
  int64_t bytes_of(int64_t segment) const;

  bool may_begin_segment() const;
  void begin_segments();
  void begin_segment();
  void choose_input(Lane& lane);
  std::byte* final_place(const Lane& lane) const;
  void write_directly(Lane& lane);
  bool may_lend(const Lane& lane, const Step& step) const;
  void post_round(Lane& lane);
  bool has_received(Lane& lane);
  bool has_sent(Lane& lane);
  void give_views_back(Lane& lane);
  const std::byte* operand(const Lane& lane, int64_t element) const;
  void act(Lane& lane);
  void reduce_step(Lane& lane, const Step& step);
  void end_segment(Lane& lane);
  bool advance_lane(Lane& lane);
  void drop(std::unique_ptr<Lane> lane);
  void leave_queue();
  void give_up();
  std::byte* at(const Lane& lane, Slot slot, int64_t element) const;
  bool packs() const { return launch_.edges.drain != nullptr && collective_.output == nullptr; }

  ExecutionPool& pool_;
  Collective collective_;
  Launch launch_;
  int64_t element_bytes_ = 1;
  ReduceOp op_ = ReduceOp::sum;  // average is a sum that is divided at the end
  Scale scale_;
  bool input_is_readable_ = true;
  bool is_staged_ = false;  // outputs stay in the private staging memory until the verdict is known
  int64_t whole_input_ = 0, whole_output_ = 0;
  int64_t segments_ = 1;
  int64_t segment_count_ = 0;  // elements per segment except the last; 0 if there is one segment
  std::shared_ptr<const PreparedSchedule> first_, last_;  // last_: the last segment may be shorter

  std::vector<std::byte> blank_;  // sent in place of an input that must not be read
  std::vector<std::unique_ptr<Lane>> lanes_;
  LaneQueue own_queue_;
  LaneQueue* queue_ = nullptr;
  int64_t next_segment_ = 0;
  bool has_heard_all_ = false;  // verdict_ includes the verdicts of all ranks
  uint32_t verdict_ = 0;
  bool has_received_any_ = false;  // true from the start if the schedule receives nothing
  bool has_failed_ = false;
  bool is_giving_up_ = false;
  OperationState state_ = OperationState::done;
};

}  // namespace tutti
