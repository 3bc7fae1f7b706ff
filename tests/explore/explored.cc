#include "tests/explore/explored.h"

#include "tests/explore/run/run.h"

namespace tutti::explore {

namespace {
// Objects outside of a run have no number.
constexpr uint32_t kNone = UINT32_MAX;

Run* run() { return Run::current(); }
}  // namespace

Object::Object(Kind kind) : number_(run() != nullptr ? run()->enter(*this, kind) : kNone) {}

Object::~Object() {
  if (run() != nullptr) run()->leave(*this);
}

uint64_t Cell::load(std::memory_order order) const {
  return run() ? run()->load(*this, order) : value_;
}

void Cell::store(uint64_t value, std::memory_order order) {
  if (run() == nullptr)
    value_ = value;
  else
    run()->store(*this, value, order);
}

uint64_t Cell::begin_change(const char* operation) {
  return run() != nullptr ? run()->begin_change(*this, operation) : value_;
}

void Cell::change(uint64_t value, std::memory_order order) {
  if (run() == nullptr)
    value_ = value;
  else
    run()->change(*this, value, order);
}

void Cell::keep(std::memory_order order) {
  if (run() != nullptr) run()->keep(*this, order);
}

void Cell::wait(uint64_t old, std::memory_order order) const {
  if (run() != nullptr) run()->wait(*this, old, order);
}

void Cell::notify(bool all) {
  if (run() != nullptr) run()->notify(*this, RunThread::State::awaiting, all);
}

void Mutex::lock() {
  if (run() != nullptr) run()->lock(*this);
}

bool Mutex::try_lock() { return run() == nullptr || run()->try_lock(*this); }

void Mutex::unlock() {
  if (run() != nullptr) run()->unlock(*this);
}

std::cv_status Condition::wait_until(std::unique_lock<Mutex>& lock, Clock::time_point when) {
  return run()->wait_until(*this, *lock.mutex(), when) ? std::cv_status::timeout
                                                       : std::cv_status::no_timeout;
}

void Condition::notify(bool all) {
  if (run() != nullptr) run()->notify(*this, RunThread::State::waiting, all);
}

void Bell::ring() const { run()->ring(*this); }

void Bell::silence() const { run()->silence(*this); }

bool Bell::wait(std::chrono::microseconds most) const { return run()->wait(*this, most); }

void Explored::fence() {
  if (run() != nullptr) run()->fence();
}

void Explored::pause() {
  if (run() != nullptr) run()->pause();
}

Clock::time_point Explored::now() { return run() != nullptr ? run()->now() : Clock::now(); }

void Explored::reads(const void* data, size_t bytes) {
  if (run() == nullptr) return;
  for (size_t i = 0; i < bytes; ++i) run()->reads(static_cast<const std::byte*>(data) + i);
}

void Explored::writes(const void* data, size_t bytes) {
  if (run() == nullptr) return;
  for (size_t i = 0; i < bytes; ++i) run()->writes(static_cast<const std::byte*>(data) + i);
}

}  // namespace tutti::explore
