#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <string>

#include "tutti/core/communicator.h"

namespace tutti::torch {

/// Of a SyncBatchNorm; as torch's BatchNorm has them.
struct SyncBatchNormOptions {
  double eps = 1e-5;      // added to the variance
  double momentum = 0.1;  // of the running statistics
};

/// Normalizes [batch, features, ...] by mean and variance over the batches of all ranks, which may
/// differ in size, be empty too: what torch's BatchNorm computes of the joined batch (Ioffe and
/// Szegedy 2015; partial variances combined as by Chan, Golub and LeVeque 1979). One collective
/// forward and one backward, under `name`, which must be its own and equal on all ranks, so every
/// rank runs both in training. It sums in f32, and in f64 for inputs of f64. An output has the type
/// of its input. A step in which every batch is empty does not change the running statistics. In
/// eval() it uses the running statistics and no other rank.
class SyncBatchNormImpl : public ::torch::nn::Module {
 public:
  /// The communicator must outlive it.
  SyncBatchNormImpl(Communicator& comm, std::string name, int64_t features,
                    const SyncBatchNormOptions& options = {});
  /// Of the input's shape. Throws Error(invalid_argument) for another number of features.
  ::at::Tensor forward(const ::at::Tensor& input);

  ::at::Tensor weight;               // parameter, [features]
  ::at::Tensor bias;                 // parameter, [features]
  ::at::Tensor running_mean;         // buffer, [features], as BatchNorm's
  ::at::Tensor running_var;          // buffer, [features], the same
  ::at::Tensor num_batches_tracked;  // buffer, a number, the same

 private:
  Communicator& comm_;
  const std::string name_;
  const int64_t features_;
  const SyncBatchNormOptions options_;
};

/// As torch's modules are held.
class SyncBatchNorm : public ::torch::nn::ModuleHolder<SyncBatchNormImpl> {
 public:
  using ::torch::nn::ModuleHolder<SyncBatchNormImpl>::ModuleHolder;
  using Impl = SyncBatchNormImpl;  // torch asks for it
};

}  // namespace tutti::torch
