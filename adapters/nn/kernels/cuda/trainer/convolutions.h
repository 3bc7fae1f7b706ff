#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tutti/adapters/nn/kernels/cuda/libraries/libraries.h"
#include "tutti/adapters/nn/kernels/layer_shapes.h"
#include "tutti/tensor/dtype.h"

namespace tutti::cuda {

enum class ConvolutionPass : uint8_t { forward, backward_input, backward_weights };

struct ConvolutionPlanOptions {
  bool is_deterministic = true;  // use only engines whose results are the same bits each time
  bool allows_tf32 = false;      // f32 images and weights may be rounded to 10 bits
  int64_t most_workspace = int64_t{256} << 20;
  /// cuDNN's JSON description of a device that need not be present. Plans are then made for that
  /// device and cannot be executed. If empty, plans are for the current device.
  std::string device_description = {};
};

/// cuDNN's execution plan for a shape.
struct ConvolutionPlan;

/// Computes convolutions with cuDNN's graphs. Each graph has one operation over row-major images.
/// Its plan is made at the first use of a shape and kept. Sums are in f32.
class Convolutions {
 public:
  /// `library` is borrowed. The device must be current here and in execute().
  Convolutions(const Cudnn& library, const ConvolutionPlanOptions& options);
  ~Convolutions();
  Convolutions(const Convolutions&) = delete;
  Convolutions& operator=(const Convolutions&) = delete;

  /// Returns the plan for a shape. The addresses of all three tensors are multiples of `alignment`,
  /// which is at most 16. Throws Error(unavailable) with the shape if no engine of cuDNN supports
  /// it within the options.
  const ConvolutionPlan& plan(ConvolutionPass pass, const ConvolutionShape& shape, DataType dtype,
                              int64_t alignment);
  static int64_t workspace_bytes(const ConvolutionPlan& plan);
  /// Returns how many of cuDNN's engines were tried until one fitted.
  static size_t tried(const ConvolutionPlan& plan);
  /// Runs a convolution in the stream's order. In backward passes `output` is the gradient of the
  /// output, and the array that is written receives the gradient of the image or of the weight.
  void execute(const ConvolutionPlan& plan, const void* image, const void* weight,
               const void* output, void* workspace, cudaStream_t stream);
  size_t plans() const { return plans_.size(); }

 private:
  std::unique_ptr<ConvolutionPlan> make(ConvolutionPass pass, const ConvolutionShape& shape,
                                        DataType dtype, int64_t alignment);

  const Cudnn& library_;
  const ConvolutionPlanOptions options_;
  cudnnHandle_t handle_ = nullptr;  // null for a device that is not present
  std::map<std::vector<int64_t>, std::unique_ptr<ConvolutionPlan>> plans_;
};

}  // namespace tutti::cuda
