#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/adapters/nn/layers/loss.h"
#include "tutti/adapters/nn/layers/parameter.h"
#include "tutti/adapters/sampling/shares.h"
#include "tutti/adapters/sharded/placed_tensor.h"
#include "tutti/base/deadline.h"
#include "tutti/core/communicator.h"
#include "tutti/tensor/tensor.h"

namespace tutti {
class KeptStepKernels;  // adapters/nn/kernels/step_kernels.h
}

namespace tutti::nn {

/// Losses are multiplied by a scale before backward, so that f16 gradients do not vanish. Gradients
/// are divided by the scale afterwards. A scale that is a power of two changes no bits of values
/// that are in range.
struct LossScaleOptions {
  double first = 1;      // 65536 is usual for f16; f32 and bf16 need none
  double least = 1;      // scaled steps that are not finite even at this scale are an error
  double growth = 2;     // factor after `clean` finite steps in a row
  double backoff = 0.5;  // factor after a step that is not finite
  int64_t clean = 2000;
};

struct StepOptions {
  double clip = 0;  // above 0: the most that the norm of all gradients may be
  LossScaleOptions loss_scale = {};
  int64_t most_skips = 100;  // number of skips in a row; one more is an error
  ShareOptions shares = {};  // see begin()
};

/// The result of a step. It is equal on all ranks.
struct StepOutcome {
  bool is_skipped = false;  // a loss or gradient of some rank was not finite; leave the step out
  double loss = 0;          // mean over the samples of all ranks
  int64_t samples = 0;      // number of samples of all ranks
  // Norm of the mean gradient before clipping. It is not finite if this is why the step is skipped.
  double norm = 0;
};

/// Lets the ranks agree on each step of training. They agree on the number of samples, whatever
/// each rank's share, on whether the step can be taken, and on the scale of the next loss.
/// Optionally this also deals the next step's samples to ranks of different speed. The loss and the
/// gradients are sums over samples. Only finish() divides, by the number of samples, which is
/// summed with them. The numbers are sent as one small f32 tensor in the gradients' bucket.
/// Everything else follows on each rank from the same bits. One thread uses it.
///
///     auto optimizer = distributed(comm, sgd, {.op = ReduceOp::sum});
///     StepAgreement agreement(comm);
///     ...
///     CrossEntropy loss(model.forward(images), labels);
///     model.backward(loss, agreement.divisor());
///     agreement.send(loss);
///     optimizer.synchronize();
///     if (agreement.finish(sgd.parameters()).is_skipped) optimizer.skip();
///     else optimizer.step();
class StepAgreement {
 public:
  /// Throws Error(invalid_argument) for options out of range. If shares follow speed, the
  /// constructor is collective, and throws Error(mismatch) if the ranks' numbers of samples to
  /// share differ. The communicator must outlive this object.
  explicit StepAgreement(Communicator& comm, const StepOptions& options = {});
  ~StepAgreement();
  StepAgreement(const StepAgreement&) = delete;
  StepAgreement& operator=(const StepAgreement&) = delete;

  /// Returns the divisor of this rank's sum of losses in backward: 1 / loss scale.
  double divisor() const { return 1 / scale(); }
  double scale() const { return state_.as<double>()[0]; }
  int64_t skipped_steps() const { return static_cast<int64_t>(state_.as<double>()[2]); }

  /// Begins a step and returns this rank's share of its samples. The shares of
  /// options.shares.samples are equal, or, if they follow speed, are such that all ranks end at the
  /// same time. The speed is measured by the time that each rank took from begin() to send(), less
  /// the time that it waited for others. The call may be left out if shares are not used.
  StepShare begin();
  /// Returns the shares of all ranks in the step that begins next.
  const std::vector<int64_t>& shares() const { return shares_.counts(); }
  /// Sends this rank's part of the step, which may have no samples. `is_training` lets finish()
  /// detect ranks in different modes. Call it once per step.
  void send(const Loss& loss, bool is_training = true);
  /// Waits for the other ranks' parts, and for the stream of parameters on a device. Then it turns
  /// the summed gradients into those of the mean loss, and clips them. Call it when the gradients
  /// have been summed. On every rank it throws Error(mismatch) if some ranks train and some
  /// evaluate, and Error(invalid_argument) if no rank had a sample or too many steps were skipped
  /// in a row.
  StepOutcome finish(const std::vector<Parameter>& parameters);
  /// Like finish(parameters), for gradients of which each rank has a part, such as those of
  /// ShardedOptimizer::gradients() after its synchronize(). Their norm is added up over the ranks.
  StepOutcome finish(const std::vector<PlacedTensor>& gradients);

  /// Returns what a checkpoint needs: the scale, and the numbers of finite steps in a row, of
  /// skipped steps, and of steps skipped in a row.
  std::vector<NamedState> state() const { return {{"step_agreement", state_}}; }

 private:
  void receive();
  /// Concludes a step on the CPU with the norm of the summed gradients, and scales and clips them.
  StepOutcome conclude(double norm, const std::vector<TensorView>& gradients);
  /// Returns the outcome for the norm of the mean gradient, and updates the loss scale.
  StepOutcome settled(double norm);
  void settle(bool is_skipped);
  double waited() const { return comm_.statistics().wait_seconds; }

  Communicator& comm_;
  const StepOptions options_;
  SpeedShares shares_;
  Tensor state_;
  // The values that are summed over the ranks: the number of samples, the loss, the number of ranks
  // whose loss is not finite, and the number of ranks in training. If shares follow speed, the
  // seconds that each rank took for its share follow.
  std::vector<float> lane_;
  Clock::time_point begin_{};  // when this rank's step began; not set without begin()
  double waited_before_ = 0;
  Work work_;
  std::unique_ptr<KeptStepKernels> device_steps_;
};

/// Finds replicas that have become different, for example because a bit flipped in memory. Every
/// `every` steps the ranks compare a hash of their parameters. Parameters on a device are copied to
/// the host for that. One thread uses it.
class Sentinel {
 public:
  /// `every` is the number of steps from one comparison to the next. Throws Error(invalid_argument)
  /// if it is below 1. The communicator must outlive this object.
  Sentinel(Communicator& comm, std::vector<Parameter> parameters, int64_t every);
  /// Call it after each step, on every rank. If parameters differ, it throws Error(mismatch) on
  /// every rank, which names the first parameter that differs, the step, and the ranks that differ
  /// from the majority.
  void look(int64_t step);

 private:
  Communicator& comm_;
  const std::vector<Parameter> parameters_;
  const int64_t every_;
};

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
