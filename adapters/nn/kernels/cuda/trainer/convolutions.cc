#include "tutti/adapters/nn/kernels/cuda/trainer/convolutions.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "tutti/adapters/nn/kernels/cuda/libraries/descriptor.h"
#include "tutti/base/error.h"

namespace tutti::cuda {

namespace {

constexpr int64_t kImage = 'x', kWeight = 'w', kOutput = 'y';  // unique ids of the tensors
constexpr size_t kMostEngines = 64;

cudnnDataType_t cudnn_type(DataType dtype) {
  switch (dtype) {
    case DataType::f32:
      return CUDNN_DATA_FLOAT;
    case DataType::bf16:
      return CUDNN_DATA_BFLOAT16;
    case DataType::f16:
      return CUDNN_DATA_HALF;
    default:
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("a convolution of {} was asked for; expected f32, bf16 or f16",
                              to_string(dtype)));
  }
}

using Extents = std::vector<int64_t>;

Extents with_spatial(const ConvolutionShape& s, const ConvolutionShape::Extents& all,
                     Extents leading = {}) {
  leading.insert(leading.end(), all.end() - s.dimensions, all.end());
  return leading;
}

Descriptor tensor_of(const Cudnn& library, int64_t id, const Extents& extents, DataType dtype,
                     int64_t alignment) {
  Extents strides(extents.size(), 1);
  for (size_t i = extents.size() - 1; i-- > 0;) strides[i] = strides[i + 1] * extents[i + 1];
  Descriptor tensor(library, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  tensor.set(CUDNN_ATTR_TENSOR_DATA_TYPE, cudnn_type(dtype))
      .set(CUDNN_ATTR_TENSOR_DIMENSIONS, extents)
      .set(CUDNN_ATTR_TENSOR_STRIDES, strides)
      .set(CUDNN_ATTR_TENSOR_UNIQUE_ID, id)
      .set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, alignment)
      .finish();
  return tensor;
}

// The cuDNN names of an operation and of its attributes, for each pass.
struct PassNames {
  cudnnBackendDescriptorType_t operation;
  cudnnBackendAttributeName_t convolution, alpha, beta, image, weight, output;
};

PassNames names_of(ConvolutionPass pass) {
  switch (pass) {
    case ConvolutionPass::forward:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y};
    case ConvolutionPass::backward_input:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY};
    case ConvolutionPass::backward_weights:
      break;
  }
  return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY};
}

std::vector<int64_t> key_of(ConvolutionPass pass, const ConvolutionShape& s, DataType dtype,
                            int64_t alignment) {
  std::vector<int64_t> key{
      static_cast<int64_t>(pass), static_cast<int64_t>(dtype), alignment,   s.batch,
      s.input_channels,           s.output_channels,           s.dimensions};
  for (const auto* all : {&s.image, &s.kernel, &s.stride, &s.padding})
    key.insert(key.end(), all->begin(), all->end());
  return key;
}

std::string text_of(ConvolutionPass pass, const ConvolutionShape& s, DataType dtype) {
  constexpr const char* kPasses[] = {"the", "the input gradient of the",
                                     "the weight gradient of the"};
  return fmt::format(
      "{} {} convolution of [{}] with [{}], stride {}, padding {}",
      kPasses[static_cast<size_t>(pass)], to_string(dtype),
      fmt::join(with_spatial(s, s.image, {s.batch, s.input_channels}), ","),
      fmt::join(with_spatial(s, s.kernel, {s.output_channels, s.input_channels}), ","), s.stride[2],
      s.padding[2]);
}

// Says whether an engine may be used.
enum class Fitness : uint8_t {
  unfit,        // violates an option
  last_resort,  // 16-bit without tensor cores: cuDNN does not report the type of its sums
  fit
};

Fitness fitness(const Cudnn& library, const Descriptor& configuration, DataType dtype,
                const ConvolutionPlanOptions& options) {
  std::vector<Descriptor> engines;
  engines.emplace_back(library, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  configuration.get(CUDNN_ATTR_ENGINECFG_ENGINE, engines);
  const auto notes = engines.front().get<cudnnBackendNumericalNote_t>(
      CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT);
  const auto has = [&](cudnnBackendNumericalNote_t note) {
    return std::find(notes.begin(), notes.end(), note) != notes.end();
  };
  if (options.is_deterministic && has(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC)) return Fitness::unfit;
  if (has(CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION)) return Fitness::unfit;
  const bool by_tensor_cores = has(CUDNN_NUMERICAL_NOTE_TENSOR_CORE);
  if (dtype != DataType::f32) return by_tensor_cores ? Fitness::fit : Fitness::last_resort;
  // Tensor cores read f32 as TF32.
  return options.allows_tf32 || (!by_tensor_cores && !has(CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS))
             ? Fitness::fit
             : Fitness::unfit;
}

}  // namespace

struct ConvolutionPlan {
  Descriptor plan;
  int64_t workspace;
  size_t tried;
};

Convolutions::Convolutions(const Cudnn& library, const ConvolutionPlanOptions& options)
    : library_(library), options_(options) {
  if (options.device_description.empty())
    library_.check(library_.cudnnCreate(&handle_), "begin on this device");
}

Convolutions::~Convolutions() {
  plans_.clear();
  if (handle_ != nullptr) library_.cudnnDestroy(handle_);
}

const ConvolutionPlan& Convolutions::plan(ConvolutionPass pass, const ConvolutionShape& shape,
                                          DataType dtype, int64_t alignment) {
  auto key = key_of(pass, shape, dtype, alignment);
  if (const auto found = plans_.find(key); found != plans_.end()) return *found->second;
  return *plans_.emplace(std::move(key), make(pass, shape, dtype, alignment)).first->second;
}

std::unique_ptr<ConvolutionPlan> Convolutions::make(ConvolutionPass pass, const ConvolutionShape& s,
                                                    DataType dtype, int64_t alignment) {
  const auto tensor = [&](int64_t id, const Extents& extents) {
    return tensor_of(library_, id, extents, dtype, alignment);
  };
  const auto image = tensor(kImage, with_spatial(s, s.image, {s.batch, s.input_channels}));
  const auto weight =
      tensor(kWeight, with_spatial(s, s.kernel, {s.output_channels, s.input_channels}));
  const auto output = tensor(kOutput, with_spatial(s, s.output(), {s.batch, s.output_channels}));

  Descriptor convolution(library_, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  convolution.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_DATA_FLOAT)
      .set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_CROSS_CORRELATION)
      .set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, int64_t{s.dimensions})
      .set(CUDNN_ATTR_CONVOLUTION_DILATIONS, Extents(static_cast<size_t>(s.dimensions), 1))
      .set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, with_spatial(s, s.stride))
      .set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, with_spatial(s, s.padding))
      .set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, with_spatial(s, s.padding))
      .finish();

  const auto names = names_of(pass);
  Descriptor operation(library_, names.operation);
  operation.set(names.convolution, convolution)
      .set(names.alpha, 1.0f)
      .set(names.beta, 0.0f)
      .set(names.image, image)
      .set(names.weight, weight)
      .set(names.output, output)
      .finish();

  std::optional<Descriptor> device;
  if (handle_ == nullptr) {
    device.emplace(library_, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    const auto& text = options_.device_description;
    // The text includes its terminating zero.
    device->set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
                std::vector<char>(text.c_str(), text.c_str() + text.size() + 1));
    device->finish();
  }
  Descriptor graph(library_, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  if (handle_ != nullptr) graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, handle_);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, operation).finish();

  size_t tried = 0;
  std::unique_ptr<ConvolutionPlan> last_resort;
  for (const auto mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    Descriptor heuristics(library_, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph)
        .set(CUDNN_ATTR_ENGINEHEUR_MODE, mode);
    if (device) heuristics.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *device);
    if (!heuristics.try_finish()) continue;
    std::vector<Descriptor> configurations;
    for (size_t i = 0; i < kMostEngines; ++i)
      configurations.emplace_back(library_, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    const auto count =
        static_cast<size_t>(heuristics.get(CUDNN_ATTR_ENGINEHEUR_RESULTS, configurations));
    for (size_t i = 0; i < std::min(count, kMostEngines); ++i) {
      ++tried;
      const auto fit = fitness(library_, configurations[i], dtype, options_);
      if (fit == Fitness::unfit || (fit == Fitness::last_resort && last_resort)) continue;
      Descriptor plan(library_, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
      plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configurations[i]);
      if (handle_ != nullptr) plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, handle_);
      if (device) plan.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, *device);
      // cuDNN also offers engines that turn out not to support the shape.
      if (!plan.try_finish()) continue;
      const int64_t workspace =
          plan.get<int64_t>(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, 1).front();
      if (workspace > options_.most_workspace) continue;
      auto found =
          std::make_unique<ConvolutionPlan>(ConvolutionPlan{std::move(plan), workspace, tried});
      if (fit == Fitness::fit) return found;
      last_resort = std::move(found);
    }
  }
  if (last_resort) return last_resort;
  throw Error(ErrorCode::unavailable,
              fmt::format("none of cuDNN's {} engines does {} within {} bytes of workspace{}; keep "
                          "this layer on the cpu, or use another type",
                          tried, text_of(pass, s, dtype), options_.most_workspace,
                          options_.is_deterministic ? " and with the same bits each time" : ""));
}

int64_t Convolutions::workspace_bytes(const ConvolutionPlan& plan) { return plan.workspace; }

size_t Convolutions::tried(const ConvolutionPlan& plan) { return plan.tried; }

void Convolutions::execute(const ConvolutionPlan& plan, const void* image, const void* weight,
                           const void* output, void* workspace, cudaStream_t stream) {
  library_.check(library_.cudnnSetStream(handle_, stream), "use a stream");
  Descriptor pack(library_, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, std::vector<int64_t>{kImage, kWeight, kOutput})
      .set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
           std::vector<void*>{const_cast<void*>(image), const_cast<void*>(weight),
                              const_cast<void*>(output)})
      .set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, workspace)
      .finish();
  library_.check(library_.cudnnBackendExecute(handle_, plan.plan.native(), pack.native()),
                 "execute a convolution");
}

}  // namespace tutti::cuda
