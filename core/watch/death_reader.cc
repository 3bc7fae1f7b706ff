#include "tutti/core/watch/death_reader.h"

#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace tutti {

struct DeathReader::State {
  std::shared_ptr<Store> store;
  std::mutex mutex;  // guards the members below
  std::condition_variable changed;
  KnownDeaths known;
  bool has_news = false;  // `known` was read again since the last news()
  std::function<void()> on_news;
  bool is_reading = false;
  bool is_stopped = false;
};

DeathReader::DeathReader(std::shared_ptr<Store> store) : state_(std::make_shared<State>()) {
  state_->store = std::move(store);
}

DeathReader::~DeathReader() {
  stop();
  std::unique_lock lock(state_->mutex);
  state_->on_news = nullptr;
  state_->changed.wait_until(lock, Deadline::after(kLongestWait).when(),
                             [&] { return !state_->is_reading; });
}

void DeathReader::on_news(std::function<void()> call) {
  const std::lock_guard lock(state_->mutex);
  state_->on_news = std::move(call);
}

void DeathReader::begin(Deadline end) {
  const std::lock_guard lock(state_->mutex);
  state_->is_stopped = false;
  if (state_->is_reading) return;
  state_->known.is_all = false;
  try {
    std::thread([state = state_, end] { look(state, end); }).detach();
    state_->is_reading = true;
  } catch (const std::system_error&) {
    state_->known.is_all = state_->has_news = true;  // the system cannot make a thread
  }
}

std::optional<KnownDeaths> DeathReader::news() {
  const std::lock_guard lock(state_->mutex);
  if (!std::exchange(state_->has_news, false)) return {};
  return state_->known;
}

void DeathReader::stop() {
  const std::lock_guard lock(state_->mutex);
  state_->is_stopped = true;
  state_->changed.notify_all();
}

void DeathReader::look(const std::shared_ptr<State>& state, Deadline end) {
  constexpr auto kPause = std::chrono::milliseconds(5);
  DeathLog log(bounded(state->store, end));
  std::unique_lock lock(state->mutex);
  do {
    lock.unlock();
    KnownDeaths known;
    try {
      known.deaths = log.look();
    } catch (const std::exception&) {
      known.is_all = true;
    }
    lock.lock();
    if (known.is_all)
      state->known.is_all = true;  // the deaths that were read before stay
    else
      state->known = std::move(known);
    state->has_news = true;
    if (state->on_news) state->on_news();
    if (state->known.is_all) break;
    state->changed.wait_for(lock, kPause, [&] { return state->is_stopped; });
  } while (!state->is_stopped && !end.passed());
  state->is_reading = false;
  state->changed.notify_all();
}

}  // namespace tutti
