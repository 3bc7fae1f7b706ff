#pragma once

#include <memory>
#include <vector>

#include "tests/tensor/fake_device.h"
#include "tutti/backends/backend.h"

namespace tutti::test {

/// Shows a device backend as a backend of host memory, for the conformance suite. Each operation
/// copies its input to the device on a late-running stream, works there, and copies the result
/// back.
std::unique_ptr<Backend> on_device(std::unique_ptr<Backend> backend);

}  // namespace tutti::test
