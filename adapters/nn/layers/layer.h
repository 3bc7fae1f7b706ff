#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tutti/adapters/nn/layers/parameter.h"

namespace tutti {
class LayerKernels;  // adapters/nn/kernels/layer_kernels.h
}

namespace tutti::nn {

/// The arguments that every layer gets in a forward or backward pass.
struct Pass {
  LayerKernels& kernels;
  bool training = true;   // if false, dropout and batch statistics are not used
  uint64_t seed = 1;      // seed of random numbers; equal on all ranks
  uint32_t step = 0;      // step of training, on which random numbers also depend
  int64_t first_row = 0;  // where this rank's rows begin in the joined batch of all ranks
};

/// Returns a copy of the tensor.
Tensor copy_of(const Pass& pass, const Tensor& tensor);

/// The tensors that one forward pass leaves for its backward pass. Each batch in flight has its own
/// Context. Another batch may use the Context once backward is done.
struct Context {
  std::vector<Tensor> kept;    // the layer's own
  std::vector<Context> inner;  // contexts of the layers within this one, in their order
  /// The output gradient of a layer within another layer, kept from the backward pass for the input
  /// to the backward pass for the weights.
  Tensor output_gradient;
};

/// Selects the gradients that a backward pass computes. Pipelines ask for the input's gradient
/// first, because another rank waits for it, and later for those of the weights.
struct Wanted {
  bool input = true;
  bool weights = true;
};

/// One layer of a model. It keeps no data of a batch; the batch's Context has them. One thread uses
/// it.
class Layer {
 public:
  virtual ~Layer() = default;
  /// Maps [batch, ...] to [batch, ...], and keeps in `context` what backward() needs.
  virtual Tensor forward(const Pass& pass, const Tensor& input, Context& context) = 0;
  /// If `wanted.weights`, adds to the gradients of the parameters and announces each. Returns the
  /// gradient of the input, or an empty Tensor without `wanted.input`. One call may ask for both.
  /// Otherwise the call for the input comes first. The call for the weights follows, with the same
  /// output gradient.
  virtual Tensor backward(const Pass& pass, Context& context, const Tensor& output_gradient,
                          Wanted wanted) = 0;
  /// Fills the weights with random numbers that follow from the seed and each parameter's name.
  /// They are equal on every machine, and in every model that has this layer under this path.
  virtual void initialize(uint64_t /*seed*/) {}
  virtual std::vector<Parameter*> parameters() { return {}; }
  /// Returns parameters of other layers whose values this layer uses.
  virtual std::vector<const Parameter*> borrowed() { return {}; }
  /// Returns the state that is not learned by gradients: the running values of batch norm.
  virtual std::vector<NamedState*> buffers() { return {}; }
  /// Returns the kind of layer with its sizes, such as "linear(400, 120)".
  virtual std::string kind() const = 0;

  /// Gives the layer its path in the model, which is the prefix of the names of its parameters and
  /// buffers: "conv1" makes "conv1.weight". It is called once, before initialize().
  virtual void attach(const std::string& path);
  const std::string& path() const { return path_; }

 protected:
  void set_path(const std::string& path) { path_ = path; }
  /// Throws Error(invalid_argument), which names the layer, unless `good` is true and the input has
  /// a float dtype that layers support. `wanted` is the expected shape in the error's text. Calls
  /// require_whole().
  void require_input(const Tensor& input, bool good, const char* wanted);
  /// Throws Error(invalid_argument) while a parameter is divided over the ranks, because the layer
  /// would compute with zeros. gathered() makes such a layer's parameters whole.
  void require_whole();
  /// Announces that the gradients of the parameters are final for this pass.
  void announce();

 private:
  std::string path_;
};

}  // namespace tutti::nn
