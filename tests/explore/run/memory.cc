#include <fmt/format.h>

#include <algorithm>

#include "tests/explore/run/run.h"

namespace tutti::explore {

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

// Called before a thread reads or writes an atomic. That access may come before or after each store
// to the atomic that is still in another thread's buffer.
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

// An acquire of the new value also receives what an acquire of the old value would have received.
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

}  // namespace tutti::explore
