#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tutti/adapters/nn/layers.h"
#include "tutti/adapters/nn/layers/chain.h"

namespace tutti::nn {

class Loss;
class TrainingState;

/// Layers one after another, each under a name that becomes the prefix of its parameters' names
/// ("conv1.weight"). Equal seeds give equal parameters on every machine. One thread.
class Sequential {
 public:
  /// `threads`: of the CPU's kernels. On a device the parameters, their gradients and buffers live
  /// there, on one stream, and inputs from the host are copied there. Throws
  /// Error(invalid_argument) below one thread, Error(unavailable) as make_layer_kernels().
  explicit Sequential(uint64_t seed = 1, int threads = 1, Device device = {});
  ~Sequential();
  Sequential(Sequential&&) noexcept;

  /// Adds a layer at the end. Throws Error(invalid_argument) for a name given twice.
  Sequential& add(std::string name, std::unique_ptr<Layer> layer);

  /// Of one batch at a time: backward() is that of the last forward().
  Tensor forward(const Tensor& input) { return forward(input, context_); }
  Device device() const;     // where the layers are computed
  StreamRef stream() const;  // null on the CPU
  /// A copy of a tensor of the host's where the layers are computed, in order of stream(), for what
  /// is used more than once; on the CPU the tensor itself.
  Tensor to_device(const Tensor& host);
  /// From the loss back: adds to every gradient and announces each as soon as it is final.
  void backward(const Loss& loss);
  /// The same of loss.sum() / divisor, where the ranks' losses add up.
  void backward(const Loss& loss, double divisor);
  void backward(const Tensor& output_gradient) {
    backward(context_, output_gradient, {.input = false, .weights = true});
  }

  /// Of any number of batches on their way, each with a context of its own; see Layer.
  Tensor forward(const Tensor& input, Context& context);
  Tensor backward(Context& context, const Tensor& output_gradient, Wanted wanted);

  void zero_grad();

  /// Training is what it begins with; in evaluation dropout rests and batch norm goes by its
  /// running values.
  void set_training(bool training) { training_ = training; }
  /// Which random numbers dropout draws: those of this step of training, and of the rows from
  /// `first_row` on of the joined batch of all ranks.
  void set_step(uint32_t step, int64_t first_row = 0) {
    step_ = step;
    first_row_ = first_row;
  }

  /// In the order of the layers; the handles share memory with the model. Throws
  /// Error(invalid_argument) while a ShardedOptimizer has one of them divided (stage 3).
  std::vector<Parameter> parameters() const;
  int64_t parameter_count() const;  // elements of all of them
  /// What it learns by other means than gradients, likewise: the running values of batch norm.
  std::vector<NamedState> buffers() const;

 private:
  friend TrainingState;  // it takes parameters that are divided, too

  Pass pass() const { return {*kernels_, training_, seed_, step_, first_row_}; }

  const uint64_t seed_;
  bool training_ = true;
  uint32_t step_ = 0;
  int64_t first_row_ = 0;
  std::unique_ptr<LayerKernels> kernels_;
  std::unique_ptr<Chain> layers_;
  Context context_;
};

}  // namespace tutti::nn
