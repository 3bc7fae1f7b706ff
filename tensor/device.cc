#include "tutti/tensor/device.h"

#include <fmt/format.h>

#include <charconv>

#include "tutti/base/error.h"

namespace tutti {

std::string to_string(Device device) {
  switch (device.kind) {
    case DeviceKind::cpu:
      return "cpu";
    case DeviceKind::cuda:
      return fmt::format("cuda:{}", device.index);
    case DeviceKind::fake:
      return fmt::format("fake:{}", device.index);
  }
  return "unknown device";
}

Device device_of(std::string_view name) {
  if (name == "cpu") return {};
  if (name == "fake-cuda") return {DeviceKind::fake, 0};
  constexpr std::string_view kCuda = "cuda";
  if (name == kCuda) return {DeviceKind::cuda, 0};
  int index = 0;
  const auto number = name.starts_with("cuda:") ? name.substr(kCuda.size() + 1) : "";
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), index);
  if (number.empty() || error != std::errc() || end != number.data() + number.size() || index < 0)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("there is no device \"{}\"; expected cpu, cuda or cuda:1", name));
  return {DeviceKind::cuda, index};
}

}  // namespace tutti
