#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/backends/support/world.h"
#include "tests/support/idle_driver.h"
#include "tutti/core/node/node.h"

namespace tutti::test {

/// One Node without threads over one rank's end of the memory backend. A test gives it its inputs
/// and steps it by hand, at times that the test sets.
class SteppedRank final : private Outside {
 public:
  SteppedRank(int rank, int size, std::unique_ptr<Backend> end,
              const std::function<void(Options&)>& tune = {})
      : context_(thread_context(rank, size, nullptr)),
        options_(made_options(tune)),
        end_(std::move(end)) {
    context_.name = "memory";
    node_.emplace(options_, context_, Node::Ports{*end_, *this, timeline_, statistics_});
    node_->start();
  }

  /// Submits an in-place operation with this name. The next step takes it.
  Entry& submit(const std::string& name, std::vector<float>& values) {
    auto& entry = entries_.emplace_back();
    auto& signature = entry.request.signature;
    signature.shape = Shape{static_cast<int64_t>(values.size())};
    entry.request.name = name;
    entry.input = entry.output = TensorView(values);
    entry.order = ++orders_;
    entry.pending = true;
    entry.work = std::make_shared<WorkState>(driver_, name, 1);
    batch_.operations.push_back(&entry);
    return entry;
  }
  Entry& join() {
    auto& entry = entries_.emplace_back();
    entry.request.name = "join";
    entry.request.join = true;
    entry.order = ++orders_;
    entry.pending = true;
    entry.work = std::make_shared<WorkState>(driver_, "join", 1);
    batch_.joins.push_back(&entry);
    return entry;
  }
  /// Begins a blocking barrier with this name, and marks that a thread waits in it.
  void block(const char* name, Clock::time_point now) {
    Launch launch;
    launch.queue = kBlockingQueue;
    launch.name = name;
    launch.tag = node_->blocking().begin_all();
    blocked_ = end_->start({}, launch);
    node_->blocking().waits(name, now);
  }
  void close(const std::string& error = {}) {
    batch_.closes = true;
    batch_.error = error;
  }
  void bring(KnownDeaths deaths) { batch_.deaths = std::move(deaths); }
  void bring_told() { batch_.is_told = true; }

  bool step(Clock::time_point now) {
    const bool was_over = node_->phase() == Phase::over;
    const bool moved = node_->step(batch_, now);
    if (!was_over && node_->may_say_goodbye()) end_->transport()->goodbye(1);
    return moved;
  }
  Node& node() { return *node_; }
  /// Ends this rank without a farewell. Afterwards only its list of ended operations may be used.
  void die() {
    node_.reset();
    blocked_.reset();
    end_.reset();
  }

  /// The operations that are over: the name, and the error if it failed.
  std::vector<std::pair<std::string, std::optional<Error>>> ended;
  std::vector<Door> doors;
  std::vector<std::string> lines;  // lines of the log
  int first_departure = -1;
  bool has_launcher = false;
  bool asks_launcher = false, asks_for_deaths = false;
  ProcessState process = ProcessState::runs;  // of every other rank's process
  /// Returns the result of the last operation with this name, or nothing if none has ended. The
  /// result is an error or nothing.
  std::optional<std::optional<Error>> end_of(const std::string& name) const {
    std::optional<std::optional<Error>> last;
    for (const auto& [of, error] : ended)
      if (of == name) last = error;
    return last;
  }

 private:
  static Options made_options(const std::function<void(Options&)>& tune) {
    Options options;
    options.backend = "memory";
    options.peer_timeout = 10;
    options.operation_timeout = 0;
    if (tune) tune(options);
    return options;
  }

  void finish(std::span<Entry* const> entries, const Error* error) override {
    for (Entry* entry : entries) {
      entry->pending = false;
      ended.emplace_back(entry->request.name,
                         error == nullptr ? std::optional<Error>() : std::optional(*error));
      std::vector<WorkCallback> callbacks;
      entry->work->finish_part({}, callbacks);
    }
  }
  void finish_all(const Error& error) override {
    for (auto& entry : entries_) {
      Entry* const one = &entry;
      if (entry.pending) finish({&one, 1}, &error);
    }
  }
  void on_its_way() override {}
  void set_door(Door door, const Error&) override { doors.push_back(door); }
  void on_first_departure(int rank) override { first_departure = rank; }
  void ask_for_deaths() override { asks_for_deaths = true; }
  void stop_asking() override { asks_for_deaths = false; }
  bool tell_launcher() override { return asks_launcher = has_launcher; }
  ProcessState process_of(int) override { return process; }
  void log(LogLevel, const std::string& line) override { lines.push_back(line); }

  const std::shared_ptr<Driver> driver_ = std::make_shared<IdleDriver>();
  Context context_;
  const Options options_;
  std::unique_ptr<Backend> end_;
  OperationPtr blocked_;
  Timeline timeline_{0};
  Statistics statistics_;
  std::list<Entry> entries_;
  uint64_t orders_ = 0;
  Node::Batch batch_;
  std::optional<Node> node_;
};

/// Ranks that a test steps in turn, at times that it sets.
class SteppedRanks {
 public:
  explicit SteppedRanks(int size, const std::function<void(Options&)>& tune = {}) {
    auto ends = make_backends(find_backend("memory"), size);
    for (int rank = 0; rank < size; ++rank)
      ranks_.push_back(std::make_unique<SteppedRank>(
          rank, size, std::move(ends[static_cast<size_t>(rank)]), tune));
  }
  SteppedRank& operator[](int rank) { return *ranks_[static_cast<size_t>(rank)]; }
  void pass(Clock::duration time) { now_ += time; }
  Clock::time_point now() const { return now_; }
  bool step(int rank) { return (*this)[rank].step(now_); }
  /// Steps these ranks in turn until none of them makes progress.
  void settle(const std::vector<int>& ranks) {
    constexpr int kMostRounds = 1000;
    int quiet = 0;
    for (int round = 0; round < kMostRounds; ++round) {
      bool moved = false;
      for (const int rank : ranks) moved |= step(rank);
      quiet = moved ? 0 : quiet + 1;
      if (quiet == 3) return;
    }
    ADD_FAILURE() << "the ranks move without end";
  }
  /// Steps all ranks every 10 ms until `longest` has passed or `is_over` returns true. Returns the
  /// time that has passed.
  Clock::duration run(Clock::duration longest, const std::function<bool()>& is_over = {}) {
    std::vector<int> all;
    for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) all.push_back(rank);
    const auto begin = now_;
    settle(all);
    while (now_ - begin < longest && !(is_over && is_over())) {
      pass(std::chrono::milliseconds(10));
      settle(all);
    }
    return now_ - begin;
  }

 private:
  std::vector<std::unique_ptr<SteppedRank>> ranks_;
  Clock::time_point now_ = Clock::time_point(std::chrono::hours(1));
};

}  // namespace tutti::test
