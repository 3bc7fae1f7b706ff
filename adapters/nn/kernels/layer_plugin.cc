#include "tutti/adapters/nn/kernels/layer_plugin.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "tutti/base/error.h"
#include "tutti/base/plugin.h"

namespace tutti {

namespace {

std::string_view name_of(DeviceKind kind) { return kind == DeviceKind::cuda ? "cuda" : "fake"; }

}  // namespace

std::string layer_plugin_file(DeviceKind kind) {
  return fmt::format("{}/libtutti_{}.so", plugin_folder(),
                     kind == DeviceKind::cuda ? "layers_cuda" : "device_fake");
}

const LayerPlugin& load_layer_plugin(DeviceKind kind, const std::string& file) {
  const auto name = name_of(kind);
  std::error_code status;
  if (!std::filesystem::exists(file, status))
    throw Error(ErrorCode::unavailable,
                fmt::format("no layers are computed on {}: there is no {}; keep the model on the "
                            "cpu, or build Tutti where nvcc and cuDNN's headers are (cmake says "
                            "what it missed)",
                            name, file));
  const auto* plugin = static_cast<const LayerPlugin*>(load_plugin_record(
      file, {"device", "tutti_layer_plugin", kLayerAbi, "keep the model on the cpu"}));
  if (plugin->name != name || plugin->layers == nullptr || plugin->steps == nullptr)
    throw Error(
        ErrorCode::corrupt_data,
        fmt::format(
            "{} computes no layers on \"{}\" but \"{}\", or only a part of them; build it again",
            file, name, plugin->name ? plugin->name : ""));
  return *plugin;
}

namespace {

bool are_same(const TensorView& one, const TensorView& other) {
  return one.data() == other.data() && one.count() == other.count() &&
         one.dtype() == other.dtype() && one.device() == other.device() &&
         one.stream() == other.stream();
}

bool are_same(const StepOperands& one, const StepOperands& other) {
  return are_same(one.value, other.value) && are_same(one.gradient, other.gradient) &&
         are_same(one.first, other.first) && are_same(one.second, other.second) &&
         one.is_adapted == other.is_adapted;
}

}  // namespace

StepKernels& KeptStepKernels::of(std::vector<StepOperands> operands) {
  const bool is_known =
      kernels_ != nullptr &&
      std::equal(operands.begin(), operands.end(), operands_.begin(), operands_.end(),
                 [](const auto& one, const auto& other) { return are_same(one, other); });
  if (!is_known) {
    kernels_ = nullptr;  // frees the memory of the kernels first
    kernels_ = make_step_kernels(operands);
    operands_ = std::move(operands);
  }
  return *kernels_;
}

std::unique_ptr<StepKernels> make_step_kernels(const std::vector<StepOperands>& operands) {
  if (operands.empty() || operands.front().value.device().kind == DeviceKind::cpu)
    throw Error(ErrorCode::invalid_argument,
                "this step is for parameters on a GPU; for none, or for those on the cpu, call "
                "sgd_step() and the like");
  const auto& first = operands.front().value;
  for (const auto& one : operands)
    for (const auto* view : {&one.value, &one.gradient, &one.first, &one.second}) {
      const bool is_none = view->data() == nullptr;
      if (is_none && view != &one.value && view != &one.gradient) continue;
      if (view->device() != first.device() || view->stream() != first.stream() ||
          view->count() != one.value.count() || view->dtype() != DataType::f32)
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("an optimizer's step got {}{} on {}; expected f32{} on {} and one "
                                "stream for all",
                                to_string(view->dtype()), view->shape().to_string(),
                                to_string(view->device()), one.value.shape().to_string(),
                                to_string(first.device())));
    }
  const auto kind = first.device().kind;
  return load_layer_plugin(kind, layer_plugin_file(kind)).steps(operands);
}

}  // namespace tutti
