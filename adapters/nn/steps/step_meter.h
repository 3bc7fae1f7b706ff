#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tutti/adapters/nn/steps/step_agreement.h"
#include "tutti/base/deadline.h"
#include "tutti/core/communicator.h"

namespace tutti::nn {

/// Times the steps of this rank's training and says them in lines for people and scripts. The first
/// step, in which layers make their primitives, is left out of rate(). One thread.
///
///   nn::StepMeter meter(*comm);
///   for (int step = 0; step < steps; ++step) {
///     meter.begin();
///     ...
///     const auto line = meter.end(step, agreement.finish(sgd.parameters()));
///   }
class StepMeter {
 public:
  /// The communicator, whose statistics are read, must outlive it.
  explicit StepMeter(Communicator& comm) : comm_(comm) {}

  void begin();
  /// Of the step since begin(): "step 3  loss 1.25  norm 0.5  12.0 ms  0 messages", where messages
  /// are those of this rank's negotiation, and "  skipped" where it was.
  std::string end(int64_t step, const StepOutcome& outcome);
  /// Of the steps that ended, each of `units` of all ranks: "840.00 tokens/s, exposed 1.5 %", the
  /// share of their time in which this rank waited for others. Empty before the second step ends.
  std::string rate(int64_t units, std::string_view unit) const;
  /// Mean of those steps; 0 before the second ends.
  double seconds_per_step() const { return steps_ > 1 ? seconds_ / (steps_ - 1) : 0; }

 private:
  Communicator& comm_;
  Clock::time_point begin_{};
  uint64_t messages_before_ = 0;
  double exposed_before_ = 0;
  int steps_ = 0;       // that ended
  double seconds_ = 0;  // of all but the first, as exposed_
  double exposed_ = 0;
};

}  // namespace tutti::nn
