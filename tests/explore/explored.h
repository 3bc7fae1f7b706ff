#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <type_traits>

#include "tutti/base/deadline.h"

namespace tutti::explore {

constexpr int kMostThreads = 8;  // seven threads of the model, and one that makes and checks it

/// How much of each thread's past another thread has seen.
class VectorClock {
 public:
  void join(const VectorClock& other) {
    for (int i = 0; i < kMostThreads; ++i)
      if (other.times_[i] > times_[i]) times_[i] = other.times_[i];
  }
  uint16_t& operator[](int thread) { return times_[thread]; }
  uint16_t operator[](int thread) const { return times_[thread]; }

 private:
  std::array<uint16_t, kMostThreads> times_{};
};

/// The knowledge that one thread passes to another through an atomic, a lock or a bell.
struct Message {
  VectorClock clock;
  uint64_t history = 0;  // a hash of everything that the sender had read; 0: the receiver learns
                         // nothing
};

/// An object through which threads synchronize. If it is made within a run, the explorer gives it a
/// number.
class Object {
 public:
  enum class Kind : uint8_t { atomic, mutex, condition, bell };

  explicit Object(Kind kind);
  ~Object();
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;

  uint32_t number() const { return number_; }

 private:
  uint32_t number_;
};

/// An atomic of any type, as its bytes. Outside of a run it is a plain value.
class Cell : public Object {
 public:
  Cell(uint64_t value, bool is_pointer)
      : Object(Kind::atomic), is_pointer_(is_pointer), value_(value) {}

  uint64_t load(std::memory_order order) const;
  void store(uint64_t value, std::memory_order order);
  /// A read-modify-write calls begin_change(), which returns the value before, and then change().
  /// No other thread runs in between. A compare_exchange that fails calls keep() instead of
  /// change().
  uint64_t begin_change(const char* operation);
  void change(uint64_t value, std::memory_order order);
  void keep(std::memory_order order);
  void wait(uint64_t old, std::memory_order order) const;
  void notify(bool all);

 private:
  friend class Run;
  const bool is_pointer_;
  uint64_t value_;    // the value that all threads see; newer ones may be in store buffers
  Message released_;  // the message for an acquire of this value
};

template <class T>
class Atomic {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(uint64_t));
  static constexpr auto kStrongest = std::memory_order_seq_cst;

 public:
  Atomic() : Atomic(T()) {}
  Atomic(T value) : cell_(bits(value), std::is_pointer_v<T>) {}  // implicit, as in std::atomic

  T load(std::memory_order order = kStrongest) const { return value(cell_.load(order)); }
  void store(T value, std::memory_order order = kStrongest) { cell_.store(bits(value), order); }
  T exchange(T value, std::memory_order order = kStrongest) {
    return change("exchange", order, [&](T) { return value; });
  }
  bool compare_exchange_strong(T& expected, T desired, std::memory_order success,
                               std::memory_order failure) {
    const uint64_t old = cell_.begin_change("compare_exchange");
    if (old == bits(expected)) {
      cell_.change(bits(desired), success);
      return true;
    }
    cell_.keep(failure);
    expected = value(old);
    return false;
  }
  bool compare_exchange_strong(T& expected, T desired, std::memory_order order = kStrongest) {
    return compare_exchange_strong(expected, desired, order, of_failure(order));
  }
  bool compare_exchange_weak(T& expected, T desired, std::memory_order success,
                             std::memory_order failure) {
    return compare_exchange_strong(expected, desired, success, failure);
  }
  bool compare_exchange_weak(T& expected, T desired, std::memory_order order = kStrongest) {
    return compare_exchange_strong(expected, desired, order, of_failure(order));
  }
  template <class U = T>
  T fetch_add(std::type_identity_t<U> by, std::memory_order order = kStrongest) {
    return change("fetch_add", order, [&](T old) { return static_cast<T>(old + by); });
  }
  T fetch_sub(T by, std::memory_order order = kStrongest) {
    return change("fetch_sub", order, [&](T old) { return static_cast<T>(old - by); });
  }
  T fetch_or(T by, std::memory_order order = kStrongest) {
    return change("fetch_or", order, [&](T old) { return static_cast<T>(old | by); });
  }
  T fetch_and(T by, std::memory_order order = kStrongest) {
    return change("fetch_and", order, [&](T old) { return static_cast<T>(old & by); });
  }
  void wait(T old, std::memory_order order = kStrongest) const { cell_.wait(bits(old), order); }
  void notify_one() { cell_.notify(false); }
  void notify_all() { cell_.notify(true); }

  operator T() const { return load(); }  // the operators of std::atomic
  T operator=(T value) {
    store(value);
    return value;
  }
  T operator++() { return static_cast<T>(fetch_add(1) + 1); }
  T operator++(int) { return fetch_add(1); }
  T operator--() { return static_cast<T>(fetch_sub(1) - 1); }
  T operator--(int) { return fetch_sub(1); }
  T operator+=(T by) { return static_cast<T>(fetch_add(by) + by); }
  T operator-=(T by) { return static_cast<T>(fetch_sub(by) - by); }
  T operator|=(T by) { return static_cast<T>(fetch_or(by) | by); }
  T operator&=(T by) { return static_cast<T>(fetch_and(by) & by); }

 private:
  static uint64_t bits(T value) {
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    return bits;
  }
  static T value(uint64_t bits) {
    T value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
  static std::memory_order of_failure(std::memory_order order) {
    if (order == std::memory_order_acq_rel) return std::memory_order_acquire;
    return order == std::memory_order_release ? std::memory_order_relaxed : order;
  }
  template <class Next>
  T change(const char* operation, std::memory_order order, Next next) {
    const T old = value(cell_.begin_change(operation));
    cell_.change(bits(next(old)), order);
    return old;
  }

  Cell cell_;
};

class Mutex : public Object {
 public:
  Mutex() : Object(Kind::mutex) {}
  void lock();
  bool try_lock();
  void unlock();

 private:
  friend class Run;
  int owner_ = -1;
  Message released_;
};

class Condition : public Object {
 public:
  Condition() : Object(Kind::condition) {}
  void wait(std::unique_lock<Mutex>& lock) { wait_until(lock, Clock::time_point::max()); }
  std::cv_status wait_until(std::unique_lock<Mutex>& lock, Clock::time_point when);
  template <class Predicate>
  void wait(std::unique_lock<Mutex>& lock, Predicate holds) {
    while (!holds()) wait(lock);
  }
  template <class Predicate>
  bool wait_until(std::unique_lock<Mutex>& lock, Clock::time_point when, Predicate holds) {
    while (!holds())
      if (wait_until(lock, when) == std::cv_status::timeout) return holds();
    return true;
  }
  void notify_one() { notify(false); }
  void notify_all() { notify(true); }

 private:
  void notify(bool all);
};

/// A bell with the functions of tutti::Bell, but without a descriptor.
class Bell : public Object {
 public:
  Bell() : Object(Kind::bell) {}
  void ring() const;
  void silence() const;
  /// Waits for at most `most`; microseconds::max() means for ever.
  bool wait(std::chrono::microseconds most) const;
  int descriptor() const { return -1; }

 private:
  friend class Run;
  mutable bool is_rung_ = false;
  mutable Message released_;
};

/// The policy under which the explorer runs a protocol. A run switches to another thread only at an
/// operation of this policy, but not at Explored::reads and Explored::writes.
struct Explored {
  template <class T>
  using Atomic = explore::Atomic<T>;
  using Mutex = explore::Mutex;
  using Condition = explore::Condition;
  using Bell = explore::Bell;

  static void fence();
  static void pause();
  static void yield() { pause(); }
  /// Returns the virtual time. It advances only at timeouts and while all threads wait for each
  /// other's writes.
  static Clock::time_point now();
  /// Each byte is checked separately.
  static void reads(const void* data, size_t bytes = 1);
  static void writes(const void* data, size_t bytes = 1);
};

}  // namespace tutti::explore
