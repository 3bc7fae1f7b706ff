#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "tutti/backends/backend.h"
#include "tutti/base/process/fork_guard.h"
#include "tutti/core/engine/callback_queue.h"
#include "tutti/core/engine/entry_table.h"
#include "tutti/core/engine/launcher_voice.h"
#include "tutti/core/engine/retired.h"
#include "tutti/core/engine/token.h"
#include "tutti/core/engine/wake_bell.h"
#include "tutti/core/node/node.h"
#include "tutti/core/node/pair_calls.h"
#include "tutti/core/settings/options.h"
#include "tutti/core/settings/statistics.h"
#include "tutti/core/watch/death_reader.h"
#include "tutti/core/watch/timeline.h"

namespace tutti {

/// The threads, locks, descriptors and the clock around a Node, which decides what this rank does.
/// Exactly one thread at a time holds the token and moves the node: a thread that waits for a Work
/// drives it itself; when no thread waits, the background thread does. The holder sleeps in one
/// place, the poller. Nothing ticks when idle. Callbacks have a thread of their own, which never
/// holds the token.
class Engine final : public Driver, private Outside, public std::enable_shared_from_this<Engine> {
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

  /// Hands operations over, all or none: claim their entries, fill them in, commit. It holds
  /// submit_mutex_ until it is destroyed; what is not committed never was.
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
    void count_allocation() { ++engine_.submission_allocations_; }
    /// `ring`: the caller does not wait at once, so the background thread must be woken.
    void commit(bool ring);

   private:
    Entry& hold(Entry& entry);
    Engine& engine_;
    const std::lock_guard<std::mutex> lock_;
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
  void wake() { bell_.ring(); }
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
  Timeline& timeline() { return timeline_; }
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
  /// Whether calls are taken: neither closed nor broken.
  bool is_usable() const {
    const auto door = door_.load();
    return door == Door::open || door == Door::breaking;
  }
  /// Throws what ended the communicator, if anything did. With submit_mutex_ held.
  void check_usable(std::string_view name) const;
  /// With submit_mutex_ held.
  void raise_all();
  void find_waits(Entry& entry);
  bool may_be_quiet();
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
  bool must_tell_of_close() const { return closing_ && !batch_.closes; }
  /// Spins, then sleeps until something can move or the deadline passed.
  void rest(Deadline deadline, int& idle_rounds);
  /// In the poller, until a peer or bell_ wakes this thread, or the time is over; -1: never.
  void sleep(int milliseconds);
  static void spin(int round, int looks_between_yields);
  void drive_until(const WorkState& work, Milestone milestone, Deadline deadline);
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

  // --- who has the token (engine_token.cc) ---
  /// For a blocking call, which the thread that drives does not make for it: that thread lets go of
  /// the token. Returns what keeps the engine if this had to wait, as another thread may close
  /// meanwhile; else null.
  std::shared_ptr<Engine> take_token();
  void put_token_back();
  bool take_token_to_close(Deadline deadline);
  /// Wakes the thread that is to have the token next. The caller holds token_mutex_.
  void hand_on(const std::unique_lock<std::mutex>& lock);
  /// Before a driver lets go of the token: sees that the background thread wakes for what is still
  /// pending, and for the next deadline.
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
  void background();
  /// While threads that wait come and go, as in a loop of exchanges, they see to what comes: the
  /// background thread, woken, would only be in their way, and each of them would have to arm what
  /// wakes it. It sleeps for a moment instead, and looks when they stay away. Not where threads of
  /// this rank ring its own bell, as each call does that does not wait at once. False: it does not
  /// sleep now, or its own bell was rung.
  bool nap(std::unique_lock<std::mutex>& lock);
  static constexpr auto kNap = std::chrono::microseconds(100);

  // --- its end (engine_life.cc) ---
  void let_background_go();
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
  const std::shared_ptr<Timeline> shared_timeline_;  // devices may tell it of spans later
  Timeline& timeline_ = *shared_timeline_;

  // Only the token's holder touches these.
  std::unique_ptr<Node> node_;
  Node::Batch batch_;  // for the node's next step
  std::vector<std::shared_ptr<WorkState>> finishing_;
  Retired retiring_;          // memory that pending operations may use
  bool some_wake_ = false;    // this step brought Works to what threads may wait for
  bool asks_deaths_ = false;  // the node waits for news of deaths
  Statistics counting_;

  Poller poller_;
  WakeBell bell_;
  std::atomic<bool> start_{false};
  std::atomic<bool> closing_{false};
  std::atomic<Door> door_{Door::open};        // written with submit_mutex_ held
  std::atomic<bool> told_of_pending_{false};  // report() has told of one that close() ended
  std::atomic<uint64_t> wakeups_{0};
  std::atomic<int> claims_{0};   // threads that sleep in take_token()
  std::atomic<int> watches_{0};  // WatchOverPeers that live
  /// Blocking calls that are over, well or not. The holder of the token alone writes it.
  std::atomic<uint64_t> blocking_ends_{0};
  std::thread thread_;           // runs background()
  bool woken_by_peers_ = false;  // thread_ alone: the last time, not by bell_
  CallbackQueue callbacks_;
  std::thread callback_thread_;
  std::shared_ptr<Engine> kept_;  // by itself, for a thread that did not give the token back

  mutable std::mutex submit_mutex_;  // guards the following
  std::vector<Entry*> submitted_;
  struct StreamWait {
    StreamRef stream;
    std::weak_ptr<WorkState> work;
  };
  std::vector<StreamWait> stream_waits_;          // of Works that are not done
  std::unordered_set<std::string> device_names_;  // see was_on_device()
  std::vector<Entry*> joins_;
  std::vector<std::unique_ptr<Region>> retired_;  // not seen by the token's holder yet
  EntryTable entries_;
  uint64_t submission_allocations_ = 0;
  // While the background thread sleeps in a plan: this rank's submissions need not wake it before
  // they make as many bytes of that plan. 0: each of them does.
  int64_t quiet_bytes_ = 0;
  uint32_t quiet_plan_ = 0;
  int64_t submitted_bytes_ = 0;  // since the engine took submissions last
  uint64_t submissions_ = 0;     // so far; see Entry::order
  std::optional<Error> broken_;
  std::vector<std::shared_ptr<uint32_t>> raised_when_over_;  // each by raise_when_over()
  int departed_ = -1;                                        // the first rank that left; -1: none
  std::string closing_error_;                                // of close()
  bool closed_ = false;

  std::mutex token_mutex_;  // guards the following
  Token token_;
  std::condition_variable drivers_;
  std::condition_variable background_;
  bool background_is_over_ = false;  // thread_ is about to end
  bool naps_ = false;                // thread_ is in nap()
  Clock::time_point left_idle_at_;   // when the last driver left, if nothing was pending then
  Clock::time_point sleeping_until_ = Clock::time_point::max();

  std::mutex statistics_mutex_;  // guards the following
  Statistics published_;
  /// blocking_ends_ at that time. The holder of the token alone writes it, and reads it without the
  /// mutex.
  uint64_t published_ends_ = 0;
  std::mutex log_mutex_;  // held while the log sink runs

  // Their threads ring bell_ until they are destroyed, which comes first.
  const std::unique_ptr<DeathReader> deaths_;
  LauncherVoice voice_;
};

}  // namespace tutti
