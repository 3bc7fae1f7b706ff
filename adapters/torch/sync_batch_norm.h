#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <string>

#include "tutti/core/communicator.h"

namespace tutti::torch {

/// Options of a SyncBatchNorm, as those of torch's BatchNorm.
struct SyncBatchNormOptions {
  double eps = 1e-5;      // added to the variance
  double momentum = 0.1;  // weight of the new values in the running statistics
};

/// Normalizes [batch, features, ...] by mean and variance over the batches of all ranks. Their
/// sizes may differ or be zero. The result is what torch's BatchNorm computes for the joined batch
/// (Ioffe and Szegedy 2015; partial variances are combined as by Chan, Golub and LeVeque 1979). In
/// training it makes one collective forward and one backward under `name`, so every rank runs both.
/// `name` must be unique and equal on all ranks. It sums in f32, and in f64 for f64 inputs. An
/// output has the dtype of its input. A step in which every batch is empty does not change the
/// running statistics. In eval() it uses the running statistics and no other rank.
class SyncBatchNormImpl : public ::torch::nn::Module {
 public:
  /// The communicator must outlive this object.
  SyncBatchNormImpl(Communicator& comm, std::string name, int64_t features,
                    const SyncBatchNormOptions& options = {});
  /// Returns a tensor of the input's shape. Throws Error(invalid_argument) for another number of
  /// features.
  ::at::Tensor forward(const ::at::Tensor& input);

  ::at::Tensor weight;               // parameter, [features]
  ::at::Tensor bias;                 // parameter, [features]
  ::at::Tensor running_mean;         // buffer, [features], as in torch's BatchNorm
  ::at::Tensor running_var;          // buffer, [features], as in torch's BatchNorm
  ::at::Tensor num_batches_tracked;  // buffer, a number, as in torch's BatchNorm

 private:
  Communicator& comm_;
  const std::string name_;
  const int64_t features_;
  const SyncBatchNormOptions options_;
};

/// The holder of the module, as torch's own modules have one.
class SyncBatchNorm : public ::torch::nn::ModuleHolder<SyncBatchNormImpl> {
 public:
  using ::torch::nn::ModuleHolder<SyncBatchNormImpl>::ModuleHolder;
  using Impl = SyncBatchNormImpl;  // torch uses this name
};

}  // namespace tutti::torch
