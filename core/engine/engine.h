#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tutti/backends/backend.h"
#include "tutti/base/process/fork_guard.h"
#include "tutti/core/engine/callback_queue.h"
#include "tutti/core/engine/device_waits.h"
#include "tutti/core/engine/ending.h"
#include "tutti/core/engine/entry_table.h"
#include "tutti/core/engine/launcher_voice.h"
#include "tutti/core/engine/retired.h"
#include "tutti/core/node/node.h"
#include "tutti/core/node/pair_calls.h"
#include "tutti/core/settings/options.h"
#include "tutti/core/settings/statistics.h"
#include "tutti/core/threads/hand_over.h"
#include "tutti/core/threads/tally.h"
#include "tutti/core/threads/turns.h"
#include "tutti/core/watch/death_reader.h"
#include "tutti/core/watch/timeline.h"

namespace tutti {

/// The threads, locks, descriptors and the clock around a Node, which decides what this rank does.
/// Exactly one thread at a time holds the token and moves the node: a thread that waits for a Work
/// drives it itself; when no thread waits, the background thread does. The holder sleeps in one
/// place, the poller. Nothing ticks when idle. Callbacks have a thread of their own, which never
/// holds the token.
class Engine final : public Driver, private Outside, public std::enable_shared_from_this<Engine> {
  /// The program's threads put this down for the next step.
  struct Offered {
    std::vector<Entry*> operations, joins;
    std::vector<std::unique_ptr<Region>> retired;
    std::optional<std::string> closing;  // close() was called, because of this error or of none: ""
  };
  using HandOver = HandOverOf<Offered>;

 public:
  /// The engine never asks a store itself, since a store may answer late or never. It reads deaths
  /// in the job's store through `deaths`, and `context` no longer has a store.
  Engine(Options options, Context context, std::unique_ptr<Backend> backend,
         std::unique_ptr<DeathReader> deaths);
  ~Engine() override;

  /// Makes the background thread, which sleeps until start(), and the callbacks' thread. Throws
  /// std::system_error if the system gives no thread.
  void prepare();
  void start();
  /// Instead of start(): the peers are not told goodbye, for they never met this engine.
  void abandon() noexcept;
  /// Fails what is pending, says goodbye, ends the two threads. Threads that wait hear
  /// Error(closed) at once. Any thread, callbacks too. Idempotent. Each of these waits for at most
  /// close_timeout: an update or an observer that runs, the goodbye, a callback that runs.
  /// `error`: because of which the program closes, for the peers and tutti-run; empty: none.
  void close(std::string_view error = {}) noexcept;

  /// Hands operations over, all or none: claim their entries, fill them in, commit. It holds the
  /// lock of the hand-over until it is destroyed; what is not committed never was.
  class Submission {
   public:
    /// Throws if closed, broken or forked; `name` is for that message.
    Submission(Engine& engine, std::string_view name);
    ~Submission();
    Submission(const Submission&) = delete;
    Submission& operator=(const Submission&) = delete;
    /// The entry of a name, as its last use left it. Throws Error(duplicate_name) if it is pending.
    Entry& claim(std::string_view key);
    /// The same, found before in a table of this generation.
    Entry& claim(Entry& entry);
    uint64_t generation() const { return engine_.entries_.generation(); }
    void count_allocation() { engine_.entries_.count_allocation(); }
    /// `ring`: the caller does not wait at once, so the background thread must be woken.
    void commit(bool ring);

   private:
    Entry& hold(Entry& entry);
    Engine& engine_;
    const HandOver::Lock lock_;
    const size_t before_;
    bool committed_ = false;
  };
  /// Entries made elsewhere, all or none.
  void submit(std::vector<std::unique_ptr<Entry>> entries, bool ring);
  void submit_join(std::unique_ptr<Entry> entry);
  /// Runs what every rank calls at the same place of its program: by this thread alone, without
  /// negotiation and without waking anyone. False: the backend has no such way; submit() it.
  /// `layout`: see layout_of().
  bool run_now(std::string_view name, const Collective& collective, uint64_t layout = 0);
  /// The same for a send, a receive, or one of each at once, as the two ranks of each call them in
  /// one order: the kind's Collective, with the other rank as its root. If both fail, the first
  /// one's error is thrown when both are over.
  struct PairCall {
    std::string_view name;
    Collective collective;
    uint64_t layout = 0;
  };
  static constexpr size_t kMostPairCalls = PairCalls::kMost;
  bool run_pairs_now(std::span<const PairCall> calls);
  /// Frees memory of the program's when no operation of this rank uses it any more; those that do
  /// end with Error(invalid_argument). Any thread; never blocks.
  void retire(std::unique_ptr<Region> region) noexcept;
  /// Stores 1 in the word when this communicator is over, for whoever waits outside of it; at once
  /// if it is. Any thread; held until then.
  void raise_when_over(std::shared_ptr<uint32_t> word);
  /// Lets the engine look again at what waits. Any thread; never blocks.
  void wake() { turns_.wake(); }
  /// While it lives, the peers are watched as if an operation were pending. A thread that waits for
  /// peers without an operation needs this, as split() does. Any thread.
  class WatchOverPeers {
   public:
    explicit WatchOverPeers(std::shared_ptr<Engine> engine) : engine_(std::move(engine)) {
      ++engine_->watches_;
      engine_->wake();
    }
    ~WatchOverPeers() { --engine_->watches_; }
    WatchOverPeers(const WatchOverPeers&) = delete;

   private:
    const std::shared_ptr<Engine> engine_;
  };
  /// Runs `function` as a callback: on the callbacks' thread, or, if the engine is closed, at once.
  /// Any thread; never blocks.
  void post(std::function<void()> function) { callbacks_.push(std::move(function)); }
  /// One part of this Work is over. After the last part its callbacks run on the callbacks' thread.
  /// Any thread; never blocks, never throws.
  void end_part(WorkState& work, std::optional<Error> error) noexcept;
  /// A callback has ended a Work: the threads that wait for it, or that hold back what comes after
  /// it, look again. Any thread.
  void work_ended();

  void drive(WorkState& work, Milestone milestone, Deadline deadline) override;
  void report(const std::string& line) override;
  bool in_callback() const override;
  void stream_waits(const std::shared_ptr<WorkState>& work, StreamRef stream) override;
  bool is_first_on_device(const std::string& name) const override;
  void was_on_device(const std::string& name) override;
  bool ranks_share_device(DeviceRuntime& runtime) const override;

  Statistics statistics();
  Timeline& timeline() { return *timeline_; }
  const Context& context() const { return context_; }
  const Options& options() const { return options_; }
  Backend& backend() { return *backend_; }
  /// The error that ended this communicator, if one did.
  std::optional<Error> broken() const;
  /// The first rank that is gone: it left, died or is silent; -1: none is known to be.
  int gone_rank() const;
  void log(LogLevel level, const std::string& line) noexcept override;
  /// Throws Error(closed) in a fork of the process that made this. Before any lock is taken: a fork
  /// may have inherited it locked. `name`: of what is refused.
  void check_not_forked(std::string_view name) const override {
    if (forked()) refuse_in_fork(name);
  }
  bool forked() const override { return fork_guard_.forked(); }

 private:
  // --- for the node, by the holder of the token (engine_outside.cc) ---
  void finish(std::span<Entry* const> entries, const Error* error) override;
  void finish_all(const Error& error) override;
  void on_its_way() override;
  void set_door(Door door, const Error& error) override;
  void on_first_departure(int rank) override;
  void ask_for_deaths() override;
  void stop_asking() override;
  bool tell_launcher() override;
  ProcessState process_of(int rank) override;

  [[noreturn]] void refuse_in_fork(std::string_view name) const;
  /// Throws what ended the communicator, if anything did.
  void check_usable(const HandOver::Lock& lock, std::string_view name) const;
  /// The error that a Work called `name` throws, made of one that ended several operations.
  static Error about(const Error& error, std::string_view name);

  // --- by the holder of the token ---
  /// False: nothing changed, so the thread that has the token may rest.
  bool step();
  void fill_batch();
  void free_retired();
  /// Whatever a thread does while it has the token, it does in here. What is thrown there, by the
  /// engine or by the program's observer or update, ends the communicator on every rank with an
  /// Error that says it; this thread keeps the token. False: that happened.
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
  [[gnu::cold]] void break_down() noexcept;
  void publish_statistics();
  bool pending() const { return watches_ > 0 || node_->pending(); }
  /// Whether close() was called and the node has not heard of it.
  bool must_tell_of_close() const { return turns_.is_ending() && !batch_.closes; }
  /// Spins, then sleeps until something can move or the deadline passed.
  void rest(Deadline deadline, int& idle_rounds);
  /// In the poller, until a peer or the bell wakes this thread, or it is that time; max(): never.
  void sleep(Clock::time_point until);
  static void spin(int round, int looks_between_yields);
  /// Where the time of a thread that waits goes.
  struct WaitAccount {
    Clock::time_point last;  // charged until here
    double* rested_for;      // since then it may have slept, for this; null: it has not
  };
  void charge(WaitAccount& account, bool moved, bool lacks_ranks);
  void count_wait(Clock::time_point begin);
  /// Throws if this thread may not wait in a blocking call.
  void check_may_block(std::string_view name);
  /// With `start`, which counts the call and returns the Operation, or null if it is done.
  template <class Start>
  void block(std::string_view name, const Start& start);
  OperationState drive_blocking(Operation& operation, std::optional<Error>& error);
  void await_cause(const Error* reason);

  // --- how turns_ moves this (engine_turns.cc) ---
  class Machine;
  class DrivenMachine;
  void background();
  void leave_to_background();
  /// How long a blocking call looks for its peers before it drives the engine: looks of the
  /// backend, then of this class, with a yield now and then; or, where ranks share cores, yields
  /// only.
  static constexpr int kBlockingSpins = 4096, kBlockingYields = 256, kBlockingLooks = 64;
  static constexpr Clock::duration kBlockingSpinning = std::chrono::microseconds(500);
  static constexpr Clock::duration kBlockingYielding = std::chrono::milliseconds(20);
  static constexpr int kYields = 32;
  /// Shared memory smaller than this is reduced as if it were private: a copy costs less.
  static constexpr int64_t kLeastSharedBytes = 4096;

  // --- its end (engine_life.cc) ---
  bool background_ends(Deadline deadline);
  void run_to_the_end();
  void let_go();
  void write_timelines();
  void end_callbacks();

  // Constant after construction.
  const Options options_;
  const Context context_;
  const ForkGuard fork_guard_;
  const int spin_rounds_;
  const int ranks_here_;  // threads of this process
  const std::unique_ptr<Backend> backend_;
  const std::shared_ptr<Timeline> timeline_;  // devices may tell it of spans later

  // Only the token's holder touches these.
  std::unique_ptr<Node> node_;
  Node::Batch batch_;  // for the node's next step
  std::vector<std::shared_ptr<WorkState>> finishing_;
  Retired retiring_;          // memory that pending operations may use
  bool some_wake_ = false;    // this step brought Works to what threads may wait for
  bool asks_deaths_ = false;  // the node waits for news of deaths
  Statistics counting_;

  // Any thread uses these.
  TurnsOf<> turns_;
  TallyOf<Statistics> tally_;
  Poller poller_;
  std::atomic<bool> told_of_pending_{false};  // report() has told of one that close() ended
  std::atomic<int> watches_{0};               // WatchOverPeers that live
  std::mutex log_mutex_;                      // held while the log sink runs

  std::thread thread_;  // runs background()
  CallbackQueue callbacks_;
  std::thread callback_thread_;
  std::shared_ptr<Engine> kept_;  // by itself, for a thread that did not give the token back

  // Its lock guards the three after it.
  HandOver hand_over_;
  EntryTable entries_;
  DeviceWaits device_waits_;
  Ending ending_;

  // Their threads ring the bell until they are destroyed, which comes first.
  const std::unique_ptr<DeathReader> deaths_;
  LauncherVoice voice_;
};

}  // namespace tutti
