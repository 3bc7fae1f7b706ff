#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/simulation/case.h"
#include "tests/simulation/random.h"
#include "tests/simulation/record.h"
#include "tests/simulation/world/net.h"
#include "tests/support/idle_driver.h"
#include "tutti/core/engine/entry_table.h"
#include "tutti/core/engine/retired.h"
#include "tutti/core/node/node.h"
#include "tutti/core/node/pair_calls.h"

namespace tutti::simulation {

class SimWorld;

/// One rank: the shipped Node in a shell that replaces the engine, without threads. It sleeps
/// whenever the engine may. Only what wakes the engine wakes it: its bell, its armed backend, and
/// the end of its sleep.
class SimRank final : private Outside {
 public:
  using Time = Events::Time;
  SimRank(SimWorld& world, int rank);
  ~SimRank() override;
  void start();

  // --- faults and the end ---
  void kill();
  /// Replaces start(): the ranks do not meet, and this rank's process ends.
  void abandon();
  void stand_still(Time until, bool only_steps);
  void heal();

  bool is_killed() const { return is_killed_; }
  bool is_over() const { return is_over_; }
  bool is_standing_still() const;
  int pid() const { return 100 + rank_; }
  /// Called at the end of the world. Records whether anything waits for ever, and what is left.
  void look_back();

 private:
  void note_bucket(const Launch& launch);
  /// One operation of the program.
  struct Use {
    size_t record = 0;
    const Operation* operation = nullptr;
    std::vector<std::byte> memory, given;  // input and output; their contents before the operation
    std::byte *in = nullptr, *out = nullptr;
    size_t in_bytes = 0, out_bytes = 0;
    bool is_library = false;
    size_t output_index = 0;
    std::vector<std::byte> final_out;
    std::shared_ptr<WorkState> work;
    bool is_over = false;
  };
  /// One thread of the program.
  struct Thread {
    const Script* script = nullptr;
    int number = 0;
    size_t at = 0;
    bool has_waited = false;
    std::vector<Use*> unwaited;
    std::vector<std::shared_ptr<WorkState>> awaited;  // the last one first
    bool waits = false;                               // for the last element of `awaited`
    bool is_resuming = false;
    bool is_over = false;
  };
  /// The current blocking call.
  struct Call {
    Thread* thread = nullptr;
    std::string name;
    std::vector<Use*> uses;
    std::optional<PairCalls> parts;  // the two parts of a sendrecv, or one part
    std::vector<std::vector<int64_t>> counts;
    std::optional<Time> failed_since;
  };

  // --- rank.cc: the shell ---
  template <class Function>
  bool guarded(Function&& function) {
    try {
      function();
      return true;
    } catch (...) {
      break_down();
      return false;
    }
  }
  void break_down() noexcept;
  void plan_turn(Time when);
  void turn();
  bool step();
  void fill_batch();
  void rest(bool moved, bool had_drivers);
  void rest_later(bool had_drivers);
  Time next_turn();
  void sleep(Time due);
  void leave_to_background();
  void ring();
  void on_backend_wake();
  int drivers() const;
  void end_close();
  void leave();
  void be_over();
  void note_phase();
  void observe(std::string_view point);
  bool on_start(const Collective& collective, const Launch& launch);
  void on_post(int to, std::span<const std::byte> message);
  void read_deaths(Time end);
  bool is_usable() const { return lets_in(door_); }

  // --- rank_program.cc: the program ---
  void resume(Thread& thread, Clock::duration delay);
  void run(Thread& thread);
  bool act(Thread& thread, const Action& action);  // false: the action continues later
  bool submit(Thread& thread, const Action& action, bool rings);
  void submit_join(Thread& thread);
  bool wait(Thread& thread);
  bool block(Thread& thread, const Action& action);
  bool poll_call();
  void end_call(std::optional<Error> error);
  void close(const std::string& error);
  void allocate(size_t bytes);
  void let_go_of(std::shared_ptr<Region> memory);
  Use& make_use(const Thread& thread, const Operation& operation, int index, bool in_place);
  void fill_entry(Entry& entry, Use& use, const std::string& group, size_t group_size);
  Collective collective_of(Use& use, Call& call);
  void refuse(Thread& thread, const Action& action, const Error& error);
  std::optional<Error> why_refused(std::string_view name) const;
  void commit(Thread& thread, std::span<Entry* const> entries, bool rings);
  void on_work_over(WorkState& work);
  void end_use(Use& use, const Error* error);
  OperationRecord& record_of(const Use& use);

  // --- Outside ---
  void finish(std::span<Entry* const> entries, const Error* error) override;
  void finish_all(const Error& error) override;
  void on_its_way() override {}
  void set_door(Door door, const Error& error) override;
  void on_first_departure(int) override {}
  void ask_for_deaths() override;
  void stop_asking() override { asks_ = false; }
  bool tell_launcher() override;
  ProcessState process_of(int rank) override;
  void log(LogLevel level, const std::string& line) override;

  const std::shared_ptr<Driver> driver_ = std::make_shared<test::IdleDriver>();
  SimWorld& world_;
  const int rank_;
  Random random_;
  Options options_;
  Context context_;
  std::unique_ptr<Backend> end_;
  Timeline timeline_;
  Statistics counting_;
  EntryTable entries_;
  Retired retiring_;
  std::vector<std::unique_ptr<Region>> retired_;
  std::unique_ptr<Node> node_;
  Node::Batch batch_;

  // Inputs of the next step.
  std::vector<Entry*> submitted_, joins_;
  std::optional<KnownDeaths> deaths_;
  uint64_t submissions_ = 0;
  int64_t quiet_bytes_ = 0, submitted_bytes_ = 0;
  uint32_t quiet_plan_ = 0;
  bool is_told_ = false, asks_ = false;
  Door door_ = Door::open;
  std::optional<Error> broken_;
  bool is_closing_ = false, is_leaving_ = false, is_over_ = false, is_killed_ = false;
  bool is_past_ = false;  // the world has ended
  std::string closing_error_;
  Time leaves_by_;

  // The state of the turns.
  bool is_turn_planned_ = false, is_asleep_ = false, rung_ = false, woken_ = false;
  bool is_due_ = false;      // its sleep has ended
  bool wants_turn_ = false;  // a turn was requested while another one was planned
  uint64_t sleeps_ = 0;
  Time background_due_ = Time::max();
  Time frozen_until_, steps_frozen_until_;
  uint64_t steps_ = 0, steps_in_vain_ = 0;
  Time last_step_;

  std::deque<Use> uses_;
  std::vector<Use*> open_;
  std::deque<Thread> threads_;
  std::optional<Call> call_;
  std::shared_ptr<Region> memory_;                    // from the last allocate
  std::vector<std::shared_ptr<Region>> kept_memory_;  // given back, but still to be checked
  std::unique_ptr<Region> region_;
  size_t taken_ = 0;  // bytes of memory_ in use
  int64_t starts_ = 0, observations_ = 0;
  Phase phase_ = Phase::forming;
};

}  // namespace tutti::simulation
