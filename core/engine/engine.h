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
/// Exactly one thread at a time holds the token and moves the node. A thread that waits for a Work
/// drives the node itself; when no thread waits, the background thread does. The holder sleeps in
/// one place, the poller. Nothing ticks when idle. Callbacks run on a thread of their own, which
/// never holds the token.
class Engine final : public Driver, private Outside, public std::enable_shared_from_this<Engine> {
  /// The requests that the program's threads leave for the next step.
  struct Offered {
    std::vector<Entry*> operations, joins;
    std::vector<std::unique_ptr<Region>> retired;
    // The error text that was passed to close(), empty for none. Set once close() was called.
    std::optional<std::string> closing;
  };
  using HandOver = HandOverOf<Offered>;

 public:
  /// The engine never asks a store itself, since a store may answer late or never. It reads deaths
  /// in the job's store through `deaths`, and `context` no longer has a store.
  Engine(Options options, Context context, std::unique_ptr<Backend> backend,
         std::unique_ptr<DeathReader> deaths);
  ~Engine() override;

  /// Starts the background thread, which sleeps until start(), and the callbacks' thread. Throws
  /// std::system_error if the system gives no thread.
  void prepare();
  void start();
  /// Replaces start() if the peers never met this engine. It sends them no goodbye.
  void abandon() noexcept;
  /// Fails the pending operations, says goodbye and ends the two threads. Waiting threads get
  /// Error(closed) at once. Any thread may call it, callbacks too; further calls do nothing. It
  /// waits for at most close_timeout each for a running update or observer, for the goodbye, and
  /// for a running callback. `error` is the reason for closing, which the peers and tutti-run
  /// receive; empty means no error.
  void close(std::string_view error = {}) noexcept;

  /// Hands over operations, all or none: claim their entries, fill them in, commit. It holds the
  /// lock of the hand-over until it is destroyed. Entries that were not committed are released
  /// again.
  class Submission {
   public:
    /// Throws if the engine is closed, broken or forked. The message contains `name`.
    Submission(Engine& engine, std::string_view name);
    ~Submission();
    Submission(const Submission&) = delete;
    Submission& operator=(const Submission&) = delete;
    /// Returns the entry of a name as its last use left it. Throws Error(duplicate_name) if it is
    /// pending.
    Entry& claim(std::string_view key);
    /// Does the same for an entry that was found before in a table of this generation.
    Entry& claim(Entry& entry);
    uint64_t generation() const { return engine_.entries_.generation(); }
    void count_allocation() { engine_.entries_.count_allocation(); }
    /// `ring`: the caller will not wait at once, so the background thread must be woken.
    void commit(bool ring);

   private:
    Entry& hold(Entry& entry);
    Engine& engine_;
    const HandOver::Lock lock_;
    const size_t before_;
    bool committed_ = false;
  };
  /// Submits entries that the caller made, all or none.
  void submit(std::vector<std::unique_ptr<Entry>> entries, bool ring);
  void submit_join(std::unique_ptr<Entry> entry);
  /// Runs a blocking collective, which every rank calls at the same point of its program. This
  /// thread alone runs it, without negotiation and without waking another thread. Returns false if
  /// the backend has no such way; the caller then uses submit(). `layout`: see layout_of().
  bool run_now(std::string_view name, const Collective& collective, uint64_t layout = 0);
  /// Does the same for a send, a receive, or one of each at once, which the two ranks call in the
  /// same order. Each call is the kind's Collective with the other rank as its root. If both fail,
  /// the first one's error is thrown when both are over.
  struct PairCall {
    std::string_view name;
    Collective collective;
    uint64_t layout = 0;
  };
  static constexpr size_t kMostPairCalls = PairCalls::kMost;
  bool run_pairs_now(std::span<const PairCall> calls);
  /// Frees memory of the program once no operation of this rank uses it any more. Pending
  /// operations that use it fail with Error(invalid_argument). Any thread; never blocks.
  void retire(std::unique_ptr<Region> region) noexcept;
  /// Stores 1 in the word when this communicator is over, or at once if it already is. A kernel,
  /// which waits outside of the engine, polls the word. Any thread; the word is held until then.
  void raise_when_over(std::shared_ptr<uint32_t> word);
  /// Makes the engine look again at everything that waits. Any thread; never blocks.
  void wake() { turns_.wake(); }
  /// While it exists, the peers are watched as if an operation were pending. A thread that waits
  /// for peers without an operation needs this, as split() does. Any thread.
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
  /// Runs `function` as a callback on the callbacks' thread, or at once if the engine is closed.
  /// Any thread; never blocks.
  void post(std::function<void()> function) { callbacks_.push(std::move(function)); }
  /// Ends one part of this Work. After the last part its callbacks run on the callbacks' thread.
  /// Any thread; never blocks, never throws.
  void end_part(WorkState& work, std::optional<Error> error) noexcept;
  /// Called after a callback has ended a Work. Threads look again if they wait for it or for an
  /// operation that it held back. Any thread.
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
  /// Returns the error that ended this communicator, if one did.
  std::optional<Error> broken() const;
  /// Returns the first rank that left, was lost or is silent, or -1 if none is known.
  int gone_rank() const;
  void log(LogLevel level, const std::string& line) noexcept override;
  /// Throws Error(closed) in a fork of the process that made this engine. The message contains
  /// `name`. Callers check this before they take any lock, since a fork may have inherited it
  /// locked.
  void check_not_forked(std::string_view name) const override {
    if (forked()) refuse_in_fork(name);
  }
  bool forked() const override { return fork_guard_.forked(); }

 private:
  // --- called by the node, on the thread that holds the token (engine_outside.cc) ---
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
  /// Returns the error that a Work called `name` throws, made from one that ended several
  /// operations.
  static Error about(const Error& error, std::string_view name);

  // --- called by the holder of the token ---
  /// Returns false if nothing changed, so the holder of the token may rest.
  bool step();
  void fill_batch();
  void free_retired();
  /// Every action of a thread that holds the token runs in here. An exception of the engine, or of
  /// the program's observer or update, ends the communicator on every rank with an Error that
  /// describes it. The thread keeps the token. Returns false if `function` threw.
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
  /// True if close() was called and no batch has announced it to the node yet.
  bool must_tell_of_close() const { return turns_.is_ending() && !batch_.closes; }
  /// Spins, then sleeps until something can move or the deadline passed.
  void rest(Deadline deadline, int& idle_rounds);
  /// Sleeps in the poller until `until`, or until a peer or the bell wakes this thread. max() means
  /// no time limit.
  void sleep(Clock::time_point until);
  static void spin(int round, int looks_between_yields);
  /// Charges the time of a waiting thread to the statistics.
  struct WaitAccount {
    Clock::time_point last;  // the time up to here is charged
    double* rested_for;      // counter for a rest since then; null: no rest
  };
  void charge(WaitAccount& account, bool moved, bool lacks_ranks);
  void count_wait(Clock::time_point begin);
  /// Throws if this thread must not wait in a blocking call.
  void check_may_block(std::string_view name);
  /// Runs a blocking call with the token. `start` counts the call and returns its Operation, or
  /// null if the call is over already.
  template <class Start>
  void block(std::string_view name, const Start& start);
  OperationState drive_blocking(Operation& operation, std::optional<Error>& error);
  void await_cause(const Error* reason);

  // --- moved by turns_ (engine_turns.cc) ---
  class Machine;
  class DrivenMachine;
  void background();
  void leave_to_background();
  /// Limits of a blocking call that waits for its peers before it drives the engine. If every rank
  /// has a core, first the backend polls kBlockingSpins times, then this class polls for up to
  /// kBlockingSpinning, with a yield every kBlockingLooks polls. If ranks share cores, it only
  /// yields, at most kBlockingYields times within kBlockingYielding.
  static constexpr int kBlockingSpins = 4096, kBlockingYields = 256, kBlockingLooks = 64;
  static constexpr Clock::duration kBlockingSpinning = std::chrono::microseconds(500);
  static constexpr Clock::duration kBlockingYielding = std::chrono::milliseconds(20);
  static constexpr int kYields = 32;
  /// In-place shared memory smaller than this is reduced as if it were private, because a copy
  /// costs less.
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
  const int ranks_here_;  // threads of this process
  const std::unique_ptr<Backend> backend_;
  const std::shared_ptr<Timeline> timeline_;  // devices may add spans to it later

  // Only the token's holder touches these.
  std::unique_ptr<Node> node_;
  Node::Batch batch_;  // for the node's next step
  std::vector<std::shared_ptr<WorkState>> finishing_;
  Retired retiring_;          // given back while operations may use it
  bool some_wake_ = false;    // this step made progress that threads may wait for
  bool asks_deaths_ = false;  // the node waits for news of deaths
  Statistics counting_;

  // Any thread uses these.
  TurnsOf<> turns_;
  TallyOf<Statistics> tally_;
  Poller poller_;
  // report() has logged a Work that close() failed.
  std::atomic<bool> told_of_pending_{false};
  std::atomic<int> watches_{0};  // live WatchOverPeers objects
  std::mutex log_mutex_;         // held while the log sink runs

  std::thread thread_;  // runs background()
  CallbackQueue callbacks_;
  std::thread callback_thread_;
  // Keeps the engine alive for a thread that did not give the token back.
  std::shared_ptr<Engine> kept_;

  // The lock of hand_over_ also guards the three members after it.
  HandOver hand_over_;
  EntryTable entries_;
  DeviceWaits device_waits_;
  Ending ending_;

  // Their threads ring the bell until they are destroyed, so these members are destroyed first.
  const std::unique_ptr<DeathReader> deaths_;
  LauncherVoice voice_;
};

}  // namespace tutti
