#include "tutti/kernels/cuda/device/host_functions.h"

#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>

namespace tutti::cuda {

namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kLeastSleep = std::chrono::microseconds(5);
constexpr auto kMostSleep = std::chrono::milliseconds(1);
constexpr int kShare = 50;  // a call may be late by a fiftieth of the time since the last call

}  // namespace

HostFunctions::HostFunctions(std::function<void(uint64_t*)> give_back)
    : give_back_(std::move(give_back)) {}

void HostFunctions::end() {
  if (fork_guard_.forked()) {
    if (thread_.joinable()) thread_.detach();
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void HostFunctions::add(const void* stream, uint64_t* word, std::function<void()> function) {
  {
    const std::lock_guard lock(mutex_);
    if (is_over_) return;
    added_.push_back({stream, word, std::move(function)});
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  }
  changed_.notify_one();
}

void HostFunctions::run() {
  ::pthread_setname_np(::pthread_self(), "tutti-cuda-host");
  ::prctl(PR_SET_TIMERSLACK, 1000);  // else a short sleep takes 50 us longer
  std::vector<Pending> pending;
  auto last_call = Clock::now();
  while (true) {
    {
      std::unique_lock lock(mutex_);
      if (pending.empty() && added_.empty() && !is_over_) {
        changed_.wait(lock, [&] { return is_over_ || !added_.empty(); });
        last_call = Clock::now();
      }
      if (is_over_) return;
      std::move(added_.begin(), added_.end(), std::back_inserter(pending));
      added_.clear();
    }
    if (call_those_stored(pending) > 0) {
      last_call = Clock::now();
      continue;
    }
    const auto share =
        std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - last_call) / kShare;
    std::this_thread::sleep_for(
        std::clamp<std::chrono::microseconds>(share, kLeastSleep, kMostSleep));
  }
}

// Calls, in the order in which they were added, the functions whose words are nonzero. A function
// waits for earlier functions of its stream. Returns how many were called.
size_t HostFunctions::call_those_stored(std::vector<Pending>& pending) {
  std::vector<const void*> held;
  std::vector<Pending> left;
  size_t calls = 0;
  for (auto& one : pending) {
    const bool waits = std::find(held.begin(), held.end(), one.stream) != held.end();
    if (waits || std::atomic_ref(*one.word).load(std::memory_order_acquire) == 0) {
      if (!waits) held.push_back(one.stream);
      left.push_back(std::move(one));
      continue;
    }
    give_back_(one.word);
    one.function();
    one.function = nullptr;  // its captures are destroyed before the next call
    ++calls;
  }
  pending.swap(left);
  return calls;
}

}  // namespace tutti::cuda
