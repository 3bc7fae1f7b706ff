#include "tutti/base/clock.h"

#include <thread>
#include <utility>

namespace tutti {

namespace {

// With this TLS model, now() reads the variable without a call into the dynamic loader.
[[gnu::tls_model("initial-exec")]] thread_local constinit Clock::Source* source_of_thread = nullptr;

}  // namespace

Clock::time_point Clock::now() noexcept {
  Source* const source = source_of_thread;
  if (source != nullptr) [[unlikely]]
    return source->now();
  return std::chrono::steady_clock::now();
}

void Clock::sleep_for(duration time) {
  Source* const source = source_of_thread;
  if (source != nullptr) return source->sleep_until(source->now() + time);
  std::this_thread::sleep_for(time);
}

Clock::Source* Clock::use(Source* source) noexcept {
  return std::exchange(source_of_thread, source);
}

}  // namespace tutti
