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

/// A LibTorch optimizer whose step() uses the gradients of all ranks; distributed() makes it.
/// Gradients are in a GradientArena, each with its parameter's strides, and p.grad() is a view of
/// the arena. They are reduced while backward still runs. One thread uses it; backward may use
/// other threads.
///
/// If the model is on a GPU, gradients are in torch's own memory. torch's current stream waits for
/// their reduction, and the host does not. So the host sees an error only when the gradient is
/// reduced again. A gradient that no rank reached counts as zeros.
class Distributed {
 public:
  /// See distributed().
  Distributed(Communicator& comm, ::torch::optim::Optimizer& optimizer, ::torch::nn::Module& module,
              const DistributedOptions& options = {});
  /// The parameters keep their gradients, in memory of their own. Gradients whose reduction is not
  /// complete become zero.
  ~Distributed();
  Distributed(Distributed&&) noexcept;  // the hooks move with it
  Distributed& operator=(Distributed&&) = delete;

  /// Waits until every gradient is reduced over all ranks, for example to clip gradients before
  /// step(). A parameter that backward did not reach counts as zeros on this rank. If no rank
  /// reached it, its gradient is undefined afterwards, and the optimizer skips it. Throws
  /// Error(invalid_argument) if a gradient was replaced by another tensor during its reduction.
  void synchronize();
  /// Takes the optimizer's step on the gradients of all ranks, after synchronize().
  void step();
  /// Makes the gradients undefined, so that backward writes them without a pass that zeroes them.
  /// The optimizer's own zero_grad() may be called instead.
  void zero_grad();
  /// Calls synchronize(), and then scales the gradients so that their norm over all parameters is
  /// at most `most`. Returns the norm that they had. It takes f32 and f64 gradients.
  double clip_by_global_norm(double most);
  /// Broadcasts the buffers of rank `root`, such as the statistics of BatchNorm, to all ranks.
  void broadcast_buffers(int root = 0);
  /// The following are the functions of tutti::Distributed.
  void skip();
  void consolidate();                                 // see tutti::Distributed
  int backward_passes_per_step() const;               // see tutti::Distributed
  double noise_scale() const;                         // see tutti::Distributed
  std::vector<ExchangeState> exchange_state() const;  // see tutti::Distributed

 private:
  class State;
  std::unique_ptr<State> state_;
};

/// Throws Error(version) if the program is compiled for another LibTorch than this adapter. Two
/// versions would then be loaded into one process.
void check_version(int major, int minor);

/// Makes a LibTorch optimizer step on the gradients of all ranks. Models are in host memory or on
/// CUDA GPUs; for a GPU its current stream waits in step(), and not the host. Every rank calls it
/// at the same point of the program, when the model is made, moved, cast and laid out, and before
/// it is first used. It first compares the models: Error(mismatch) names the rank, the parameter,
/// what was expected and what was found. Then, unless options.broadcast_first is false, it gives
/// every rank rank 0's parameters, buffers and optimizer state; an optimizer of your own needs
/// save() and load() for that. `comm` and `optimizer` must outlive the result; the module need not.
/// Backward needs no change. It throws what tutti::Distributed::gradient_ready throws.
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
