#include "tutti/adapters/nn/kernels/layer_kernels.h"

#include "tutti/adapters/nn/kernels/cpu/cpu_layer_kernels.h"
#include "tutti/adapters/nn/kernels/layer_plugin.h"

namespace tutti {

std::unique_ptr<LayerKernels> make_layer_kernels(Device device, int threads) {
  if (device.kind == DeviceKind::cpu) return std::make_unique<CpuLayerKernels>(threads);
  return load_layer_plugin(device.kind, layer_plugin_file(device.kind)).layers(device);
}

}  // namespace tutti
