#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tutti/adapters/nn/layers.h"

namespace tutti::nn {

class CrossEntropy;

/// Layers one after another, each under a name that becomes the prefix of its parameters' names
/// ("conv1.weight"). Equal seeds give equal parameters on every machine. One thread.
class Sequential {
 public:
  /// `threads`: of the layers' kernels.
  explicit Sequential(uint64_t seed = 1, int threads = 1);

  /// Adds a layer at the end. Throws Error(invalid_argument) for a name given twice.
  Sequential& add(std::string name, std::unique_ptr<Layer> layer);

  Tensor forward(const Tensor& input);
  /// From the loss back: adds to every gradient and announces each as soon as it is final.
  void backward(const CrossEntropy& loss);
  void backward(const Tensor& output_gradient);
  void zero_grad();

  /// In the order of the layers; the handles share memory with the model.
  std::vector<Parameter> parameters() const;

 private:
  std::mt19937_64 generator_;
  std::vector<std::pair<std::string, std::unique_ptr<Layer>>> layers_;
  std::unique_ptr<LayerKernels> kernels_;
};

}  // namespace tutti::nn
