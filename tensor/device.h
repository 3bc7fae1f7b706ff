#pragma once

#include <cstdint>
#include <string>

namespace tutti {

/// Of memory.
enum class DeviceKind : uint8_t { cpu = 0, cuda = 1, fake = 2 };

/// Where memory lives. `fake` is the tests' device: host memory behind a stream that runs late.
struct Device {
  DeviceKind kind = DeviceKind::cpu;               // cpu: host memory
  int index = 0;                                   // from 0, as the process sees them
  bool operator==(const Device&) const = default;  // of kind and number
};

/// "cpu", "cuda:1".
std::string to_string(Device device);

/// A borrowed stream of a device, as that device's runtime understands it; null on the CPU.
struct StreamRef {
  void* native = nullptr;                             // cudaStream_t, say
  bool operator==(const StreamRef&) const = default;  // of the pointer
};

}  // namespace tutti
