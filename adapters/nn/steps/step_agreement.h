#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tutti/adapters/nn/loss.h"
#include "tutti/adapters/nn/parameter.h"
#include "tutti/adapters/sampling/shares.h"
#include "tutti/adapters/sharded/placed_tensor.h"
#include "tutti/base/deadline.h"
#include "tutti/core/communicator.h"
#include "tutti/tensor/tensor.h"

namespace tutti {
class KeptStepKernels;  // kernels/layers/step_kernels.h
}

namespace tutti::nn {

/// Losses are multiplied before backward, so that gradients of f16 do not vanish, and gradients are
/// divided after it. The factor is a power of two, so it changes no bits that are in range.
struct LossScaleOptions {
  double first = 1;   // 65536 is usual for f16; f32 and bf16 need none
  double least = 1;   // a step that is not finite at this scale is an error, if steps were scaled
  double growth = 2;  // after `clean` steps without an infinity in a row
  double backoff = 0.5;  // after a step with one
  int64_t clean = 2000;
};

struct StepOptions {
  double clip = 0;  // above 0: the most that the norm of all gradients may be
  LossScaleOptions loss_scale = {};
  int64_t most_skips = 100;  // in a row; one more is an error
  ShareOptions shares = {};  // see begin()
};

/// What all ranks know of a step.
struct StepOutcome {
  bool is_skipped = false;  // a loss or gradient somewhere was no number; leave the step out
  double loss = 0;          // mean over the samples of all ranks
  int64_t samples = 0;      // of all ranks
  double norm = 0;          // of the mean gradient, before clipping; not finite where skipped
};

/// What ranks agree on in each step of training: how many samples it had, whatever each rank's
/// share, whether it can be taken, by which scale the next loss is multiplied and, by option, how
/// the next step's samples are dealt to ranks of different speed. The loss and the gradients are
/// sums over samples; only finish() divides, by the number of samples that was summed with them.
/// The numbers travel as one small f32 tensor with the gradients, in the same bucket; everything
/// else follows on each rank from the same bits. One thread.
///
///   auto optimizer = distributed(comm, sgd, {.op = ReduceOp::sum});
///   StepAgreement agreement(comm);
///   ...
///   CrossEntropy loss(model.forward(images), labels);
///   model.backward(loss, agreement.divisor());
///   agreement.send(loss);
///   optimizer.synchronize();
///   if (agreement.finish(sgd.parameters()).is_skipped) optimizer.skip(); else optimizer.step();
class StepAgreement {
 public:
  /// Throws Error(invalid_argument) for options out of range. Where shares follow speed, all ranks
  /// make it together, and Error(mismatch) is thrown where they do not share the same samples. The
  /// communicator must outlive it.
  explicit StepAgreement(Communicator& comm, const StepOptions& options = {});
  ~StepAgreement();
  StepAgreement(const StepAgreement&) = delete;
  StepAgreement& operator=(const StepAgreement&) = delete;

  /// What this rank's sum of losses is divided by for backward: 1 / loss scale.
  double divisor() const { return 1 / scale(); }
  double scale() const { return state_.as<double>()[0]; }
  int64_t skipped_steps() const { return static_cast<int64_t>(state_.as<double>()[2]); }

  /// Begins a step and returns this rank's share of its samples: equal shares of
  /// options.shares.samples, or such that all ranks end at the same time, by what each took from
  /// here to send(), less what it waited there for others. May be left out where shares are not
  /// asked for.
  StepShare begin();
  /// Of all ranks, in the step that begins next.
  const std::vector<int64_t>& shares() const { return shares_.counts(); }
  /// This rank's part, which may be of no samples. `is_training`: ranks in different modes are
  /// told. Once a step.
  void send(const Loss& loss, bool is_training = true);
  /// Waits for the other ranks' parts, and for the stream of parameters on a device; then makes the
  /// summed gradients those of the mean loss, and clips them. Call it when the gradients have been
  /// summed. Throws Error(mismatch) on every rank where some train and some evaluate, or shares are
  /// not of the same samples, and Error(invalid_argument) on every rank where no rank had a sample,
  /// or too many steps were skipped in a row.
  StepOutcome finish(const std::vector<Parameter>& parameters);
  /// The same of gradients of which each rank has a part, as ShardedOptimizer::gradients(), after
  /// its synchronize(); their norm is added up over the ranks.
  StepOutcome finish(const std::vector<PlacedTensor>& gradients);

  /// Scale, clean steps in a row, skipped steps and skipped in a row: for checkpoints.
  std::vector<NamedState> state() const { return {{"step_agreement", state_}}; }

 private:
  void receive();
  /// Of the norm of the summed gradients on the CPU, which it scales and clips.
  StepOutcome conclude(double norm, const std::vector<TensorView>& gradients);
  /// Of the norm of the mean gradient; the loss scale follows.
  StepOutcome settled(double norm);
  void settle(bool is_skipped);
  double waited() const { return comm_.statistics().wait_seconds; }

  Communicator& comm_;
  const StepOptions options_;
  SpeedShares shares_;
  Tensor state_;
  // Samples, loss, ranks with a loss that is no number, ranks in training; where shares follow
  // speed then the samples to share, and each rank's seconds for its own.
  std::vector<float> lane_;
  Clock::time_point begin_{};  // of this rank's step; not set without begin()
  double waited_before_ = 0;
  Work work_;
  std::unique_ptr<KeptStepKernels> device_steps_;
};

/// Finds replicas that have come to differ, as by a bit that flipped in memory: every so many steps
/// the ranks compare a hash of their parameters, whose bytes a device copies to the host for that.
/// One thread.
class Sentinel {
 public:
  /// `every`: steps from one look to the next. Throws Error(invalid_argument) below 1. The
  /// communicator must outlive it.
  Sentinel(Communicator& comm, std::vector<Parameter> parameters, int64_t every);
  /// Call it after each step, on every rank. Throws Error(mismatch) on every rank that names the
  /// first parameter that differs, the step, and the ranks that are not as most are.
  void look(int64_t step);

 private:
  Communicator& comm_;
  const std::vector<Parameter> parameters_;
  const int64_t every_;
};

}  // namespace tutti::nn
