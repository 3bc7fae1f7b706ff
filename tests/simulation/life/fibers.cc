#include "tests/simulation/life/fibers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <utility>

#include "tests/simulation/life/locks_held.h"

namespace tutti::simulation {

namespace {

constexpr int kMostGhostSleeps = 100'000;

// Fibers of earlier runs, whose stacks the next run uses again.
thread_local std::vector<std::unique_ptr<explore::Fiber>> spare;
thread_local Fibers* running = nullptr;

std::unique_ptr<explore::Fiber> take_fiber() {
  if (spare.empty()) return std::make_unique<explore::Fiber>();
  auto fiber = std::move(spare.back());
  spare.pop_back();
  return fiber;
}

[[noreturn]] void give_up(const char* why) {
  std::fprintf(stderr, "fibers: %s\n", why);
  std::abort();
}

}  // namespace

Fibers::Fibers(uint64_t seed)
    : random_(seed, 77), now_(Time{} + std::chrono::hours(1)), before_(Clock::use(this)) {
  running = this;
}

Fibers::~Fibers() {
  Clock::use(before_);
  running = nullptr;
  for (auto& task : tasks_) spare.push_back(std::move(task->fiber_));
}

Fibers::Task& Fibers::start(std::function<void()> body, Time when) {
  auto& task = *tasks_.emplace_back(std::make_unique<Task>());
  task.body_ = std::move(body);
  task.number_ = tasks_.size();
  task.fiber_ = take_fiber();
  task.fiber_->begin(&Fibers::enter);
  queue(task, when);
  return task;
}

void Fibers::run(int64_t most_turns) {
  while (!queue_.empty()) {
    if (most_turns-- == 0) throw std::runtime_error("the world does not come to its end");
    const auto [when, tie, task] = *queue_.begin();
    unqueue(*task);
    if (!task->is_ghost_ && task->held_until_ > when) {
      queue(*task, task->held_until_);
      continue;
    }
    now_ = std::max(now_, when);
    current_ = task;
    outside_.switch_to(*task->fiber_);
    current_ = nullptr;
  }
  for (const auto& task : tasks_)
    if (!task->is_over_) throw std::runtime_error("one waits for what nobody does");
}

void Fibers::enter() {
  Task& task = running->current();
  try {
    task.body_();
  } catch (...) {
    give_up("a body threw");
  }
  task.body_ = nullptr;
  task.is_over_ = true;
  running->give_turn();
  give_up("one that is over had a turn");
}

Fibers::Time Fibers::now() noexcept {
  return current_ != nullptr && current_->is_ghost_ ? current_->ghost_time_ : now_;
}

void Fibers::sleep_until(Time when) {
  while (!current_->is_ghost_ && now_ < when) {
    queue(*current_, when);
    give_turn();
  }
  if (!current_->is_ghost_) return;
  current_->ghost_time_ = std::max(current_->ghost_time_, when);
  if (++current_->sleeps_ > kMostGhostSleeps) give_up("one whose store is gone goes on for ever");
}

bool Fibers::wait_until(Time when) {
  Task& task = *current_;
  task.is_woken_ = false;
  if (task.is_ghost_ || now_ >= when) return false;
  if (when != Time::max()) queue(task, when);
  give_turn();
  return task.is_woken_;
}

void Fibers::wake(Task& task) {
  if (task.is_over_ || &task == current_) return;
  task.is_woken_ = true;
  queue(task, now_);
}

void Fibers::hold(Task& task, Time until) { task.held_until_ = std::max(task.held_until_, until); }

void Fibers::kill(Task& task) {
  if (task.is_over_) return;
  task.is_ghost_ = true;
  task.ghost_time_ = now_;
  if (&task != current_) queue(task, now_);
}

void Fibers::queue(Task& task, Time when) {
  unqueue(task);
  task.wakes_at_ = when;
  task.tie_ = random_.next();
  task.is_queued_ = true;
  queue_.emplace(when, task.tie_, &task);
}

void Fibers::unqueue(Task& task) {
  if (std::exchange(task.is_queued_, false)) queue_.erase({task.wakes_at_, task.tie_, &task});
}

void Fibers::give_turn() {
  if (locks_held() > 0) give_up("one waits with a mutex locked");
  Task& task = *current_;
  task.fiber_->switch_to(outside_);
}

}  // namespace tutti::simulation
