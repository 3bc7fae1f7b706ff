#include "tests/explore/run/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>

namespace tutti::explore {

namespace {

// Each run begins at this time.
constexpr auto kStart = Clock::time_point(std::chrono::hours(1));
// The number of pauses in a row that cost a thread only one. The spins of models are shorter.
constexpr int kPausesAtOneCost = 16;
// Threads that continued this often without any write spin for ever.
constexpr int kMostIdle = 1000;

}  // namespace

Run* Run::current_ = nullptr;

Run::Run(Choices& choices, const Bounds& bounds)
    : choices_(choices), bounds_(bounds), threads_(kMostThreads) {}

void Run::reset() {
  for (auto& thread : threads_) {
    auto buffer = std::move(thread.now.buffer);
    buffer.clear();
    thread.now = {};
    thread.now.buffer = std::move(buffer);
  }
  count_ = 1, running_ = 0;
  now_ = kStart;
  writes_ = 0, idle_ = 0, last_idle_ = 0, memory_ = 0;
  objects_.clear(), of_kind_ = {}, plain_.clear(), pointers_.clear(), steps_.clear();
  names_.clear();
  threads_[0].now.clock[0] = 1;
  choices_.begin_run();
}

bool Run::make(const std::function<void(Model&)>& build) {
  reset();
  struct Current {
    explicit Current(Run* run) { current_ = run; }
    ~Current() { current_ = nullptr; }
  } const current(this);
  Model model;
  may_throw_ = true;
  try {
    build(model);
    count_ = 1 + static_cast<int>(model.threads().size());
    if (count_ > kMostThreads) throw std::length_error("a model has at most seven threads");
    for (int i = 1; i < count_; ++i) {
      auto& thread = threads_[i];
      thread.now.model = &model.threads()[i - 1];
      thread.now.clock = threads_[0].now.clock;
      thread.now.clock[i] = 1;
      thread.now.history = mixed(1, i);
      thread.fiber.begin(run_thread);
    }
    ++threads_[0].now.clock[0];
    threads_[0].now.state = State::over;
    if (count_ > 1) {
      Options options;
      const int count = add_others(options, 0);
      pick(options, count, count);
      running_ = 0;
    }
    if (!is_failed_ && !choices_.were_made())
      fail("the model is not deterministic: it has other choices for the same past");
    for (int i = 1; i < count_; ++i) threads_[0].now.clock.join(threads_[i].now.clock);
    if (!is_failed_ && model.check()) model.check()();
  } catch (const Failed&) {
  }
  may_throw_ = false;
  return !is_failed_;
}

void Run::fail(std::string text) {
  if (!is_failed_) {
    is_failed_ = true;
    failure_ = std::move(text);
    trace_ = written_trace();
  }
  if (running_ != 0) {
    auto& fiber = threads_[running_].fiber;
    running_ = 0;
    fiber.switch_to(threads_[0].fiber);
  }
  if (may_throw_) throw Failed();
}

void Run::run_thread() {
  auto& run = *current_;
  try {
    run.me().model->body();
  } catch (const std::exception& error) {
    run.fail(fmt::format("{} threw: {}", run.thread_name(run.running_), error.what()));
  } catch (...) {
    run.fail(fmt::format("{} threw an object that is not a std::exception",
                         run.thread_name(run.running_)));
  }
  run.end_thread();
}

void Run::end_thread() {
  note("ends");
  me().state = State::over;
  if (std::any_of(threads_.begin() + 1, threads_.begin() + count_,
                  [](const auto& thread) { return thread.now.state != State::over; }))
    block();
  drain_all();
  auto& fiber = threads_[running_].fiber;
  running_ = 0;
  fiber.switch_to(threads_[0].fiber);
}

bool Run::is_enabled(int number) const {
  const auto& thread = threads_[number].now;
  const bool is_due = thread.deadline <= now_;
  switch (thread.state) {
    case State::ready:
      return true;
    case State::locking:
      return thread.lock->owner_ < 0;
    case State::waiting:
      return is_due && thread.lock->owner_ < 0;
    case State::listening:
      return is_due || static_cast<const Bell*>(thread.at)->is_rung_;
    case State::paused:
      return others_writes(number) != thread.seen_writes;
    case State::awaiting:
    case State::over:
      break;
  }
  return false;
}

int Run::add_others(Options& options, int count) const {
  for (int i = 1; i < count_; ++i)
    if (i != running_ && is_enabled(i)) options[count++] = {i, Way::on};
  return count;
}

int Run::add_paid(Options& options, int count) const {
  for (int i = 1; i < count_; ++i) {
    const auto& thread = threads_[i].now;
    const bool is_free = thread.state == State::waiting && thread.lock->owner_ < 0;
    if (thread.deadline <= now_) continue;
    if (is_free) options[count++] = {i, Way::spurious};
    if ((is_free || thread.state == State::listening) &&
        thread.deadline != Clock::time_point::max() && !is_enabled(i))
      options[count++] = {i, Way::timeout};
  }
  return count;
}

void Run::pick(const Options& options, int free, int count) {
  int picked = 0;
  if (choices_.affordable(free, count) > 1) {
    if (bounds_.skips_known_states && choices_.is_new()) choices_.meet(state());
    picked = choices_.choose(free, count);
  }
  go_on_with(options[picked]);
}

void Run::go_on_with(Option option) {
  auto& to = threads_[option.thread];
  if (option.way == Way::timeout) now_ = std::max(now_, to.now.deadline);
  if (option.way == Way::regardless) to.now.pauses_at_one_cost = kPausesAtOneCost;
  if (option.thread == running_) return;
  auto& from = threads_[running_].fiber;
  running_ = option.thread;
  from.switch_to(to.fiber);
}

// Called before each operation: another thread may run first.
void Run::point() {
  if (running_ == 0) return;
  if (steps_.size() >= static_cast<size_t>(bounds_.steps))
    fail(fmt::format("more than {} steps", bounds_.steps));
  if (choices_.affordable(0, 1) == 0) return;
  Options options;
  options[0] = {running_, Way::on};
  pick(options, 1, add_paid(options, add_others(options, 1)));
}

// Returns once this thread may continue. Does not return in a thread that has ended.
void Run::block() {
  while (true) {
    Options options;
    int count = 0;
    const bool is_mine = is_enabled(running_);
    if (is_mine) options[count++] = {running_, Way::on};
    count = add_others(options, count);
    if (count == 0) {
      if (!let_time_pass(options)) continue;
      count = 1;
    }
    const int free = is_mine ? 1 : count;
    count = add_paid(options, count);
    if (me().state == State::paused && !is_mine && options[0].thread != running_)
      options[count++] = {running_, Way::regardless};
    return pick(options, free, count);
  }
}

// Called when no thread can continue. First all delayed stores take effect. Then paused threads
// continue in turn, or time passes to the next deadline. Returns true if options[0] continues, and
// false if something has changed.
bool Run::let_time_pass(Options& options) {
  const auto begin = threads_.begin() + 1, end = threads_.begin() + count_;
  if (std::any_of(begin, end, [](const auto& thread) { return !thread.now.buffer.empty(); })) {
    drain_all();
    return false;
  }
  auto next = Clock::time_point::max();
  for (auto thread = begin; thread != end; ++thread)
    if ((thread->now.state == State::waiting || thread->now.state == State::listening) &&
        thread->now.deadline > now_)
      next = std::min(next, thread->now.deadline);
  for (int i = 1; i <= kMostThreads; ++i) {
    const int number = (last_idle_ + i) % kMostThreads;
    if (number == 0 || number >= count_ || threads_[number].now.state != State::paused) continue;
    if (++idle_ > kMostIdle) fail("threads look for what nobody writes any more: " + who_waits());
    const auto later = now_ + std::chrono::microseconds(uint64_t{1} << std::min(idle_, 26));
    if (later >= next) break;
    now_ = later;
    last_idle_ = number;
    options[0] = {number, Way::on};
    return true;
  }
  if (next == Clock::time_point::max()) fail("deadlock: " + who_waits());
  now_ = next;
  return false;
}

// Returns a hash of the state. Runs with equal states have the same continuations. A thread's
// history contains everything that it has read, with the history of the writer if the two
// synchronize.
uint64_t Run::state() const {
  uint64_t hash = mixed(memory_, static_cast<uint64_t>(now_.time_since_epoch().count()));
  const bool has_choices = threads_[running_].now.state == State::paused || is_enabled(running_);
  hash = mixed(hash, has_choices ? running_ : 0);
  hash = mixed(hash, static_cast<uint64_t>(idle_) << 8 | static_cast<uint64_t>(last_idle_));
  for (int i = 1; i < count_; ++i) {
    const auto& thread = threads_[i].now;
    hash = mixed(hash, thread.history);
    hash = mixed(hash, static_cast<uint64_t>(thread.deadline.time_since_epoch().count()));
    const bool has_news = others_writes(i) != thread.seen_writes;
    hash = mixed(hash, static_cast<uint64_t>(thread.state) | (has_news ? 8 : 0) |
                           static_cast<uint64_t>(thread.pauses_at_one_cost) << 4 |
                           thread.buffer.size() << 16);
  }
  return hash;
}

void Run::pause() {
  if (running_ == 0) return;
  auto& thread = me();
  if (steps_.size() >= static_cast<size_t>(bounds_.steps))
    fail(fmt::format("more than {} steps", bounds_.steps));
  note("pauses");
  learn(0);
  if (others_writes(running_) != thread.seen_writes) {
    thread.pauses_at_one_cost = 0;
  } else if (thread.pauses_at_one_cost > 0) {
    --thread.pauses_at_one_cost;
    return;
  }
  thread.state = State::paused;
  block();
  auto& self = me();
  self.state = State::ready;
  self.seen_writes = others_writes(running_);
}

Clock::time_point Run::now() {
  learn(static_cast<uint64_t>(now_.time_since_epoch().count()));
  return now_;
}

}  // namespace tutti::explore
