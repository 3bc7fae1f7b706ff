#include "tutti/tensor/device_plugin.h"

#include <fmt/format.h>

#include <filesystem>

#include "tutti/base/error.h"
#include "tutti/base/plugin.h"

namespace tutti {

namespace {

std::string plugin_name(DeviceKind kind) { return kind == DeviceKind::cuda ? "cuda" : "fake"; }

}  // namespace

std::string device_plugin_file(DeviceKind kind) {
  return fmt::format("{}/libtutti_device_{}.so", plugin_folder(), plugin_name(kind));
}

const DevicePlugin& load_device_plugin(DeviceKind kind, const std::string& file) {
  const auto name = plugin_name(kind);
  std::error_code status;
  if (!std::filesystem::exists(file, status))
    throw Error(ErrorCode::unavailable,
                fmt::format("there is no {}: support for {} was not built (cmake says why) or not "
                            "installed; keep tensors in host memory, or build Tutti where nvcc is",
                            file, name));
  const auto* plugin = static_cast<const DevicePlugin*>(load_plugin_record(
      file, {"device", "tutti_device_plugin", kDeviceAbi, "keep tensors in host memory"}));
  if (plugin->name != name || plugin->runtime == nullptr || plugin->devices == nullptr ||
      plugin->versions == nullptr)
    throw Error(
        ErrorCode::corrupt_data,
        fmt::format("{} holds no device \"{}\" but \"{}\", or only a part of it; build it again",
                    file, name, plugin->name ? plugin->name : ""));
  return *plugin;
}

}  // namespace tutti
