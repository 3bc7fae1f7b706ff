#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tests/fake_cuda/fake_cuda.h"
#include "tutti/adapters/nn/kernels/layer_kernels.h"

namespace tutti::test {

inline constexpr Device kFake{DeviceKind::fake, 0};

/// Tests on the simulated GPU. Each starts without faults and without injected troubles.
class FakeCudaTest : public testing::Test {
 protected:
  FakeCudaTest() { fake_cuda().take_faults(); }
  ~FakeCudaTest() override {
    fake_cuda().finish_streams();
    fake_troubles() = {};
    fake_cuda().end_capture();
    fake_cuda().set_memory_limit(size_t{16} << 30);
  }
  static void expect_fault(const std::string& text) {
    EXPECT_THAT(fake_cuda().take_faults(), testing::Contains(testing::HasSubstr(text)));
  }
  const std::unique_ptr<LayerKernels> kernels_ = make_layer_kernels(kFake);
};

}  // namespace tutti::test
