#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "tests/tensor/fake_device.h"
#include "tutti/kernels/convert.h"
#include "tutti/tensor/tensor.h"

namespace tutti::test {

inline constexpr Device kFake{DeviceKind::fake, 0};

inline FakeDevice& device() { return static_cast<FakeDevice&>(device_runtime(DeviceKind::fake)); }

// A stream of the user, and tensors that are filled and read in stream order only.
class UserStream {
 public:
  UserStream() : stream_(device().create_stream(kFake)) {}
  ~UserStream() {
    device().synchronize(stream_);
    device().destroy_stream(stream_);
  }
  StreamRef get() const { return stream_; }
  TensorView view(const Tensor& tensor) const {
    return {tensor.data(), tensor.shape(), tensor.dtype(), kFake, stream_};
  }
  Tensor make(const Shape& shape, DataType dtype, const std::function<double(int64_t)>& formula) {
    Tensor tensor(shape, dtype, kFake);
    fill(tensor, formula);
    return tensor;
  }
  void fill(const Tensor& tensor, const std::function<double(int64_t)>& formula) {
    device().host_function(stream_, [tensor, formula] {
      for (int64_t i = 0; i < tensor.count(); ++i) {
        const double value = formula(i);
        cast(DataType::f64, reinterpret_cast<const std::byte*>(&value), tensor.dtype(),
             tensor.data() + i * size_of(tensor.dtype()), 1);
      }
    });
  }
  /// Returns the values that the stream sees when it reaches this point.
  std::vector<double> read(const Tensor& tensor) {
    std::vector<double> values(static_cast<size_t>(tensor.count()));
    device().host_function(stream_, [&] {
      cast(tensor.dtype(), tensor.data(), DataType::f64,
           reinterpret_cast<std::byte*>(values.data()), tensor.count());
    });
    device().synchronize(stream_);
    return values;
  }
  void expect(const Tensor& tensor, const std::function<double(int64_t)>& formula) {
    const auto values = read(tensor);
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(values[i], formula(static_cast<int64_t>(i)))
          << "element " << i << " of " << to_string(tensor.dtype());
  }

 private:
  const StreamRef stream_;
};

}  // namespace tutti::test
