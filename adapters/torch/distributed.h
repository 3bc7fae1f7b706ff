#pragma once

#include <torch/version.h>

#include <memory>
#include <vector>

#include "tutti/adapters/distributed.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace tutti::torch {

/// A LibTorch optimizer whose step() uses the gradients of all ranks; see distributed(), which
/// makes it. Gradients lie in a GradientArena, each with its parameter's strides: p.grad() is a
/// view of it. They are reduced while backward still runs. Used by one thread; backward may have
/// its own.
///
/// Of a model on a GPU gradients lie in memory of torch's own; torch's current stream waits for
/// them, not the host, which hears of an error when they travel again; and what no rank reached
/// counts as zeros.
class Distributed {
 public:
  /// See distributed().
  Distributed(Communicator& comm, ::torch::optim::Optimizer& optimizer, ::torch::nn::Module& module,
              const DistributedOptions& options = {});
  /// The parameters keep their gradients, in memory of their own; those that were on their way
  /// become zero.
  ~Distributed();
  Distributed(Distributed&&) noexcept;  // the hooks move along
  Distributed& operator=(Distributed&&) = delete;

  /// Waits until every gradient is that of all ranks, for clipping in between. A parameter that
  /// backward did not reach counts as zeros here; of one that no rank reached the gradient is
  /// undefined afterwards, and the optimizer passes over it. Throws Error(invalid_argument) for a
  /// gradient that was exchanged for another tensor on its way.
  void synchronize();
  /// The optimizer's step on the gradients of all ranks, after synchronize().
  void step();
  /// Makes the gradients undefined, which costs no pass over them: backward writes them anew. The
  /// optimizer's own zero_grad() may be called instead.
  void zero_grad();
  /// synchronize(), and then scales the gradients so that their norm over all parameters is at most
  /// `most`. Returns the norm that they had. f32 and f64.
  double clip_by_global_norm(double most);
  /// Rank `root`'s buffers (the statistics of BatchNorm, say) to all ranks.
  void broadcast_buffers(int root = 0);
  /// As tutti::Distributed has them.
  void skip();
  void consolidate();                                 // the same
  int backward_passes_per_step() const;               // the same
  double noise_scale() const;                         // the same
  std::vector<ExchangeState> exchange_state() const;  // the same

 private:
  class State;
  std::unique_ptr<State> state_;
};

/// Throws Error(version) where a program is compiled for another LibTorch than this adapter, which
/// would bring two of them into one process.
void check_version(int major, int minor);

/// Makes a LibTorch optimizer step on the gradients of all ranks, for models in host memory or on
/// GPUs of CUDA, whose current stream then waits in step() and not the host. Every rank calls it at
/// the same place, with the model made (and moved, cast and laid out) and before its first use. It
/// compares the models (Error(mismatch) names the rank, the parameter, what was expected and what
/// is there), then gives every rank rank 0's parameters, buffers and state of the optimizer (an
/// optimizer of your own needs save() and load() for that), unless options.broadcast_first is off.
/// `comm` and `optimizer` must outlive the result, the module need not. Backward needs nothing
/// else; it throws what tutti::Distributed::gradient_ready throws.
///
///   auto optimizer = tutti::torch::distributed(*comm, sgd, *model);
///   ...
///   optimizer.zero_grad();
///   loss.backward();
///   optimizer.step();
inline Distributed distributed(Communicator& comm, ::torch::optim::Optimizer& optimizer,
                               ::torch::nn::Module& module,
                               const DistributedOptions& options = {}) {
  check_version(TORCH_VERSION_MAJOR, TORCH_VERSION_MINOR);
  return Distributed(comm, optimizer, module, options);
}

}  // namespace tutti::torch
