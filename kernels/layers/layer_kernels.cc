#include "tutti/kernels/layers/layer_kernels.h"

#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/kernels/layers/cpu/cpu_layer_kernels.h"

namespace tutti {

std::unique_ptr<LayerKernels> make_layer_kernels(Device device, int threads) {
  if (device.kind == DeviceKind::cpu) return std::make_unique<CpuLayerKernels>(threads);
  throw Error(
      ErrorCode::unavailable,
      fmt::format("no layers are computed on {}; keep the model on the cpu", to_string(device)));
}

}  // namespace tutti
