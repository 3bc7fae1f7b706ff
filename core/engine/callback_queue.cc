#include "tutti/core/engine/callback_queue.h"

#include <fmt/format.h>

#include <exception>

namespace tutti {

void run_callback(std::function<void()> callback, const CallbackReport& report) noexcept {
  constexpr auto* kThen = "it was given up, all else goes on";
  try {
    try {
      callback();
    } catch (const std::exception& error) {
      report(fmt::format("a callback threw: {}; {}", error.what(), kThen));
    } catch (...) {
      report(fmt::format("a callback threw something that is not a std::exception; {}", kThen));
    }
  } catch (...) {
    // There may be no memory for the line, which is then lost.
  }
}

}  // namespace tutti
