#include <fmt/format.h>

#include <chrono>

#include "tutti/adapters/nn/steps/steps.h"

namespace tutti::nn {

void StepMeter::begin() {
  const auto statistics = comm_.statistics();
  messages_before_ = statistics.negotiation_messages;
  exposed_before_ = statistics.exposed_seconds;
  begin_ = Clock::now();
}

std::string StepMeter::end(int64_t step, const StepOutcome& outcome) {
  const std::chrono::duration<double> taken = Clock::now() - begin_;
  const auto statistics = comm_.statistics();
  if (steps_ > 0) {
    seconds_ += taken.count();
    exposed_ += statistics.exposed_seconds - exposed_before_;
  }
  ++steps_;
  return fmt::format("step {}  loss {:.6f}  norm {:.6g}  {:.1f} ms  {} messages{}", step,
                     outcome.loss, outcome.norm, taken.count() * 1e3,
                     statistics.negotiation_messages - messages_before_,
                     outcome.is_skipped ? "  skipped" : "");
}

std::string StepMeter::rate(int64_t units, std::string_view unit) const {
  if (steps_ < 2 || seconds_ <= 0) return "";
  return fmt::format("{:.2f} {}/s, exposed {:.1f} %",
                     static_cast<double>(units) * (steps_ - 1) / seconds_, unit,
                     100 * exposed_ / seconds_);
}

}  // namespace tutti::nn
