#include "tutti/adapters/torch/sync_batch_norm.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "tutti/adapters/torch/functions.h"
#include "tutti/adapters/torch/tensors.h"

namespace tutti::torch {

SyncBatchNormImpl::SyncBatchNormImpl(Communicator& comm, std::string name, int64_t features,
                                     const SyncBatchNormOptions& options)
    : comm_(comm), name_(std::move(name)), features_(features), options_(options) {
  weight = register_parameter("weight", ::at::ones({features}));
  bias = register_parameter("bias", ::at::zeros({features}));
  running_mean = register_buffer("running_mean", ::at::zeros({features}));
  running_var = register_buffer("running_var", ::at::ones({features}));
  num_batches_tracked = register_buffer("num_batches_tracked", ::at::zeros({}, ::at::kLong));
}

::at::Tensor SyncBatchNormImpl::forward(const ::at::Tensor& input) {
  if (input.dim() < 2 || input.size(1) != features_)
    throw refused_tensor(name_, comm_.rank(),
                         fmt::format("got an input of shape [{}], expected [batch, {}, ...]",
                                     fmt::join(input.sizes(), ","), features_));
  std::vector<int64_t> others, per_feature(static_cast<size_t>(input.dim()), 1);
  for (int64_t i = 0; i < input.dim(); ++i)
    if (i != 1) others.push_back(i);
  per_feature[1] = features_;
  const auto spread = [&](const ::at::Tensor& values) { return values.reshape(per_feature); };
  const auto normalize = [&](const ::at::Tensor& mean, const ::at::Tensor& variance) {
    const auto factor = weight * (variance + options_.eps).rsqrt();
    return (input - spread(mean)) * spread(factor) + spread(bias);
  };
  if (!is_training()) return normalize(running_mean, running_var);

  const int64_t count = input.numel() / features_;
  const auto own_mean = input.sum(others) / static_cast<double>(std::max<int64_t>(count, 1));
  const auto own_squares = (input - spread(own_mean)).pow(2).sum(others);
  const auto own_count = ::at::full({1}, static_cast<double>(count), input.options());
  const auto all =
      allgather(comm_, name_, ::at::cat({own_count, own_mean, own_squares}).unsqueeze(0));
  const auto counts = all.narrow(1, 0, 1), means = all.narrow(1, 1, features_),
             squares = all.narrow(1, 1 + features_, features_);
  const auto total = counts.sum();
  const auto mean = (counts * means).sum(0) / total;
  const auto squares_of_all = (squares + counts * (means - mean).pow(2)).sum(0);
  {
    const ::c10::NoGradGuard no_history;
    num_batches_tracked += 1;
    running_mean.lerp_(mean.to(running_mean.scalar_type()), options_.momentum);
    const auto unbiased = squares_of_all / (total - 1).clamp_min(1);
    running_var.lerp_(unbiased.to(running_var.scalar_type()), options_.momentum);
  }
  return normalize(mean, squares_of_all / total);
}

}  // namespace tutti::torch
