#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tutti/kernels/cuda/libraries/libraries.h"
#include "tutti/kernels/layers/layer_shapes.h"
#include "tutti/tensor/dtype.h"

namespace tutti::cuda {

enum class ConvolutionPass : uint8_t { forward, backward_input, backward_weights };

struct ConvolutionPlanOptions {
  bool is_deterministic = true;  // only engines that give the same bits each time
  bool allows_tf32 = false;      // f32 images and weights rounded to 10 bits
  int64_t most_workspace = int64_t{256} << 20;
  /// What cuDNN says of a device, as JSON: plans are made for that device, which need not be here,
  /// and cannot be executed. Empty: for the device that is current.
  std::string device_description = {};
};

/// What cuDNN will do for a shape.
struct ConvolutionPlan;

/// Convolutions by cuDNN's graphs: each a graph of one operation over row-major images, whose plan
/// is made at the first use of a shape and kept. Sums are in f32.
class Convolutions {
 public:
  /// `library` is borrowed; the device must be current here and in execute().
  Convolutions(const Cudnn& library, const ConvolutionPlanOptions& options);
  ~Convolutions();
  Convolutions(const Convolutions&) = delete;
  Convolutions& operator=(const Convolutions&) = delete;

  /// `alignment`: what the addresses of all three tensors are multiples of, at most 16. Throws
  /// Error(unavailable) with the shape where no engine of cuDNN does it within the options.
  const ConvolutionPlan& plan(ConvolutionPass pass, const ConvolutionShape& shape, DataType dtype,
                              int64_t alignment);
  static int64_t workspace_bytes(const ConvolutionPlan& plan);
  /// How many engines cuDNN offered before one fitted, and how many in all.
  static size_t tried(const ConvolutionPlan& plan);
  /// In the stream's order, the image, weight and output or the gradients in their places.
  void execute(const ConvolutionPlan& plan, const void* image, const void* weight,
               const void* output, void* workspace, cudaStream_t stream);
  size_t plans() const { return plans_.size(); }

 private:
  std::unique_ptr<ConvolutionPlan> make(ConvolutionPass pass, const ConvolutionShape& shape,
                                        DataType dtype, int64_t alignment);

  const Cudnn& library_;
  const ConvolutionPlanOptions options_;
  cudnnHandle_t handle_ = nullptr;  // null for a device that is not here
  std::map<std::vector<int64_t>, std::unique_ptr<ConvolutionPlan>> plans_;
};

}  // namespace tutti::cuda
