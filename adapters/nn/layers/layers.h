#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tutti/adapters/nn/layers/parameter.h"

namespace tutti {
class Communicator;
class LayerKernels;  // adapters/nn/kernels/layer_kernels.h
}  // namespace tutti

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
  std::vector<Tensor> kept;    // tensors of this layer
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

/// Layers one after another, each under a name that is unique in the chain. An empty chain returns
/// its input.
class Chain : public Layer {
 public:
  /// Throws Error(invalid_argument) for a name given twice.
  Chain& add(std::string name, std::unique_ptr<Layer> layer);
  Layer& last() { return *layers_.back().second; }

  Tensor forward(const Pass& pass, const Tensor& input, Context& context) override;
  Tensor backward(const Pass& pass, Context& context, const Tensor& output_gradient,
                  Wanted wanted) override;
  void initialize(uint64_t seed) override;
  std::vector<Parameter*> parameters() override;
  std::vector<NamedState*> buffers() override;
  std::string kind() const override { return "chain"; }
  void attach(const std::string& path) override;

 private:
  std::vector<std::pair<std::string, std::unique_ptr<Layer>>> layers_;
};

struct LinearOptions {
  bool bias = true;
  // Standard deviation of normal initial weights. With 0 they are uniform, as in He et al. 2015.
  double deviation = 0;
};
/// Maps [batch, ..., inputs] to [batch, ..., outputs]. Parameters: weight [outputs, inputs], bias
/// [outputs].
std::unique_ptr<Layer> linear(int64_t inputs, int64_t outputs, const LinearOptions& options = {});

struct Conv2dOptions {
  int64_t stride = 1;
  int64_t padding = 0;
  bool bias = true;
};
/// Maps [batch, in, h, w] to [batch, out, h', w']. Parameters: weight [out, in, kernel, kernel],
/// bias [out].
std::unique_ptr<Layer> conv2d(int64_t in, int64_t out, int64_t kernel,
                              const Conv2dOptions& options = {});
/// Like conv2d(), for [batch, in, depth, h, w] with weight [out, in, kernel, kernel, kernel].
std::unique_ptr<Layer> conv3d(int64_t in, int64_t out, int64_t kernel,
                              const Conv2dOptions& options = {});
/// A stride of 0 means the kernel's size. Padding takes no part in a maximum or an average.
std::unique_ptr<Layer> max_pool2d(int64_t kernel, int64_t stride = 0, int64_t padding = 0);
std::unique_ptr<Layer> average_pool2d(int64_t kernel, int64_t stride = 0, int64_t padding = 0);
/// Maps [batch, channels, h, w] to the mean of each channel, [batch, channels].
std::unique_ptr<Layer> global_average_pool();

std::unique_ptr<Layer> relu();
std::unique_ptr<Layer> tanh();
std::unique_ptr<Layer> gelu();  // GELU in its tanh form
/// Computes log softmax of each row of [batch, ..., classes].
std::unique_ptr<Layer> log_softmax();
/// In training, sets each element to zero with `probability` and divides the others by 1 -
/// probability. The mask follows from the seed, the layer's name, the step and the element's
/// position in the joined batch, so it is the same on any number of ranks. Throws
/// Error(invalid_argument) for a probability outside of [0, 1).
std::unique_ptr<Layer> dropout(double probability);
/// Converts values to f32, bf16 or f16. The layers after it work on that dtype, with f32 arithmetic
/// and parameters.
std::unique_ptr<Layer> cast_to(DataType dtype);

struct BatchNormOptions {
  double epsilon = 1e-5;
  double momentum = 0.1;  // weight of the new values in the running ones
  double initial_weight = 1;
};
/// Normalizes [batch, channels, ...] per channel over all other dimensions. Evaluation uses running
/// values, which are buffers of the model.
std::unique_ptr<Layer> batch_norm(int64_t channels, const BatchNormOptions& options = {});
/// Like batch_norm(), over the batches of all ranks, whose sizes may differ or be zero. Every rank
/// must make the same passes, all in training or all in evaluation. Gradients are those of the
/// joined batch if every rank's loss is divided by the same number; see Loss. The communicator must
/// outlive the layer.
std::unique_ptr<Layer> sync_batch_norm(Communicator& comm, int64_t channels,
                                       const BatchNormOptions& options = {});
/// Normalizes each row of [batch, ..., features].
std::unique_ptr<Layer> layer_norm(int64_t features, double epsilon = 1e-5);

struct EmbeddingOptions {
  int64_t positions = 0;  // above 0: a row is added for each position of [batch, length]
  double deviation = 0.02;
};
/// Maps indices i64[batch, ...] to rows of a table, f32[batch, ..., features]. Parameter: weight
/// [rows, features].
std::unique_ptr<Layer> embedding(int64_t rows, int64_t features,
                                 const EmbeddingOptions& options = {});
/// Multiplies [batch, ..., features] by the transposed table of an embedding. The results are
/// logits, whose classes are the rows of the table. The model must have the embedding before this
/// layer.
std::unique_ptr<Layer> tied_linear(const Layer& embedding);
/// The features are split among `heads`. In causal attention a row does not see later rows.
struct AttentionOptions {
  int64_t heads = 1;
  bool causal = true;
};
/// Maps queries, keys and values [batch, length, 3 * heads * width] to [batch, length, heads *
/// width].
std::unique_ptr<Layer> attention(const AttentionOptions& options);

/// Maps [batch, length, inputs] to the hidden values [batch, length, width] of every step. The
/// hidden values before the first step are zero. Parameters: input_weight [gates * width, inputs],
/// hidden_weight [gates * width, width], and a bias for each. The gates of lstm() are input,
/// forget, candidate and output, in this order. Those of gru() are reset, update and candidate.
std::unique_ptr<Layer> lstm(int64_t inputs, int64_t width);
std::unique_ptr<Layer> gru(int64_t inputs, int64_t width);

/// Maps pairs i64[batch, 2] of a row and a column to elements [batch, 1] of a matrix of low rank:
/// the product of the row's and the column's features, plus a bias of each (Koren et al. 2009).
std::unique_ptr<Layer> matrix_factorization(int64_t rows, int64_t columns, int64_t features);

/// Adds the outputs of the body and the shortcut. Without a shortcut it adds the input to the
/// body's output.
std::unique_ptr<Layer> residual(std::unique_ptr<Layer> body,
                                std::unique_ptr<Layer> shortcut = nullptr);
/// Maps [batch, ...] to [batch, product of the other extents].
std::unique_ptr<Layer> flatten();

}  // namespace tutti::nn
