#pragma once

#include "tests/tensor/fake_device.h"
#include "tutti/tensor/tensor.h"

namespace tutti::test {

inline const Device kFake{DeviceKind::fake, 0};

/// Fills a tensor in stream order. A reader that does not wait for the stream sees garbage.
inline void fill(FakeDevice& device, const Tensor& tensor, StreamRef stream, float value) {
  device.host_function(stream, [tensor, value] {
    for (float& element : tensor.span<float>()) element = value;
  });
}

inline TensorView on_stream(const Tensor& tensor, StreamRef stream) {
  return {tensor.data(), tensor.shape(), tensor.dtype(), kFake, stream};
}

}  // namespace tutti::test
