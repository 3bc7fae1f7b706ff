#include "tutti/core/engine/launcher_voice.h"

#include <atomic>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "tutti/base/deadline.h"
#include "tutti/core/launch/meeting.h"
#include "tutti/core/watch/death.h"
#include "tutti/core/watch/watched_store.h"

namespace tutti {

namespace {

std::atomic<bool> may_tell{true};  // one flag for the whole process

void tell_store(const std::string& url, const std::string& secret, LaunchedRank who) {
  const auto deadline = Deadline::after(0.5);
  try {
    const auto [host, port] = parse_store_url(url);
    const auto store = bounded(connect_tcp_store(host, port, secret, deadline), deadline);
    write_first_error(*store, who);
  } catch (const std::exception&) {
    // Either the launcher is gone and needs no announcement, or it will report the process that
    // ends first.
  }
}

}  // namespace

struct LauncherVoice::State {
  std::atomic<bool> has_told{false};
  std::mutex mutex;  // guards the member below
  std::function<void()> on_told;
};

LauncherVoice::LauncherVoice(const Options& options, std::function<void()> on_told)
    : options_(options), state_(std::make_shared<State>()) {
  state_->on_told = std::move(on_told);
}

LauncherVoice::~LauncherVoice() {
  const std::lock_guard lock(state_->mutex);
  state_->on_told = nullptr;
}

void LauncherVoice::fall_silent() { may_tell = false; }

bool LauncherVoice::has_told() const { return state_->has_told; }

bool LauncherVoice::tell() {
  const auto& [url, secret, rank] = options_.launcher_store;
  if (url.empty() || !may_tell.exchange(false)) return false;
  try {
    std::thread([state = state_, url = url, secret = secret,
                 who = LaunchedRank{rank, options_.incarnation}] {
      tell_store(url, secret, who);
      state->has_told = true;
      const std::lock_guard lock(state->mutex);
      if (state->on_told) state->on_told();
    }).detach();
  } catch (const std::system_error&) {
    return false;  // the system cannot make a thread
  }
  return true;
}

}  // namespace tutti
