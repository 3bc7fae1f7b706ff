#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tutti/kernels/layers/layer_kernels.h"
#include "tutti/kernels/layers/step_kernels.h"

namespace tutti {

/// Grows whenever this header, or one that it includes, changes what a plugin was compiled for.
inline constexpr uint32_t kLayerAbi = 3;

/// What a plugin exports that computes layers on a kind of device: libtutti_layers_cuda.so for
/// GPUs, the tests' libtutti_device_fake.so for the fake one.
struct LayerPlugin {
  uint32_t abi = kLayerAbi;  // first, so that it can be read whatever follows
  const char* name = "";     // "cuda"
  std::unique_ptr<LayerKernels> (*layers)(Device device) = nullptr;
  std::unique_ptr<StepKernels> (*steps)(const std::vector<StepOperands>& operands) = nullptr;
};

/// The one symbol of such a plugin, beside the device's.
extern "C" const LayerPlugin tutti_layer_plugin;

/// Where the plugin for a kind of device belongs: in plugin_folder().
std::string layer_plugin_file(DeviceKind kind);
/// Loads it for good. Throws Error(unavailable) if it is not there or cannot be loaded,
/// Error(corrupt_data | version) if it is there and of no use.
const LayerPlugin& load_layer_plugin(DeviceKind kind, const std::string& file);

}  // namespace tutti
