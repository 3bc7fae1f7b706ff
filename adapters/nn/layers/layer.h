#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tutti/adapters/nn/parameter.h"

namespace tutti {
class LayerKernels;  // kernels/layers/layer_kernels.h
}

namespace tutti::nn {

/// What every layer of a model is handed in a forward or backward pass.
struct Pass {
  LayerKernels& kernels;
  bool training = true;   // otherwise dropout and the statistics of batches rest
  uint64_t seed = 1;      // of random numbers, with the step: equal on all ranks
  uint32_t step = 0;      // of training
  int64_t first_row = 0;  // where this rank's rows begin in the joined batch of all ranks
};

/// The same values in memory of their own.
Tensor copy_of(const Pass& pass, const Tensor& tensor);

/// What one forward pass leaves for its backward pass. Each batch on its way has its own; it may be
/// used again for another batch once its backward is done.
struct Context {
  std::vector<Tensor> kept;    // the layer's own
  std::vector<Context> inner;  // of the layers within it, in their order
  /// Of a layer within another, from a backward for the input alone to the one for the weights.
  Tensor output_gradient;
};

/// Which gradients a backward pass computes. Pipelines ask for the input's first, because another
/// rank waits for it, and later for those of the weights.
struct Wanted {
  bool input = true;
  bool weights = true;
};

/// One layer of a model. It keeps nothing of a batch: that is in the batch's Context. One thread.
class Layer {
 public:
  virtual ~Layer() = default;
  /// [batch, ...] to [batch, ...].
  virtual Tensor forward(const Pass& pass, const Tensor& input, Context& context) = 0;
  /// Adds to the gradients of the parameters and announces each, if `wanted.weights`; returns the
  /// gradient of the input, or an empty Tensor without `wanted.input`. The input's may be asked for
  /// first and the weights' later, of the same output gradient, or both at once.
  virtual Tensor backward(const Pass& pass, Context& context, const Tensor& output_gradient,
                          Wanted wanted) = 0;
  /// Fills the weights with random numbers keyed by the seed and each parameter's name: equal on
  /// every machine, and in every model that has this layer at this place.
  virtual void initialize(uint64_t /*seed*/) {}
  virtual std::vector<Parameter*> parameters() { return {}; }
  /// Of other layers, whose values it computes with.
  virtual std::vector<const Parameter*> borrowed() { return {}; }
  /// What it learns by other means than gradients: the running values of batch norm.
  virtual std::vector<NamedState*> buffers() { return {}; }
  /// What it is, with its sizes: "linear(400, 120)".
  virtual std::string kind() const = 0;

  /// Gives it its place in the model, which becomes the prefix of the names of its parameters and
  /// buffers: "conv1" makes "conv1.weight". Once, before initialize().
  virtual void attach(const std::string& path);
  const std::string& path() const { return path_; }

 protected:
  void set_path(const std::string& path) { path_ = path; }
  /// Throws Error(invalid_argument) that names the layer unless `good` and the input is of a float
  /// type that layers compute with. Calls require_whole(). `wanted`: the shape that it takes.
  void require_input(const Tensor& input, bool good, const char* wanted);
  /// Throws Error(invalid_argument) while a parameter is divided over the ranks: the layer would
  /// compute with zeros. Such a layer should be gathered().
  void require_whole();
  /// Tells who listens that the gradients of the parameters are final for this pass.
  void announce();

 private:
  std::string path_;
};

}  // namespace tutti::nn
