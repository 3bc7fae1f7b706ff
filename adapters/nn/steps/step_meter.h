#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tutti/adapters/nn/steps/step_agreement.h"
#include "tutti/base/deadline.h"
#include "tutti/core/communicator.h"

namespace tutti::nn {

/// Times the steps of this rank's training and describes them in lines for people and scripts.
/// rate() leaves out the first step, in which layers make their primitives. One thread uses it.
///
///   nn::StepMeter meter(*comm);
///   for (int step = 0; step < steps; ++step) {
///     meter.begin();
///     ...
///     const auto line = meter.end(step, agreement.finish(sgd.parameters()));
///   }
class StepMeter {
 public:
  /// This object reads the communicator's statistics, so the communicator must outlive it.
  explicit StepMeter(Communicator& comm) : comm_(comm) {}

  void begin();
  /// Ends the step since begin() and describes it: "step 3  loss 1.25  norm 0.5  12.0 ms  0
  /// messages". The messages are those of this rank's negotiation. A skipped step has "  skipped"
  /// at the end.
  std::string end(int64_t step, const StepOutcome& outcome);
  /// Returns the rate of the steps so far, each of which has `units` on all ranks together: "840.00
  /// tokens/s, exposed 1.5 %". Exposed is the share of the time in which this rank waited while
  /// data moved. The text is empty before the second step ends.
  std::string rate(int64_t units, std::string_view unit) const;
  /// Returns the mean time of the steps that rate() counts, or 0 before the second step ends.
  double seconds_per_step() const { return steps_ > 1 ? seconds_ / (steps_ - 1) : 0; }

 private:
  Communicator& comm_;
  Clock::time_point begin_{};
  uint64_t messages_before_ = 0;
  double exposed_before_ = 0;
  int steps_ = 0;       // number of steps that ended
  double seconds_ = 0;  // time of all steps but the first; exposed_ too
  double exposed_ = 0;
};

}  // namespace tutti::nn
