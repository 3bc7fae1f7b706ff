#pragma once

#include <cstdint>
#include <string>

namespace tutti {

enum class DeviceKind : uint8_t { cpu = 0, cuda = 1, fake = 2 };

/// Where memory lives. `fake` is the tests' device: host memory behind a stream that runs late.
struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;
  bool operator==(const Device&) const = default;
};

std::string to_string(Device device);

/// A borrowed stream of a device, as that device's runtime understands it; null on the CPU.
struct StreamRef {
  void* native = nullptr;
  bool operator==(const StreamRef&) const = default;
};

}  // namespace tutti
