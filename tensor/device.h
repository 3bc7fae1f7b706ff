#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tutti {

/// Kinds of memory.
enum class DeviceKind : uint8_t { cpu = 0, cuda = 1, fake = 2 };

/// The device of memory. `fake` is the tests' device: host memory behind a stream that runs late.
struct Device {
  DeviceKind kind = DeviceKind::cpu;               // cpu: host memory
  int index = 0;                                   // from 0, in this process's numbering
  bool operator==(const Device&) const = default;  // compares kind and index
};

/// Returns for example "cpu" or "cuda:1".
std::string to_string(Device device);
/// Parses "cpu", "cuda" or "cuda:1", and "fake-cuda" for the tests' device. Throws
/// Error(invalid_argument) for anything else.
Device device_of(std::string_view name);

/// A borrowed stream of a device, as that device's runtime defines it; null on the CPU.
struct StreamRef {
  void* native = nullptr;                             // for example a cudaStream_t
  bool operator==(const StreamRef&) const = default;  // compares the pointer
};

}  // namespace tutti
