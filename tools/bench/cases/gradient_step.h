#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tools/bench/cases/session.h"
#include "tools/bench/workload/exact_data.h"
#include "tools/bench/workload/gradient_set.h"
#include "tools/bench/workload/settings.h"
#include "tutti/core/arena.h"
#include "tutti/core/communicator.h"

namespace tutti::bench {

/// One step of training as the library sees it: every gradient of a set is averaged in place. The
/// average of equal whole numbers is the same number, so any number of steps may follow a refill.
class GradientStep {
 public:
  /// Touches all memory. The communicator must outlive this object.
  GradientStep(Communicator& communicator, const std::vector<Gradient>& gradients, Way way);

  size_t size() const { return views_.size(); }
  int64_t bytes() const { return bytes_; }
  /// Submits gradient `i`. A grouped step submits all gradients with the last one.
  void submit(size_t i);
  void wait();
  /// Submits all gradients, last layer first, and waits.
  void run();
  void run(int64_t steps) {
    for (int64_t i = 0; i < steps; ++i) run();
  }

  void refill();
  /// Returns how many elements of this rank's gradients differ from the mean after one or more
  /// steps.
  int64_t count_wrong() const;

 private:
  Communicator& communicator_;
  const Way way_;
  const Pattern input_, mean_;
  std::vector<NamedTensor> views_;
  std::vector<Tensor> memory_;
  std::optional<GradientArena> arena_;
  std::vector<TensorHandle> handles_;
  std::vector<Work> works_;
  size_t submitted_ = 0;
  int64_t bytes_ = 0;
};

/// Runs at most `most` steps, until the engine of every rank replays them without negotiation.
/// Returns whether it does.
bool run_until_locked(Session& session, Communicator& communicator, GradientStep& step,
                      int most = 64);

/// Refills, runs a step and returns the number of wrong elements on all ranks.
int64_t check_step(Session& session, GradientStep& step);

}  // namespace tutti::bench
