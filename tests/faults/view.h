#pragma once

#include <vector>

#include "tutti/tensor/device_runtime.h"
#include "tutti/tensor/tensor.h"

namespace tutti::test {

/// Views `values` as memory of the fake device if this process has one, otherwise as host memory.
/// Both are the same memory.
inline TensorView view(std::vector<float>& values) {
  const auto kind = has_device_runtime(DeviceKind::fake) ? DeviceKind::fake : DeviceKind::cpu;
  return {values.data(), Shape{static_cast<int64_t>(values.size())}, DataType::f32, {kind, 0}};
}

}  // namespace tutti::test
