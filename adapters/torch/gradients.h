#pragma once

#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/adapters/distributed.h"
#include "tutti/adapters/torch/sparse_rows.h"
#include "tutti/adapters/torch/tensors.h"
#include "tutti/core/arena.h"

namespace tutti::torch {

/// The gradients of a LibTorch model, with the interface that tutti::Distributed requires of an
/// optimizer. They are in a GradientArena, except sparse ones. Hooks of their AccumulateGrad nodes
/// announce them, in backward's threads. The thread that takes the steps makes all other calls.
///
/// If a parameter is on a GPU, gradients are in torch's own memory. They are reduced when the
/// stream on which backward writes them has reached that point. torch's current stream waits for
/// the result, and the host does not. So the host sees an error only when the gradient is reduced
/// again.
class Gradients {
 public:
  /// Takes those of `parameters` that the optimizer has and that require a gradient. The
  /// communicator and the optimizer must outlive this object.
  Gradients(Communicator& comm, ::torch::optim::Optimizer& optimizer,
            const std::vector<ModuleTensor>& parameters, const DistributedOptions& options);
  ~Gradients();
  Gradients(const Gradients&) = delete;
  Gradients& operator=(const Gradients&) = delete;

  // tutti::Distributed calls the following functions.
  const std::vector<NamedParameter>& parameters() const { return parameters_; }
  void on_gradient_ready(std::function<void(std::string_view)> callback) {
    ready_ = std::move(callback);
  }
  void reduce_gradient(std::string_view name, const ReduceOptions& options);
  void wait_for_gradients();
  double learning_rate() const;
  void step();

  /// Checks what the user has changed in the optimizer and the parameters since construction.
  /// Throws Error(invalid_argument) for changes that would make ranks differ.
  void check_unchanged() const;
  /// Prepares the wait for the step's gradients. A gradient that backward did not reach is put into
  /// the arena or set to zero. Gradients that the user replaced are checked.
  void settle();
  /// Begins the next step, after the wait.
  void begin_step();
  void zero_grad();
  /// Clips the gradients after the wait.
  double clip_by_global_norm(double most);

 private:
  class Hook;
  struct Slot {
    std::string name;
    ::at::Tensor parameter;
    // A view of the arena, or, for a sparse parameter, the gradient that is being sent.
    ::at::Tensor gradient;
    std::optional<SparseRows> rows;  // set for a sparse parameter
    decltype(::torch::autograd::impl::grad_accumulator(std::declval<::at::Tensor>())) accumulator;
    uintptr_t hook = 0;
    bool reached = false;  // backward reached the gradient in this step
    bool sent = false;     // the gradient was sent in this step
    bool present = false;  // this rank has a gradient; known when it is sent
    bool used = true;      // any rank had a gradient in the previous step
    Work work;             // the allreduce, if the gradient is not in the arena
    Work earlier;          // the previous step's allreduce, for which only a stream waited
  };
  void accumulated(size_t index);
  bool is_in_place(const Slot& slot) const;
  void adopt(Slot& slot);
  static void arrive(Slot& slot);
  void take_parameters(const std::vector<ModuleTensor>& parameters,
                       const DistributedOptions& options);
  void make_arena(const DistributedOptions& options);
  void make_gradients();
  double clip_by_torch(double most);

  Communicator& comm_;
  ::torch::optim::Optimizer& optimizer_;
  const bool may_be_left_out_;
  // If false, gradients are reduced by allreduce. This is so on a GPU, or if the scale changes
  // between steps.
  bool through_arena_;
  std::vector<Slot> slots_;
  std::vector<ModuleTensor> frozen_;  // the optimizer's other parameters
  // True if the policy exchanges values, which must then stay in their memory.
  const bool exchanges_values_;
  std::map<std::string, size_t, std::less<>> index_;
  std::unique_ptr<GradientArena> arena_;  // null if a parameter is on a GPU
  std::vector<NamedParameter> parameters_;
  std::function<void(std::string_view)> ready_;
};

}  // namespace tutti::torch
