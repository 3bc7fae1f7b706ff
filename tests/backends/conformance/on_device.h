#pragma once

#include <memory>
#include <vector>

#include "tests/tensor/fake_device.h"
#include "tutti/backends/backend.h"

namespace tutti::test {

/// A backend of devices as one of host memory, for the conformance suite: what it starts is copied
/// to the device in order of a stream that runs late, worked on there and copied back.
std::unique_ptr<Backend> on_device(std::unique_ptr<Backend> backend);

}  // namespace tutti::test
