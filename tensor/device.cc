#include "tutti/tensor/device.h"

#include <fmt/format.h>

namespace tutti {

std::string to_string(Device device) {
  switch (device.kind) {
    case DeviceKind::cpu:
      return "cpu";
    case DeviceKind::cuda:
      return fmt::format("cuda:{}", device.index);
    case DeviceKind::fake:
      return fmt::format("fake:{}", device.index);
  }
  return "unknown device";
}

}  // namespace tutti
