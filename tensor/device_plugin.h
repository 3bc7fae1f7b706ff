#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/tensor/device_runtime.h"

namespace tutti {

/// A device as tutti-doctor shows it.
struct DeviceDescription {
  std::string name;          // "NVIDIA H200"
  std::string architecture;  // "sm_90"
  std::string address;       // on the PCI bus, "0000:18:00.0"
  int64_t memory_bytes = 0;
  std::vector<std::string> notes = {};  // what it lacks, and what is done instead
};

/// Grows whenever this header, or one that it includes, changes what a plugin was compiled for.
inline constexpr uint32_t kDeviceAbi = 4;

/// What libtutti_device_<name>.so exports: one record. `versions` and `devices` may be called
/// whether there is a device or not.
struct DevicePlugin {
  uint32_t abi = kDeviceAbi;  // first, so that it can be read whatever follows
  const char* name = "";
  const char* summary = "";
  /// The one runtime of the process, always the same. Throws Error(unavailable) with one line that
  /// says why there is none and what to do.
  DeviceRuntime& (*runtime)() = nullptr;
  /// Of the driver and of the library behind it, for people.
  std::string (*versions)() = nullptr;
  /// The same errors as runtime().
  std::vector<DeviceDescription> (*devices)() = nullptr;
};

/// The one symbol of such a plugin, which defines it as
///   const DevicePlugin tutti::tutti_device_plugin = {.name = "<name>", ...};
extern "C" const DevicePlugin tutti_device_plugin;

/// Where the plugin of a kind of device belongs: in plugin_folder().
std::string device_plugin_file(DeviceKind kind);
/// Loads it for good. Throws Error(unavailable) if it is not there or cannot be loaded,
/// Error(corrupt_data | version) if it is there and of no use.
const DevicePlugin& load_device_plugin(DeviceKind kind, const std::string& file);

}  // namespace tutti
