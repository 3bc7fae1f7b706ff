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
  // 16-bit types cannot hold the sums of a layer or the number of its values.
  const auto wide = input.scalar_type() == ::at::kDouble ? ::at::kDouble : ::at::kFloat;
  const auto x = input.to(wide);
  const auto normalize = [&](const ::at::Tensor& mean, const ::at::Tensor& variance) {
    const auto factor = weight.to(wide) * (variance + options_.eps).rsqrt().to(wide);
    return ((x - spread(mean.to(wide))) * spread(factor) + spread(bias.to(wide)))
        .to(input.scalar_type());
  };
  if (!is_training()) return normalize(running_mean.to(wide), running_var.to(wide));

  const int64_t count = input.numel() / features_;
  const auto own_mean = x.sum(others) / static_cast<double>(std::max<int64_t>(count, 1));
  const auto own_squares = (x - spread(own_mean)).pow(2).sum(others);
  // Counts are sent as f64, which holds them exactly.
  const auto own_count =
      ::at::full({1}, static_cast<double>(count), x.options().dtype(::at::kDouble));
  const auto all =
      allgather(comm_, name_,
                ::at::cat({own_count, own_mean.to(::at::kDouble), own_squares.to(::at::kDouble)})
                    .unsqueeze(0));
  const auto counts = all.narrow(1, 0, 1), means = all.narrow(1, 1, features_),
             squares = all.narrow(1, 1 + features_, features_);
  const auto total = counts.sum();
  const auto divisor = total.clamp_min(1);
  const auto mean = (counts * means).sum(0) / divisor;
  const auto squares_of_all = (squares + counts * (means - mean).pow(2)).sum(0);
  {
    const ::c10::NoGradGuard no_history;
    // A step in which no rank had a value changes nothing. The condition stays in a tensor, because
    // the host does not know the result that a GPU computes.
    const auto counts_at_all = total > 0;
    num_batches_tracked += counts_at_all.to(::at::kLong);
    const auto take = [&](::at::Tensor& running, const ::at::Tensor& value) {
      running.lerp_(value.to(running.scalar_type()),
                    (counts_at_all * options_.momentum).to(running.scalar_type()));
    };
    take(running_mean, mean);
    take(running_var, squares_of_all / (total - 1).clamp_min(1));
  }
  return normalize(mean, squares_of_all / divisor);
}

}  // namespace tutti::torch
