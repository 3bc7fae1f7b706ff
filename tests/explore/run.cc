#include "tests/explore/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>

namespace tutti::explore {

namespace {

// Where each run begins.
constexpr auto kStart = Clock::time_point(std::chrono::hours(1));
// Pauses in a row that a thread passes at the cost of one: more than a model's spins have looks.
constexpr int kPausesAtOneCost = 16;
// Threads that went on so often, although nobody wrote anything, do so for ever.
constexpr int kMostIdle = 1000;

uint64_t mixed(uint64_t hash, uint64_t what) {
  hash = ((hash ^ (hash >> 29)) + what + 1) * 0x9e3779b97f4a7c15;
  return hash ^ (hash >> 32);
}

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
    run.fail(fmt::format("{} threw what is no std::exception", run.thread_name(run.running_)));
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
    if (choices_.is_new()) choices_.meet(state());
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

// Before an operation: another thread may go first.
void Run::point() {
  if (running_ == 0) return;
  if (steps_.size() >= static_cast<size_t>(bounds_.steps))
    fail(fmt::format("more than {} steps", bounds_.steps));
  if (choices_.affordable(0, 1) == 0) return;
  Options options;
  options[0] = {running_, Way::on};
  pick(options, 1, add_paid(options, add_others(options, 1)));
}

// Returns once this thread may go on. One that is over does not return.
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

// No thread can go on. What delays stores ends in the end, and so does what threads wait for: true
// if options[0] goes on, false if something has changed.
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

// Two runs that come to equal states go on in the same ways. A thread's history has all that it has
// read, and the history of whoever wrote that so that it may be relied on.
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

// --- objects and memory ---

uint32_t Run::enter(const Object& object, Object::Kind kind) {
  const auto number = static_cast<uint32_t>(objects_.size());
  objects_.push_back({&object, kind, ++of_kind_[static_cast<size_t>(kind)]});
  learn(number);
  return number;
}

void Run::leave(const Object& object) {
  if (object.number() < objects_.size() && objects_[object.number()].object == &object)
    objects_[object.number()].object = nullptr;
  for (auto& thread : threads_)
    std::erase_if(thread.now.buffer, [&](const auto& store) { return store.cell == &object; });
}

void Run::check(const Object& object) {
  if (object.number() >= objects_.size() || objects_[object.number()].object != &object)
    fail(fmt::format("{} uses an object that is gone, or was made for another run",
                     thread_name(running_)));
}

void Run::learn(uint64_t what) { me().history = mixed(me().history, what); }

uint64_t Run::hashed(const Cell& cell, uint64_t value) {
  if (!cell.is_pointer_) return value;
  const auto found = std::find(pointers_.begin(), pointers_.end(), value);
  const auto place = static_cast<uint64_t>(found - pointers_.begin());
  if (found == pointers_.end()) pointers_.push_back(value);
  return place;
}

namespace {

bool releases(std::memory_order order) {
  return order == std::memory_order_release || order == std::memory_order_acq_rel ||
         order == std::memory_order_seq_cst;
}

bool acquires(std::memory_order order) {
  return order != std::memory_order_relaxed && order != std::memory_order_release;
}

}  // namespace

Message Run::send(std::memory_order order) {
  auto& thread = me();
  if (!releases(order)) return thread.fence;
  const Message message{thread.clock, thread.history};
  ++thread.clock[running_];
  return message;
}

void Run::receive(const Message& message, std::memory_order order) {
  learn(message.history);
  auto& thread = me();
  (acquires(order) ? thread.clock : thread.unfenced).join(message.clock);
}

void Run::wrote(int thread) {
  ++writes_;
  ++threads_[thread].now.own_writes;
  idle_ = 0;
}

void Run::commit(int thread, Cell& cell, uint64_t value, const Message& message) {
  const auto part = [&] {
    return mixed(mixed(cell.number() + 1, hashed(cell, cell.value_)), cell.released_.history);
  };
  memory_ ^= part();
  if (cell.value_ != value) wrote(thread);
  cell.value_ = value;
  cell.released_ = message;
  memory_ ^= part();
}

// Whoever looks at an atomic, or writes it, may come before or after each store to it that another
// thread's buffer still has.
void Run::settle(const Cell& cell, int by) {
  for (int i = 1; i < count_; ++i) {
    auto& thread = threads_[i].now;
    if (i == by || thread.is_draining || thread.buffer.empty()) continue;
    std::array<size_t, 32> through{};
    int count = 1;
    for (size_t at = 0; at < thread.buffer.size() && count < 32; ++at)
      if (thread.buffer[at].cell == &cell) through[count++] = at + 1;
    if (count > 1) drain(i, through[choices_.choose(count, count)]);
  }
}

void Run::drain(int number, size_t stores) {
  auto& thread = threads_[number].now;
  if (stores == 0 || thread.buffer.empty()) return;
  thread.is_draining = true;
  for (; stores > 0; --stores) {
    const DelayedStore store = thread.buffer.front();
    settle(*store.cell, number);
    commit(number, *store.cell, store.value, store.message);
    thread.buffer.erase(thread.buffer.begin());
  }
  thread.is_draining = false;
}

void Run::drain_all() {
  for (int i = 1; i < count_; ++i) drain(i, threads_[i].now.buffer.size());
}

uint64_t Run::seen_by_me(const Cell& cell, std::memory_order order) {
  learn(cell.number());
  const auto& buffer = me().buffer;
  for (auto store = buffer.rbegin(); store != buffer.rend(); ++store)
    if (store->cell == &cell) {
      learn(hashed(cell, store->value));
      return store->value;
    }
  settle(cell, running_);
  learn(hashed(cell, cell.value_));
  receive(cell.released_, order);
  return cell.value_;
}

uint64_t Run::load(const Cell& cell, std::memory_order order) {
  point();
  check(cell);
  const uint64_t value = seen_by_me(cell, order);
  note(acquires(order) ? "load" : "load relaxed", cell, value);
  return value;
}

void Run::store(Cell& cell, uint64_t value, std::memory_order order) {
  point();
  check(cell);
  learn(cell.number());
  learn(hashed(cell, value));
  const auto message = send(order);
  const bool is_strong = order == std::memory_order_seq_cst;
  auto& buffer = me().buffer;
  if (!is_strong && running_ != 0 && choices_.choose(1, 2) == 1) {
    note(releases(order) ? "store release" : "store relaxed", cell, value, "(delayed)");
    buffer.push_back({&cell, value, message});
    return;
  }
  note(is_strong ? "store" : releases(order) ? "store release" : "store relaxed", cell, value);
  drain(running_, buffer.size());
  settle(cell, running_);
  commit(running_, cell, value, message);
}

uint64_t Run::begin_change(Cell& cell, const char* operation) {
  point();
  check(cell);
  drain(running_, me().buffer.size());
  settle(cell, running_);
  learn(cell.number());
  learn(hashed(cell, cell.value_));
  changing_ = operation;
  return cell.value_;
}

// What an acquire of the value before would have received goes on with the value after.
void Run::change(Cell& cell, uint64_t value, std::memory_order order) {
  receive(cell.released_, order);
  learn(hashed(cell, value));
  auto message = send(order);
  message.clock.join(cell.released_.clock);
  message.history = mixed(message.history, cell.released_.history);
  note(changing_, cell, value);
  commit(running_, cell, value, message);
}

void Run::keep(const Cell& cell, std::memory_order order) {
  receive(cell.released_, order);
  note(changing_, cell, cell.value_, "(not as expected)");
}

void Run::wait(const Cell& cell, uint64_t old, std::memory_order order) {
  while (true) {
    point();
    check(cell);
    const uint64_t value = seen_by_me(cell, order);
    if (value != old) return note("wait is over", cell, value);
    drain(running_, me().buffer.size());
    if (cell.value_ != old) continue;
    if (running_ == 0) return fail("a wait without another thread");
    note("waits for a notify", cell, value);
    me().state = State::awaiting;
    me().at = &cell;
    block();
  }
}

void Run::notify(const Object& object, State waiters, bool all) {
  point();
  check(object);
  learn(object.number());
  drain(running_, me().buffer.size());
  std::array<int, kMostThreads> woken;
  int count = 0;
  for (int i = 1; i < count_; ++i)
    if (threads_[i].now.state == waiters && threads_[i].now.at == &object) woken[count++] = i;
  if (!all && count > 1) {
    woken[0] = woken[choices_.choose(count, count)];
    count = 1;
  }
  note(all ? "notify_all" : "notify_one", object, {}, count == 0 ? "(nobody waits)" : "");
  for (int i = 0; i < count; ++i) {
    threads_[woken[i]].now.state = waiters == State::waiting ? State::locking : State::ready;
    threads_[woken[i]].now.deadline = Clock::time_point::max();
  }
}

// --- locks, conditions, bells ---

void Run::acquire(Mutex& mutex) {
  mutex.owner_ = running_;
  learn(mutex.number());
  receive(mutex.released_, std::memory_order_acquire);
}

void Run::release(Mutex& mutex) {
  learn(mutex.number());
  drain(running_, me().buffer.size());
  const auto part = [&] { return mixed(mutex.number() + 1, mutex.released_.history); };
  memory_ ^= part();
  mutex.owner_ = -1;
  mutex.released_ = send(std::memory_order_release);
  memory_ ^= part();
  wrote(running_);
}

void Run::lock(Mutex& mutex) {
  point();
  check(mutex);
  drain(running_, me().buffer.size());
  if (mutex.owner_ >= 0) {
    if (running_ == 0) return fail("thread 0 would wait for a mutex for ever");
    note("waits for", mutex);
    me().state = State::locking;
    me().at = me().lock = &mutex;
    block();
    me().state = State::ready;
  }
  acquire(mutex);
  note("locks", mutex);
}

bool Run::try_lock(Mutex& mutex) {
  point();
  check(mutex);
  drain(running_, me().buffer.size());
  const bool is_free = mutex.owner_ < 0;
  learn(mutex.number());
  learn(is_free);
  note("try_lock", mutex, is_free);
  if (is_free) acquire(mutex);
  return is_free;
}

void Run::unlock(Mutex& mutex) {
  point();
  check(mutex);
  if (mutex.owner_ != running_) return fail("a thread unlocks what it has not locked");
  note("unlocks", mutex);
  release(mutex);
}

bool Run::wait_until(Condition& condition, Mutex& mutex, Clock::time_point when) {
  point();
  check(condition);
  if (mutex.owner_ != running_) fail("a thread waits with a mutex that it has not locked");
  if (running_ == 0) fail("a wait without another thread");
  note("unlocks and waits on", condition);
  learn(condition.number());
  release(mutex);
  me().state = State::waiting;
  me().at = &condition;
  me().lock = &mutex;
  me().deadline = when;
  block();
  auto& thread = me();
  const bool was_notified = thread.state == State::locking;
  const bool is_timeout = !was_notified && thread.deadline <= now_;
  thread.state = State::ready;
  thread.deadline = Clock::time_point::max();
  acquire(mutex);
  learn(is_timeout);
  note("wakes and locks", condition, {},
       was_notified ? ""
       : is_timeout ? "(timeout)"
                    : "(for no reason)");
  return is_timeout;
}

void Run::set_bell(const Bell& bell, bool is_rung, const Message& message) {
  const auto part = [&] {
    return mixed(mixed(bell.number() + 1, bell.is_rung_), bell.released_.history);
  };
  memory_ ^= part();
  if (bell.is_rung_ != is_rung) wrote(running_);
  bell.is_rung_ = is_rung;
  bell.released_ = message;
  memory_ ^= part();
}

void Run::ring(const Bell& bell) {
  point();
  check(bell);
  drain(running_, me().buffer.size());
  learn(bell.number());
  auto message = send(std::memory_order_release);
  message.clock.join(bell.released_.clock);
  message.history = mixed(message.history, bell.released_.history);
  note("rings", bell);
  set_bell(bell, true, message);
}

void Run::silence(const Bell& bell) {
  point();
  check(bell);
  drain(running_, me().buffer.size());
  learn(bell.number());
  receive(bell.released_, std::memory_order_acquire);
  note("silences", bell, bell.is_rung_);
  set_bell(bell, false, bell.released_);
}

bool Run::wait(const Bell& bell, std::chrono::microseconds most) {
  point();
  check(bell);
  drain(running_, me().buffer.size());
  learn(bell.number());
  if (!bell.is_rung_ && most.count() > 0) {
    if (running_ == 0) fail("a wait without another thread");
    note("listens to", bell);
    me().state = State::listening;
    me().at = &bell;
    if (most != std::chrono::microseconds::max()) me().deadline = now_ + most;
    block();
    me().state = State::ready;
    me().deadline = Clock::time_point::max();
  }
  learn(bell.is_rung_);
  if (bell.is_rung_) receive(bell.released_, std::memory_order_acquire);
  note("hears", bell, bell.is_rung_);
  return bell.is_rung_;
}

// A fence over an empty store buffer is of no concern to others when it comes.
void Run::fence() {
  if (!me().buffer.empty()) {
    point();
    drain(running_, me().buffer.size());
  }
  auto& thread = me();
  thread.clock.join(thread.unfenced);
  learn(1);
  thread.fence = send(std::memory_order_seq_cst);
  note("fence");
}

// --- plain data ---

Run::Plain& Run::plain(const void* data) {
  const auto found = std::find_if(plain_.begin(), plain_.end(),
                                  [&](const Plain& plain) { return plain.data == data; });
  return found != plain_.end() ? *found : plain_.emplace_back(Plain{data, 0, 0, {}});
}

void Run::reads(const void* data) {
  steps_.push_back({running_, "reads", data, -1, {}, ""});
  auto& at = plain(data);
  const auto& clock = me().clock;
  if (at.written > clock[at.writer])
    fail(fmt::format("race: {} reads {}, which {} writes at the same time", thread_name(running_),
                     describe(data, -1), thread_name(at.writer)));
  at.read[running_] = clock[running_];
}

void Run::writes(const void* data) {
  steps_.push_back({running_, "writes", data, -1, {}, ""});
  auto& at = plain(data);
  const auto& clock = me().clock;
  for (int i = 0; i < count_; ++i)
    if (at.read[i] > clock[i] || (i == at.writer && at.written > clock[i]))
      fail(fmt::format("race: {} writes {}, which {} {} at the same time", thread_name(running_),
                       describe(data, -1), thread_name(i),
                       at.read[i] > clock[i] ? "reads" : "writes"));
  at.writer = running_;
  at.written = clock[running_];
}

// --- words ---

std::string Run::thread_name(int thread) const {
  return thread == 0 ? "the model" : threads_[thread].now.model->name;
}

std::string Run::describe(const void* object, int known) const {
  for (auto name = names_.rbegin(); name != names_.rend(); ++name)
    if (name->first == object) return name->second;
  if (known < 0) {
    const auto found = std::find_if(plain_.begin(), plain_.end(),
                                    [&](const Plain& plain) { return plain.data == object; });
    return fmt::format("data {}", found - plain_.begin() + 1);
  }
  constexpr std::array kKinds = {"atomic", "mutex", "condition", "bell"};
  return fmt::format("{} {}", kKinds[static_cast<size_t>(objects_[known].kind)],
                     objects_[known].of_its_kind);
}

std::string Run::who_waits() const {
  std::string text;
  const auto add = [&](int i, std::string what) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", thread_name(i), what);
  };
  const auto number = [&](const Object* object) { return static_cast<int>(object->number()); };
  for (int i = 1; i < count_; ++i) {
    const auto& thread = threads_[i].now;
    if (thread.state == State::locking || thread.state == State::waiting) {
      std::string what = thread.state == State::locking
                             ? "waits for " + describe(thread.lock, number(thread.lock))
                             : "waits on " + describe(thread.at, number(thread.at));
      if (thread.state == State::locking && thread.lock->owner_ >= 0)
        what += fmt::format(" that {} holds", thread_name(thread.lock->owner_));
      add(i, what);
    } else if (thread.state == State::awaiting) {
      add(i, "waits for a notify of " + describe(thread.at, number(thread.at)));
    } else if (thread.state == State::listening) {
      add(i, "listens to " + describe(thread.at, number(thread.at)));
    } else if (thread.state == State::paused) {
      add(i, "looks again and again");
    }
  }
  return text;
}

std::string Run::written_trace() const {
  std::string text;
  for (const auto& step : steps_) {
    text += fmt::format("  {:<12} {}", thread_name(step.thread), step.operation);
    if (step.object != nullptr) text += " " + describe(step.object, step.known);
    if (step.value) text += fmt::format(" = {}", *step.value);
    if (*step.how != 0) text += fmt::format(" {}", step.how);
    text += "\n";
  }
  return text;
}

}  // namespace tutti::explore
