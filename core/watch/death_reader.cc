#include "tutti/core/watch/death_reader.h"

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace tutti {

struct DeathReader::State {
  std::shared_ptr<Store> store;
  std::mutex mutex;  // guards the following
  std::condition_variable changed;
  Known known;
  uint64_t looks = 0;  // how many have ended
  bool is_reading = false;
  bool is_stopped = false;
};

DeathReader::DeathReader(std::shared_ptr<Store> store) : state_(std::make_shared<State>()) {
  state_->store = std::move(store);
}

DeathReader::~DeathReader() {
  stop();
  std::unique_lock lock(state_->mutex);
  state_->changed.wait_until(lock, Deadline::after(kLongestWait).when(),
                             [&] { return !state_->is_reading; });
}

DeathReader::Known DeathReader::read(Deadline end, Clock::duration patience) {
  std::unique_lock lock(state_->mutex);
  state_->is_stopped = false;
  if (!state_->is_reading) {
    state_->known.is_all = false;
    try {
      std::thread([state = state_, end] { look(state, end); }).detach();
      state_->is_reading = true;
    } catch (const std::system_error&) {
      return {state_->known.deaths, true};  // the system gives no thread
    }
  }
  const auto before = state_->looks;
  state_->changed.wait_for(lock, patience, [&] { return state_->looks != before; });
  return state_->known;
}

void DeathReader::stop() {
  const std::lock_guard lock(state_->mutex);
  state_->is_stopped = true;
  state_->changed.notify_all();
}

// Runs on the thread.
void DeathReader::look(const std::shared_ptr<State>& state, Deadline end) {
  constexpr auto kPause = std::chrono::milliseconds(5);
  DeathLog log(bounded(state->store, end));
  std::unique_lock lock(state->mutex);
  do {
    lock.unlock();
    Known known;
    try {
      known.deaths = log.look();
    } catch (const std::exception&) {
      known.is_all = true;
    }
    lock.lock();
    if (known.is_all)
      state->known.is_all = true;  // what was known before stays
    else
      state->known = std::move(known);
    ++state->looks;
    state->changed.notify_all();
    if (state->known.is_all) break;
    state->changed.wait_for(lock, kPause, [&] { return state->is_stopped; });
  } while (!state->is_stopped && !end.passed());
  state->is_reading = false;
  state->changed.notify_all();
}

}  // namespace tutti
