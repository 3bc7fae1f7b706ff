#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/explore/explored.h"
#include "tests/explore/explorer.h"
#include "tests/explore/run/choices.h"
#include "tests/explore/run/fiber.h"

namespace tutti::explore {

/// Adds `what` to the history that `hash` stands for.
inline uint64_t mixed(uint64_t hash, uint64_t what) {
  hash = ((hash ^ (hash >> 29)) + what + 1) * 0x9e3779b97f4a7c15;
  return hash ^ (hash >> 32);
}

/// A store that its thread has made but that the others do not see yet.
struct DelayedStore {
  Cell* cell;
  uint64_t value;
  Message message;
};

/// A thread of a run. Thread 0 makes the model before all other threads run, and checks it after
/// them.
struct RunThread {
  enum class State : uint8_t {
    ready,
    locking,    // waits until the mutex `lock` is free
    waiting,    // waits on a condition; then it needs the mutex `lock`
    awaiting,   // waits for a notify of an atomic
    listening,  // waits for a bell
    paused,     // waits until another thread has written something
    over
  };

  Fiber fiber;  // its stack is kept for the next run

  /// Reset in each run.
  struct {
    const Model::Thread* model = nullptr;
    State state = State::ready;
    const Object* at = nullptr;  // the object at which it waits
    Mutex* lock = nullptr;
    Clock::time_point deadline = Clock::time_point::max();
    uint64_t own_writes = 0;     // writes that changed a value
    uint64_t seen_writes = 0;    // writes of the others when its last pause ended
    int pauses_at_one_cost = 0;  // remaining pauses at the same cost
    VectorClock clock;
    Message fence;         // the message of relaxed stores after a fence
    VectorClock unfenced;  // the clocks of relaxed loads, for the next fence to receive
    uint64_t history = 0;  // a hash of everything that it has done and read
    std::vector<DelayedStore> buffer;
    bool is_draining = false;
  } now;
};

/// One run of a model at a time: its threads, their views of each other, and the choice of the next
/// thread.
class Run {
 public:
  Run(Choices& choices, const Bounds& bounds);

  /// Returns the run of the policy's operations, or null outside of runs.
  static Run* current() { return current_; }

  /// Makes one run from the start. Returns false if it failed.
  bool make(const std::function<void(Model&)>& build);
  const std::string& failure() const { return failure_; }
  const std::string& trace() const { return trace_; }

  // --- operations, called by the policy ---
  uint32_t enter(const Object& object, Object::Kind kind);
  void leave(const Object& object);
  uint64_t load(const Cell& cell, std::memory_order order);
  void store(Cell& cell, uint64_t value, std::memory_order order);
  uint64_t begin_change(Cell& cell, const char* operation);
  void change(Cell& cell, uint64_t value, std::memory_order order);
  void keep(const Cell& cell, std::memory_order order);
  void wait(const Cell& cell, uint64_t old, std::memory_order order);
  void notify(const Object& object, RunThread::State waiters, bool all);
  void lock(Mutex& mutex);
  bool try_lock(Mutex& mutex);
  void unlock(Mutex& mutex);
  bool wait_until(Condition& condition, Mutex& mutex, Clock::time_point when);  // true: timeout
  void ring(const Bell& bell);
  void silence(const Bell& bell);
  bool wait(const Bell& bell, std::chrono::microseconds most);
  void fence();
  void pause();
  Clock::time_point now();
  void reads(const void* data);
  void writes(const void* data);
  /// Ends the run. Does not return in a thread of the model.
  void fail(std::string text);
  void name(const void* object, const char* name) { names_.push_back({object, name}); }

 private:
  using State = RunThread::State;
  enum class Way : uint8_t {
    on,
    timeout,    // before anything else has happened
    spurious,   // ends the wait on a condition
    regardless  // ends a pause although no thread has written
  };
  struct Option {
    int thread;
    Way way;
  };
  using Options = std::array<Option, 3 * kMostThreads>;
  struct Known {           // an object of the policy
    const Object* object;  // null if it is gone
    Object::Kind kind;
    int of_its_kind;
  };
  struct Plain {  // data without atomics
    const void* data;
    int writer;
    uint16_t written;
    VectorClock read;
  };
  struct Step {  // a line of the trace
    int thread;
    const char* operation;
    const void* object;  // null if there is none
    int known;           // its index in objects_; -1: plain data
    std::optional<uint64_t> value;
    const char* how;
  };
  struct Failed {};

  // scheduling: run.cc
  void reset();
  static void run_thread();
  void end_thread();
  auto& me() { return threads_[running_].now; }
  bool is_enabled(int thread) const;
  uint64_t others_writes(int thread) const { return writes_ - threads_[thread].now.own_writes; }
  void point();
  void block();
  int add_others(Options& options, int count) const;
  int add_paid(Options& options, int count) const;
  void pick(const Options& options, int free, int count);
  void go_on_with(Option option);
  bool let_time_pass(Options& options);
  uint64_t state() const;

  // memory: memory.cc and locks.cc
  void check(const Object& object);
  void learn(uint64_t what);
  uint64_t hashed(const Cell& cell, uint64_t value);
  Message send(std::memory_order order);
  void receive(const Message& message, std::memory_order order);
  uint64_t seen_by_me(const Cell& cell, std::memory_order order);
  void settle(const Cell& cell, int by);
  void drain(int thread, size_t stores);
  void drain_all();
  void commit(int thread, Cell& cell, uint64_t value, const Message& message);
  void wrote(int thread);
  void acquire(Mutex& mutex);
  void release(Mutex& mutex);
  void set_bell(const Bell& bell, bool is_rung, const Message& message);
  Plain& plain(const void* data);

  // traces: trace.cc
  void note(const char* operation) { steps_.push_back({running_, operation, nullptr, -1, {}, ""}); }
  void note(const char* operation, const Object& object, std::optional<uint64_t> value = {},
            const char* how = "") {
    const auto known = static_cast<int>(object.number());
    steps_.push_back({running_, operation, &object, known, value, how});
  }
  std::string describe(const void* object, int known) const;
  std::string thread_name(int thread) const;
  std::string who_waits() const;
  std::string written_trace() const;

  static Run* current_;

  Choices& choices_;
  const Bounds bounds_;
  std::vector<RunThread> threads_;  // only the first count_ take part
  int count_ = 1;
  int running_ = 0;
  Clock::time_point now_;
  uint64_t writes_ = 0;         // writes of all threads that changed a value
  int idle_ = 0;                // how often threads continued since the last write
  int last_idle_ = 0;           // the last thread that did so
  uint64_t memory_ = 0;         // a hash of all atomics, locks and bells
  const char* changing_ = "";   // the name of the current read-modify-write
  std::vector<Known> objects_;  // by number
  std::array<int, 4> of_kind_{};
  std::vector<Plain> plain_;
  std::vector<uint64_t> pointers_;  // hashes use their indices, because the order of addresses is
                                    // arbitrary
  std::vector<Step> steps_;
  std::vector<std::pair<const void*, const char*>> names_;
  bool may_throw_ = false;  // thread 0 may end by an exception
  bool is_failed_ = false;
  std::string failure_, trace_;
};

}  // namespace tutti::explore
