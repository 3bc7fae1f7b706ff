#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tutti/adapters/nn/layers/layers.h"

namespace tutti::nn {

class Loss;
class TrainingState;

/// Layers one after another, each under a name that becomes the prefix of its parameters' names
/// ("conv1.weight"). Equal seeds give equal parameters on every machine. One thread uses it.
class Sequential {
 public:
  /// `threads` is the number of threads of the CPU's kernels. On a device the parameters, their
  /// gradients and the buffers are in the device's memory and use one stream; inputs from the host
  /// are copied there. Throws Error(invalid_argument) for fewer than one thread, and
  /// Error(unavailable) as make_layer_kernels() does.
  explicit Sequential(uint64_t seed = 1, int threads = 1, Device device = {});
  ~Sequential();
  Sequential(Sequential&&) noexcept;

  /// Adds a layer at the end. Throws Error(invalid_argument) for a name given twice.
  Sequential& add(std::string name, std::unique_ptr<Layer> layer);

  /// Runs one batch at a time: backward() belongs to the last forward().
  Tensor forward(const Tensor& input) { return forward(input, context_); }
  Device device() const;     // the device of the layers
  StreamRef stream() const;  // null on the CPU
  /// Returns a copy of a host tensor on the layers' device, made in the order of stream(). Use it
  /// for tensors that are needed more than once. On the CPU it returns the tensor itself.
  Tensor to_device(const Tensor& host);
  /// Runs backward from the loss. Adds to every gradient and announces each as soon as it is final.
  void backward(const Loss& loss);
  /// Like backward(loss), for loss.sum() / divisor. Use it if the ranks' losses are added up.
  void backward(const Loss& loss, double divisor);
  void backward(const Tensor& output_gradient) {
    backward(context_, output_gradient, {.input = false, .weights = true});
  }

  /// Like forward() and backward(), for any number of batches in flight, each with a context of its
  /// own; see Layer.
  Tensor forward(const Tensor& input, Context& context);
  Tensor backward(Context& context, const Tensor& output_gradient, Wanted wanted);

  void zero_grad();

  /// Switches between training, the initial mode, and evaluation. In evaluation dropout does
  /// nothing and batch norm uses its running values.
  void set_training(bool training) { training_ = training; }
  /// Selects the random numbers that dropout draws: those of this training step, for the rows from
  /// `first_row` on in the joined batch of all ranks.
  void set_step(uint32_t step, int64_t first_row = 0) {
    step_ = step;
    first_row_ = first_row;
  }

  /// Returns the parameters in the order of the layers. The handles share memory with the model.
  /// Throws Error(invalid_argument) while a ShardedOptimizer keeps one of them divided over the
  /// ranks (stage 3).
  std::vector<Parameter> parameters() const;
  int64_t parameter_count() const;  // number of elements of all parameters
  /// Returns the state that is not learned by gradients: the running values of batch norm. The
  /// handles share memory with the model.
  std::vector<NamedState> buffers() const;

 private:
  friend TrainingState;  // needs parameters() even if they are divided

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
