#include "tutti/kernels/layers/layer_kernels.h"

#include "tutti/kernels/layers/cpu/cpu_layer_kernels.h"
#include "tutti/kernels/layers/layer_plugin.h"

namespace tutti {

std::unique_ptr<LayerKernels> make_layer_kernels(Device device, int threads) {
  if (device.kind == DeviceKind::cpu) return std::make_unique<CpuLayerKernels>(threads);
  return load_layer_plugin(device.kind, layer_plugin_file(device.kind)).layers(device);
}

}  // namespace tutti
