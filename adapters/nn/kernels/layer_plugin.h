#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tutti/adapters/nn/kernels/layer_kernels.h"
#include "tutti/adapters/nn/kernels/step_kernels.h"

namespace tutti {

/// This number must grow whenever this header, or one that it includes, changes the interface
/// against which a plugin is compiled.
inline constexpr uint32_t kLayerAbi = 3;

/// The record that a plugin exports to compute layers on one kind of device.
/// libtutti_layers_cuda.so serves GPUs, and the tests' libtutti_device_fake.so serves the fake
/// device.
struct LayerPlugin {
  uint32_t abi = kLayerAbi;  // first, so that it can be read in every version
  const char* name = "";     // "cuda"
  std::unique_ptr<LayerKernels> (*layers)(Device device) = nullptr;
  std::unique_ptr<StepKernels> (*steps)(const std::vector<StepOperands>& operands) = nullptr;
};

/// The symbol that a layer plugin exports.
extern "C" const LayerPlugin tutti_layer_plugin;

/// Returns the file of the plugin for a kind of device, in plugin_folder().
std::string layer_plugin_file(DeviceKind kind);
/// Loads the plugin for the life of the process. Throws Error(unavailable) if it does not exist or
/// cannot be loaded, and Error(corrupt_data | version) if it exists but is unusable.
const LayerPlugin& load_layer_plugin(DeviceKind kind, const std::string& file);

}  // namespace tutti
