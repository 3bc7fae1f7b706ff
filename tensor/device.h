#pragma once

#include <cstdint>
#include <string>
#include <string_view>

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
/// The same way back: "cpu", "cuda" or "cuda:1", and "fake-cuda" for the tests' device. Throws
/// Error(invalid_argument) for anything else.
Device device_of(std::string_view name);

/// A borrowed stream of a device, as that device's runtime understands it; null on the CPU.
struct StreamRef {
  void* native = nullptr;                             // cudaStream_t, say
  bool operator==(const StreamRef&) const = default;  // of the pointer
};

}  // namespace tutti
