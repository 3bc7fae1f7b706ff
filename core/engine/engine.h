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

/// Adds the threads, locks, descriptors and the clock to a Node, which decides what this rank does.
/// Exactly one thread at a time holds the token, the right to run the node. A thread that waits for
/// a Work runs the node itself. When no thread waits, the background thread runs it. The thread
/// with the token sleeps in only one place, the poller. An idle engine uses no timer. Callbacks run
/// on a separate thread, which never holds the token.
class Engine final : public Driver, private Outside, public std::enable_shared_from_this<Engine> {
  /// The input that the program's threads leave for the engine's next step.
  struct Offered {
    std::vector<Entry*> operations, joins;
    std::vector<std::unique_ptr<Region>> retired;
    // The error text that was passed to close(); empty: no error. Not set before close().
    std::optional<std::string> closing;
  };
  using HandOver = HandOverOf<Offered>;

 public:
  /// Makes the engine. It never accesses a store itself, because a store may answer late or never.
  /// It reads deaths from the job's store through `deaths`; `context` no longer has a store.
  Engine(Options options, Context context, std::unique_ptr<Backend> backend,
         std::unique_ptr<DeathReader> deaths);
  ~Engine() override;

  /// Starts the callback thread, and the background thread, which sleeps until start(). Throws
  /// std::system_error if the system cannot make a thread.
  void prepare();
  void start();
  /// Called instead of start() if the peers never connected to this engine. It sends them no
  /// goodbye.
  void abandon() noexcept;
  /// Fails the pending operations, says goodbye and ends the two threads. Waiting threads
  /// immediately get Error(closed). Any thread may call it, also a callback; further calls do
  /// nothing. It waits for at most close_timeout for each of these: a running update or observer,
  /// the goodbye, and a running callback. `error` is the reason for closing, which the peers and
  /// tutti-run receive. Empty means no error.
  void close(std::string_view error = {}) noexcept;

  /// Submits operations, all or none. The caller claims their entries, fills them in and commits.
  /// The object holds the lock of the hand-over until it is destroyed. The destructor releases
  /// entries that were not committed.
  class Submission {
   public:
    /// Throws if the engine is closed, broken or forked. The error text contains `name`.
    Submission(Engine& engine, std::string_view name);
    ~Submission();
    Submission(const Submission&) = delete;
    Submission& operator=(const Submission&) = delete;
    /// Returns the entry with this key, unchanged since its last use. Throws Error(duplicate_name)
    /// if the entry is pending.
    Entry& claim(std::string_view key);
    /// Claims an entry that was found earlier in a table of this generation, without a look-up.
    Entry& claim(Entry& entry);
    uint64_t generation() const { return engine_.entries_.generation(); }
    void count_allocation() { engine_.entries_.count_allocation(); }
    /// Submits the claimed entries. `ring`: the caller will not wait immediately, so the background
    /// thread must be woken.
    void commit(bool ring);

   private:
    Entry& hold(Entry& entry);
    Engine& engine_;
    const HandOver::Lock lock_;
    const size_t before_;
    bool committed_ = false;
  };
  /// Submits entries that the caller allocated, all or none.
  void submit(std::vector<std::unique_ptr<Entry>> entries, bool ring);
  void submit_join(std::unique_ptr<Entry> entry);
  /// Runs a blocking collective, which every rank calls at the same point of its program. The
  /// calling thread alone runs it, without negotiation and without waking another thread. Returns
  /// false if the backend cannot do this; the caller then uses submit(). For `layout` see
  /// layout_of().
  bool run_now(std::string_view name, const Collective& collective, uint64_t layout = 0);
  /// Runs a blocking send, a receive, or one of each at the same time. Both ranks must make their
  /// calls in the same order. The root of each call's Collective is the other rank. If both calls
  /// fail, the function throws the error of the first call after both have ended.
  struct PairCall {
    std::string_view name;
    Collective collective;
    uint64_t layout = 0;
  };
  static constexpr size_t kMostPairCalls = PairCalls::kMost;
  bool run_pairs_now(std::span<const PairCall> calls);
  /// Frees memory of the program as soon as no operation of this rank uses it. Pending operations
  /// that use it fail with Error(invalid_argument). Any thread may call it. Never blocks.
  void retire(std::unique_ptr<Region> region) noexcept;
  /// Stores 1 in the flag `word` when this communicator ends, or immediately if it has ended. A
  /// kernel that waits on a GPU polls this flag. The engine holds the flag until then. Any thread
  /// may call it.
  void raise_when_over(std::shared_ptr<uint32_t> word);
  /// Makes the engine check again everything that waits. Any thread may call it. Never blocks.
  void wake() { turns_.wake(); }
  /// While it exists, the engine watches the peers as if an operation were pending. A thread that
  /// waits for peers without an operation needs this, for example in split(). Any thread may make
  /// one.
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
  /// Runs `function` on the callback thread, or immediately in this thread if the engine is closed.
  /// Any thread may call it. Never blocks.
  void post(std::function<void()> function) { callbacks_.push(std::move(function)); }
  /// Finishes one part of this Work. After the last part, the callback thread runs the Work's
  /// callbacks. Any thread may call it. Never blocks, never throws.
  void end_part(WorkState& work, std::optional<Error> error) noexcept;
  /// Called after a callback has finished a Work. Wakes the threads that may wait for this Work, or
  /// for an operation that this Work held up. Any thread may call it.
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
  /// Returns the error that ended this communicator, or nothing if it has not failed.
  std::optional<Error> broken() const;
  /// Returns the first rank that left, was lost or is silent, or -1 if none is known.
  int gone_rank() const;
  void log(LogLevel level, const std::string& line) noexcept override;
  /// Throws Error(closed) in a fork of the process that made this engine. The error text contains
  /// `name`. Callers check this before they take any lock, because a fork may have inherited the
  /// lock in locked state.
  void check_not_forked(std::string_view name) const override {
    if (forked()) refuse_in_fork(name);
  }
  bool forked() const override { return fork_guard_.forked(); }

 private:
  // --- called by the node, on the thread that runs the engine (engine_outside.cc) ---
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
  /// Throws the error that ended the communicator, if it has ended.
  void check_usable(const HandOver::Lock& lock, std::string_view name) const;
  /// Converts an error that ended several operations to the error of the Work called `name`.
  static Error about(const Error& error, std::string_view name);

  // --- called by the thread that runs the engine ---
  /// Runs one step. Returns false if nothing changed, so that the thread may rest.
  bool step();
  void fill_batch();
  void free_retired();
  /// Runs `function`. A thread that runs the engine does all its work in here. If the engine, or
  /// the program's observer or update, throws, the communicator ends on every rank with an Error
  /// that describes the exception. The thread remains the one that runs the engine. Returns false
  /// if `function` threw.
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
  /// Returns true if close() was called and the node has not learned of it yet.
  bool must_tell_of_close() const { return turns_.is_ending() && !batch_.closes; }
  /// Spins, then sleeps until there may be progress or the deadline has passed.
  void rest(Deadline deadline, int& idle_rounds);
  /// Sleeps in the poller until the time `until`, or until a peer or another thread wakes it. max()
  /// means no time limit.
  void sleep(Clock::time_point until);
  static void spin(int round, int looks_between_yields);
  /// Adds the time of a waiting thread to the statistics.
  struct WaitAccount {
    Clock::time_point last;  // the time before this point is already counted
    double* rested_for;      // if the thread rested since `last`: the counter to use; else null
  };
  void charge(WaitAccount& account, bool moved, bool lacks_ranks);
  void count_wait(Clock::time_point begin);
  /// Throws if this thread must not wait in a blocking call.
  void check_may_block(std::string_view name);
  /// Runs a blocking call while this thread runs the engine. `start` counts the call and returns
  /// its Operation, or null if the call has already ended.
  template <class Start>
  void block(std::string_view name, const Start& start);
  OperationState drive_blocking(Operation& operation, std::optional<Error>& error);
  void await_cause(const Error* reason);

  // --- called through turns_ (engine_turns.cc) ---
  class Machine;
  class DrivenMachine;
  void background();
  void leave_to_background();
  /// Limits for a blocking call that waits for its peers before it runs the engine. If every rank
  /// has its own core, the backend first polls kBlockingSpins times. Then the engine polls for up
  /// to kBlockingSpinning, with a yield every kBlockingLooks polls. If ranks share cores, the
  /// engine only yields, at most kBlockingYields times and for at most kBlockingYielding.
  static constexpr int kBlockingSpins = 4096, kBlockingYields = 256, kBlockingLooks = 64;
  static constexpr Clock::duration kBlockingSpinning = std::chrono::microseconds(500);
  static constexpr Clock::duration kBlockingYielding = std::chrono::milliseconds(20);
  static constexpr int kYields = 32;
  /// Smaller in-place tensors in shared memory are reduced as if they were in private memory,
  /// because a copy then costs less.
  static constexpr int64_t kLeastSharedBytes = 4096;

  // --- the engine's end (engine_life.cc) ---
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
  const int ranks_here_;  // number of ranks that are threads of this process
  const std::unique_ptr<Backend> backend_;
  const std::shared_ptr<Timeline> timeline_;  // devices may still add spans to it later

  // Only the thread that runs the engine uses these.
  std::unique_ptr<Node> node_;
  Node::Batch batch_;  // input of the node's next step
  std::vector<std::shared_ptr<WorkState>> finishing_;
  Retired retiring_;          // memory that the program gave back; operations may still use it
  bool some_wake_ = false;    // this step made progress that threads may wait for
  bool asks_deaths_ = false;  // the node waits for news of deaths
  Statistics counting_;

  // Any thread uses these.
  TurnsOf<> turns_;
  TallyOf<Statistics> tally_;
  Poller poller_;
  // report() has already logged a Work that failed because of close().
  std::atomic<bool> reported_pending_{false};
  std::atomic<int> watches_{0};  // number of WatchOverPeers objects
  std::mutex log_mutex_;         // held while the log sink runs

  std::thread thread_;  // runs background()
  CallbackQueue callbacks_;
  std::thread callback_thread_;
  // Keeps the engine alive for a thread that was still running it when close() gave up waiting.
  std::shared_ptr<Engine> self_;

  // The lock of hand_over_ also guards the three members after it.
  HandOver hand_over_;
  EntryTable entries_;
  DeviceWaits device_waits_;
  Ending ending_;

  // The threads of these members wake the engine until they end, so these members are destroyed
  // first.
  const std::unique_ptr<DeathReader> deaths_;
  LauncherVoice voice_;
};

}  // namespace tutti
