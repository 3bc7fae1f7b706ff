// cuDNN's backend API as a table of functions that check their arguments and compute convolutions
// with the CPU's layers.

#include <fmt/format.h>

#include <cstring>
#include <optional>

#include "tests/fake_cuda/fake_cuda.h"
#include "tutti/adapters/nn/kernels/layer_kernels.h"
#include "tutti/kernels/convert.h"

namespace tutti::test {

namespace {

struct Body;
struct Attribute {
  cudnnBackendAttributeType_t type;
  int64_t count;
  std::vector<std::byte> bytes;
  std::vector<std::shared_ptr<Body>> descriptors;  // its values, if they are descriptors
};
// The contents of a descriptor. Descriptors that refer to it keep it alive, as in cuDNN.
struct Body {
  cudnnBackendDescriptorType_t type;
  std::map<cudnnBackendAttributeName_t, Attribute> attributes = {};
  bool is_finished = false;
  int64_t engine = 0;  // of a configuration or an engine

  template <class T>
  std::vector<T> values(cudnnBackendAttributeName_t name) const {
    const auto& attribute = attributes.at(name);
    std::vector<T> all(static_cast<size_t>(attribute.count));
    std::memcpy(all.data(), attribute.bytes.data(), attribute.bytes.size());
    return all;
  }
  const std::shared_ptr<Body>& descriptor(cudnnBackendAttributeName_t name) const {
    return attributes.at(name).descriptors.front();
  }
};
struct Native {
  std::shared_ptr<Body> body;
};
struct Handle {
  cudaStream_t stream = nullptr;
};

// Engine 0 is not reproducible, engine 1 is.
constexpr int64_t kEngines = 2;
// An odd size, so that a workspace that is one byte too small is detected.
constexpr int64_t kWorkspace = 8193;

Body& body_of(cudnnBackendDescriptor_t native) { return *static_cast<Native*>(native)->body; }

cudnnStatus_t refuse_cudnn(const std::string& what) {
  fake_cuda().add_fault("cuDNN: " + what);
  return CUDNN_STATUS_BAD_PARAM;
}

int64_t bytes_of_type(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
      return 8;
    case CUDNN_TYPE_CHAR:
    case CUDNN_TYPE_BOOLEAN:
      return 1;
    default:
      return 4;
  }
}

std::vector<cudnnBackendAttributeName_t> needed_by(cudnnBackendDescriptorType_t type) {
  switch (type) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR:
      return {CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_ATTR_TENSOR_STRIDES,
              CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT};
    case CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR:
      return {CUDNN_ATTR_CONVOLUTION_COMP_TYPE,      CUDNN_ATTR_CONVOLUTION_CONV_MODE,
              CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS,   CUDNN_ATTR_CONVOLUTION_DILATIONS,
              CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS,
              CUDNN_ATTR_CONVOLUTION_POST_PADDINGS};
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
      return {CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_ATTR_OPERATIONGRAPH_OPS};
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
      return {CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_ATTR_ENGINEHEUR_MODE};
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
      return {CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG};
    case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR:
      return {CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
              CUDNN_ATTR_VARIANT_PACK_WORKSPACE};
    default:
      return {};
  }
}

size_t dnn_version() {
  const size_t told = fake_troubles().cudnn_version;
  return told == 0 ? 91'900 : told;
}
const char* error_string(cudnnStatus_t status) {
  return status == CUDNN_STATUS_SUCCESS ? "success" : "CUDNN_STATUS_BAD_PARAM";
}
void last_error(char* text, size_t most) { std::snprintf(text, most, "see the fake's faults"); }
cudnnStatus_t dnn_create(cudnnHandle_t* handle) {
  *handle = reinterpret_cast<cudnnHandle_t>(new Handle);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t dnn_destroy(cudnnHandle_t handle) {
  delete reinterpret_cast<Handle*>(handle);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t set_stream(cudnnHandle_t handle, cudaStream_t stream) {
  reinterpret_cast<Handle*>(handle)->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t create_descriptor(cudnnBackendDescriptorType_t type,
                                cudnnBackendDescriptor_t* native) {
  fake_cuda().count_call("cudnnBackendCreateDescriptor");
  auto made = std::make_shared<Body>();
  made->type = type;
  *native = new Native{std::move(made)};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t destroy_descriptor(cudnnBackendDescriptor_t native) {
  delete static_cast<Native*>(native);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t set_attribute(cudnnBackendDescriptor_t native, cudnnBackendAttributeName_t name,
                            cudnnBackendAttributeType_t type, int64_t count, const void* values) {
  auto& body = body_of(native);
  if (body.is_finished) return refuse_cudnn("an attribute was set after the descriptor's end");
  Attribute attribute{type, count, {}, {}};
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    for (int64_t i = 0; i < count; ++i) {
      const auto& inner =
          static_cast<Native*>(static_cast<const cudnnBackendDescriptor_t*>(values)[i])->body;
      if (!inner->is_finished)
        return refuse_cudnn(fmt::format("attribute {} names a descriptor that is not finished",
                                        static_cast<int>(name)));
      attribute.descriptors.push_back(inner);
    }
  } else {
    const auto* bytes = static_cast<const std::byte*>(values);
    attribute.bytes.assign(bytes, bytes + count * bytes_of_type(type));
  }
  body.attributes[name] = std::move(attribute);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t finalize(cudnnBackendDescriptor_t native) {
  auto& body = body_of(native);
  for (const auto name : needed_by(body.type))
    if (!body.attributes.contains(name))
      return refuse_cudnn(fmt::format("a descriptor of type {} lacks attribute {}",
                                      static_cast<int>(body.type), static_cast<int>(name)));
  if (body.type == CUDNN_BACKEND_TENSOR_DESCRIPTOR) {
    const auto extents = body.values<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS);
    const auto strides = body.values<int64_t>(CUDNN_ATTR_TENSOR_STRIDES);
    int64_t wanted = 1;
    for (size_t i = extents.size(); i-- > 0; wanted *= extents[i])
      if (strides.size() != extents.size() || (extents[i] > 1 && strides[i] != wanted))
        return refuse_cudnn("a tensor's strides are not those of dense rows");
  }
  body.is_finished = true;
  return CUDNN_STATUS_SUCCESS;
}
template <class T>
cudnnStatus_t tell(const std::vector<T>& all, int64_t most, int64_t* count, void* values) {
  *count = static_cast<int64_t>(all.size());
  std::memcpy(values, all.data(),
              sizeof(T) * std::min<size_t>(all.size(), static_cast<size_t>(most)));
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t get_attribute(cudnnBackendDescriptor_t const native, cudnnBackendAttributeName_t name,
                            cudnnBackendAttributeType_t, int64_t most, int64_t* count,
                            void* values) {
  const auto& body = body_of(native);
  auto** descriptors = static_cast<cudnnBackendDescriptor_t*>(values);
  if (!body.is_finished) return refuse_cudnn("an unfinished descriptor was asked");
  switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS:
      *count = kEngines;
      for (int64_t i = 0; i < std::min(most, kEngines); ++i) {
        auto& configuration = body_of(descriptors[i]);
        configuration.attributes[CUDNN_ATTR_ENGINE_OPERATION_GRAPH] =
            body.attributes.at(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
        configuration.engine = i;
        configuration.is_finished = true;
      }
      return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINECFG_ENGINE:
      *count = 1;
      body_of(descriptors[0]).engine = body.engine;
      body_of(descriptors[0]).is_finished = true;
      return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE: {
      std::vector<cudnnBackendNumericalNote_t> notes;
      if (body.engine == 0) notes.push_back(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
      return tell(notes, most, count, values);
    }
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
      return tell(std::vector<int64_t>{kWorkspace}, most, count, values);
    default:
      return refuse_cudnn(fmt::format("attribute {} is not known", static_cast<int>(name)));
  }
}

// One tensor of an operation and its current address.
struct Bound {
  TensorView view;
  int64_t alignment;
};

DataType dtype_of_cudnn(cudnnDataType_t type) {
  return type == CUDNN_DATA_BFLOAT16 ? DataType::bf16
         : type == CUDNN_DATA_HALF   ? DataType::f16
                                     : DataType::f32;
}

std::optional<TensorView> bind(const Body& operation, cudnnBackendAttributeName_t name,
                               const Body& pack) {
  const auto& tensor = *operation.descriptor(name);
  const auto id = tensor.values<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID).front();
  const auto alignment = tensor.values<int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT).front();
  const auto dtype =
      dtype_of_cudnn(tensor.values<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE).front());
  const Shape shape(tensor.values<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS));
  const auto ids = pack.values<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto pointers = pack.values<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  for (size_t i = 0; i < ids.size() && i < pointers.size(); ++i) {
    if (ids[i] != id) continue;
    if (reinterpret_cast<uintptr_t>(pointers[i]) % static_cast<uintptr_t>(alignment) != 0)
      fake_cuda().add_fault(
          fmt::format("cuDNN: tensor {} is aligned worse than {}", id, alignment));
    const TensorView view(pointers[i], shape, dtype);
    if (!fake_cuda().owns(pointers[i], static_cast<size_t>(view.bytes())))
      fake_cuda().add_fault(fmt::format("cuDNN: tensor {} is not memory of the device", id));
    return view;
  }
  fake_cuda().add_fault(fmt::format("cuDNN: tensor {} is not bound", id));
  return {};
}

LayerKernels& stream_kernels() {
  static thread_local const auto kernels = make_layer_kernels();
  return *kernels;
}

cudnnStatus_t execute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                      cudnnBackendDescriptor_t pack) {
  auto& device = fake_cuda();
  device.count_call("cudnnBackendExecute");
  const auto &plan_of = body_of(plan), &pack_of = body_of(pack);
  if (!plan_of.is_finished || !pack_of.is_finished)
    return refuse_cudnn("an unfinished plan or pack was executed");
  const auto& configuration = *plan_of.descriptor(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  const auto graph = configuration.descriptor(CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
  const auto operation = graph->descriptor(CUDNN_ATTR_OPERATIONGRAPH_OPS);
  auto* workspace = pack_of.values<void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE).front();
  if (!device.owns(workspace, kWorkspace) || reinterpret_cast<uintptr_t>(workspace) % 256 != 0)
    return refuse_cudnn(
        fmt::format("the workspace is not {} bytes of the device, aligned to 256", kWorkspace));

  const bool is_forward = operation->type == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR;
  const bool is_data =
      operation->type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR;
  using Name = cudnnBackendAttributeName_t;
  const auto name = [&](Name forward, Name data, Name filter) {
    return is_forward ? forward : is_data ? data : filter;
  };
  const auto& convolution =
      *operation->descriptor(name(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC));
  const auto image = bind(
      *operation,
      name(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
           CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X),
      pack_of);
  const auto weight = bind(
      *operation,
      name(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
           CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW),
      pack_of);
  const auto output = bind(
      *operation,
      name(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
           CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY),
      pack_of);
  if (!image || !weight || !output) return CUDNN_STATUS_BAD_PARAM;
  const ConvolutionOptions options{
      convolution.values<int64_t>(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES).front(),
      convolution.values<int64_t>(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS).front()};
  device.enqueue({reinterpret_cast<Handle*>(handle)->stream},
                 [=, x = *image, w = *weight, y = *output] {
                   std::memset(workspace, 0x5a, kWorkspace);
                   auto& kernels = stream_kernels();
                   if (is_forward) {
                     kernels.convolution_forward(options, x, w, TensorView(), y);
                   } else if (is_data) {
                     kernels.convolution_backward_input(options, w, y, x);
                   } else {
                     const Tensor sums(w.shape(), DataType::f32);
                     kernels.convolution_backward_weights(options, x, y, sums, TensorView());
                     cast(DataType::f32, sums.data(), w.dtype(), w.data(), w.count());
                   }
                 });
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace

cuda::Cudnn fake_cudnn() {
  const auto& troubles = fake_troubles();
  if (!troubles.cudnn_file.empty()) return cuda::load_cudnn(troubles.cudnn_file);
  cuda::require_cudnn("the fake libcudnn", dnn_version());
  cuda::Cudnn table;
  table.cudnnGetVersion = dnn_version;
  table.cudnnGetErrorString = error_string;
  table.cudnnGetLastErrorString = last_error;
  table.cudnnCreate = dnn_create;
  table.cudnnDestroy = dnn_destroy;
  table.cudnnSetStream = set_stream;
  table.cudnnBackendCreateDescriptor = create_descriptor;
  table.cudnnBackendDestroyDescriptor = destroy_descriptor;
  table.cudnnBackendSetAttribute = set_attribute;
  table.cudnnBackendGetAttribute = get_attribute;
  table.cudnnBackendFinalize = finalize;
  table.cudnnBackendExecute = execute;
  return table;
}

}  // namespace tutti::test
