#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/tensor/device_runtime.h"

namespace tutti {

/// A device as tutti-doctor reports it.
struct DeviceDescription {
  std::string name;          // "NVIDIA H200"
  std::string architecture;  // "sm_90"
  std::string address;       // PCI bus address, "0000:18:00.0"
  int64_t memory_bytes = 0;
  std::vector<std::string> notes = {};  // missing features, and their replacements
};

/// This number must grow whenever this header, or one that it includes, changes the interface
/// against which a plugin is compiled.
inline constexpr uint32_t kDeviceAbi = 4;

/// The record that libtutti_device_<name>.so exports. `versions` and `devices` may be called even
/// if there is no device.
struct DevicePlugin {
  uint32_t abi = kDeviceAbi;  // first, so that it can be read in every version
  const char* name = "";
  const char* summary = "";
  /// Returns the process's one runtime. Throws Error(unavailable) with one line that contains the
  /// reason and advice.
  DeviceRuntime& (*runtime)() = nullptr;
  /// Returns the versions of the driver and of its library, for people to read.
  std::string (*versions)() = nullptr;
  /// Returns the devices that this process sees. Throws the same errors as runtime().
  std::vector<DeviceDescription> (*devices)() = nullptr;
};

/// The only symbol of a device plugin, which defines it as
///   const DevicePlugin tutti::tutti_device_plugin = {.name = "<name>", ...};
extern "C" const DevicePlugin tutti_device_plugin;

/// Returns the file of the plugin for a kind of device, in plugin_folder().
std::string device_plugin_file(DeviceKind kind);
/// Loads the plugin for the life of the process. Throws Error(unavailable) if it does not exist or
/// cannot be loaded, and Error(corrupt_data | version) if it exists but is unusable.
const DevicePlugin& load_device_plugin(DeviceKind kind, const std::string& file);

}  // namespace tutti
