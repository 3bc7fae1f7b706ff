#include "tutti/kernels/layers/layer_kernels.h"

#include <cstring>

#include "tutti/kernels/layers/cpu/cpu_layer_kernels.h"
#include "tutti/kernels/layers/layer_plugin.h"

namespace tutti {

Tensor LayerKernels::download(const ConstTensorView& tensor) {
  const auto& view = tensor.view();
  Tensor host(view.shape(), view.dtype());
  std::memcpy(host.data(), view.data(), static_cast<size_t>(view.bytes()));
  return host;
}

std::unique_ptr<LayerKernels> make_layer_kernels(Device device, int threads) {
  if (device.kind == DeviceKind::cpu) return std::make_unique<CpuLayerKernels>(threads);
  return load_layer_plugin(device.kind, layer_plugin_file(device.kind)).layers(device);
}

}  // namespace tutti
