#pragma once

#include <cstdint>
#include <vector>

#include "tutti/adapters/nn/kernels/layer_shapes.h"

namespace tutti {

/// The plain loops that define LayerKernels, in f64. Values are row-major. A bias without elements
/// means that the layer has none. Gradients of parameters belong to one call and are not
/// accumulated.
namespace reference {

using Values = std::vector<double>;

/// Gradients of a layer with weights.
struct WeightedGradients {
  Values input, weight, bias;
};

Values linear_forward(const LinearShape& shape, const Values& input, const Values& weight,
                      const Values& bias);
WeightedGradients linear_backward(const LinearShape& shape, const Values& input,
                                  const Values& weight, const Values& output_gradient);

Values convolution_forward(const ConvolutionShape& shape, const Values& input, const Values& weight,
                           const Values& bias);
WeightedGradients convolution_backward(const ConvolutionShape& shape, const Values& input,
                                       const Values& weight, const Values& output_gradient);

/// In pooling_backward(), a window's first maximum in row order gets the window's gradient.
Values pooling_forward(const PoolingShape& shape, const Values& input);
Values pooling_backward(const PoolingShape& shape, const Values& input,
                        const Values& output_gradient);

Values activation_forward(Activation activation, const Values& input);
/// `input` is forward's input, for all activations.
Values activation_backward(Activation activation, const Values& input,
                           const Values& output_gradient);

/// Log softmax of each row, and each row's loss.
struct CrossEntropyResult {
  Values log_probabilities, losses;
};
CrossEntropyResult softmax_cross_entropy_forward(int64_t classes, const Values& logits,
                                                 const std::vector<int64_t>& labels);
/// Returns the gradient of `scale` times the sum of the losses.
Values softmax_cross_entropy_backward(int64_t classes, const Values& log_probabilities,
                                      const std::vector<int64_t>& labels, double scale);

/// Normalises channels; `epsilon` as in LayerKernels. Rows are channels with one position.
Values batch_norm_forward(const ChannelsShape& shape, double epsilon, const Values& input,
                          const Values& weight, const Values& bias);
WeightedGradients batch_norm_backward(const ChannelsShape& shape, double epsilon,
                                      const Values& input, const Values& weight,
                                      const Values& output_gradient);
Values layer_norm_forward(int64_t features, double epsilon, const Values& input,
                          const Values& weight, const Values& bias);
WeightedGradients layer_norm_backward(int64_t features, double epsilon, const Values& input,
                                      const Values& weight, const Values& output_gradient);

/// `packed` holds queries, keys and values side by side.
Values attention_forward(const AttentionShape& shape, const Values& packed);
Values attention_backward(const AttentionShape& shape, const Values& packed,
                          const Values& output_gradient);

}  // namespace reference
}  // namespace tutti
