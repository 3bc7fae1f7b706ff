#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "tutti/adapters/nn/loss.h"
#include "tutti/adapters/nn/parameter.h"
#include "tutti/core/communicator.h"
#include "tutti/kernels/layers/step_kernels.h"

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
};

/// What all ranks know of a step.
struct StepOutcome {
  bool is_skipped = false;  // a loss or gradient somewhere was no number; leave the step out
  double loss = 0;          // mean over the samples of all ranks
  int64_t samples = 0;      // of all ranks
  double norm = 0;          // of the mean gradient, before clipping; not finite where skipped
};

/// What ranks agree on in each step of training: how many samples it had, whatever each rank's
/// share, whether it can be taken, and by which scale the next loss is multiplied. The loss and the
/// gradients are sums over samples; only finish() divides, by the number of samples that was summed
/// with them. The numbers travel as one f32[4] with the gradients, in the same bucket; everything
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
  /// Throws Error(invalid_argument) for options out of range. The communicator must outlive it.
  explicit StepAgreement(Communicator& comm, const StepOptions& options = {});
  ~StepAgreement();
  StepAgreement(const StepAgreement&) = delete;
  StepAgreement& operator=(const StepAgreement&) = delete;

  /// What this rank's sum of losses is divided by for backward: 1 / loss scale.
  double divisor() const { return 1 / scale(); }
  double scale() const { return state_.as<double>()[0]; }
  int64_t skipped_steps() const { return static_cast<int64_t>(state_.as<double>()[2]); }

  /// This rank's part, which may be of no samples. `is_training`: ranks in different modes are
  /// told. Once a step.
  void send(const Loss& loss, bool is_training = true);
  /// Waits for the other ranks' parts, and for the stream of parameters on a device; then makes the
  /// summed gradients those of the mean loss, and clips them. Call it when the gradients have been
  /// summed. Throws Error(mismatch) on every rank where some train and some evaluate, and
  /// Error(invalid_argument) on every rank where no rank had a sample, or too many steps were
  /// skipped in a row.
  StepOutcome finish(const std::vector<Parameter>& parameters);

  /// Scale, clean steps in a row, skipped steps and skipped in a row: for checkpoints.
  std::vector<NamedState> state() const { return {{"step_agreement", state_}}; }

 private:
  void settle(bool is_skipped);
  /// For parameters on a device, which are the same in every step.
  StepKernels& device_steps(const std::vector<Parameter>& parameters);

  Communicator& comm_;
  const StepOptions options_;
  Tensor state_;
  std::array<float, 4> lane_{};  // samples, loss, ranks with a loss that is no number, in training
  Work work_;
  std::unique_ptr<StepKernels> device_steps_;
  const void* first_gradient_ = nullptr;  // of what they were made for
};

/// Finds replicas that have come to differ, as by a bit that flipped in memory: every so many steps
/// the ranks compare a hash of their parameters. One thread.
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
