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

/// The gradients of a LibTorch model, as tutti::Distributed wants an optimizer: in a GradientArena
/// (sparse ones outside), announced by hooks of their AccumulateGrad nodes, which run in backward's
/// threads. Everything else is called by the one thread that takes the steps.
///
/// Where a parameter is on a GPU they are in memory of torch's own. They travel when the stream
/// that backward writes them on has come so far, and torch's current stream waits for them, not the
/// host, which hears of an error when they travel again.
class Gradients {
 public:
  /// Of those of `parameters` that the optimizer has and that require a gradient. The
  /// communicator and the optimizer must outlive it.
  Gradients(Communicator& comm, ::torch::optim::Optimizer& optimizer,
            const std::vector<ModuleTensor>& parameters, const DistributedOptions& options);
  ~Gradients();
  Gradients(const Gradients&) = delete;
  Gradients& operator=(const Gradients&) = delete;

  // What tutti::Distributed asks for.
  const std::vector<NamedParameter>& parameters() const { return parameters_; }
  void on_gradient_ready(std::function<void(std::string_view)> callback) {
    ready_ = std::move(callback);
  }
  void reduce_gradient(std::string_view name, const ReduceOptions& options);
  void wait_for_gradients();
  double learning_rate() const;
  void step();

  /// What the user did to the optimizer and the parameters since. Throws Error(invalid_argument)
  /// for what would make ranks differ.
  void check_unchanged() const;
  /// Before the step's gradients are waited for: what backward did not reach is put into the arena
  /// or made zero, and what the user did to gradients is looked at.
  void settle();
  /// After that: the next step begins.
  void begin_step();
  void zero_grad();
  /// Of those that were waited for.
  double clip_by_global_norm(double most);

 private:
  class Hook;
  struct Slot {
    std::string name;
    ::at::Tensor parameter;
    ::at::Tensor gradient;           // a view of the arena; of sparse ones the one on its way
    std::optional<SparseRows> rows;  // of a sparse one
    decltype(::torch::autograd::impl::grad_accumulator(std::declval<::at::Tensor>())) accumulator;
    uintptr_t hook = 0;
    bool reached = false;  // by backward, in this step
    bool sent = false;     // in this step
    bool present = false;  // this rank has one; known when it is sent
    bool used = true;      // any rank had one in the step before
    Work work;             // where it travels outside the arena
    Work earlier;          // the same of the step before, which a stream waited for
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
  bool through_arena_;  // else by allreduce: on a GPU, or where the scale changes between steps
  std::vector<Slot> slots_;
  std::vector<ModuleTensor> frozen_;  // the optimizer's others
  const bool exchanges_values_;       // which then must stay where they are
  std::map<std::string, size_t, std::less<>> index_;
  std::unique_ptr<GradientArena> arena_;  // null where a parameter is on a GPU
  std::vector<NamedParameter> parameters_;
  std::function<void(std::string_view)> ready_;
};

}  // namespace tutti::torch
