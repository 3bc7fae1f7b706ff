#include "tools/doctor/machine.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "tutti/base/error.h"
#include "tutti/base/text.h"
#include "tutti/tensor/device_plugin.h"

namespace tutti::doctor {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

json network_interfaces() {
  ifaddrs* list = nullptr;
  json found = json::array();
  if (::getifaddrs(&list) != 0) return found;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    json* entry = nullptr;
    for (auto& other : found)
      if (other["name"] == one->ifa_name) entry = &other;
    if (entry == nullptr) {
      const auto speed = parse_integer(
          first_line(fs::path("/sys/class/net") / one->ifa_name / "speed"), 1, 100'000'000);
      found.push_back({{"name", one->ifa_name},
                       {"addresses", json::array()},
                       {"is_up", (one->ifa_flags & IFF_UP) != 0},
                       {"megabits", speed ? json(*speed) : json()}});
      entry = &found.back();
    }
    const int family = one->ifa_addr == nullptr ? AF_UNSPEC : one->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    char text[NI_MAXHOST];
    const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (::getnameinfo(one->ifa_addr, length, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0)
      (*entry)["addresses"].push_back(text);
  }
  return found;
}

json cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const bool known = ::sched_getaffinity(0, sizeof set, &set) == 0;
  const long present = ::sysconf(_SC_NPROCESSORS_ONLN);
  return {{"present", present}, {"usable", known ? long{CPU_COUNT(&set)} : present}};
}

json gpus() {
  json found = json::array();
  std::error_code status;
  for (const auto& entry : fs::directory_iterator("/sys/bus/pci/devices", status)) {
    if (!first_line(entry.path() / "class").starts_with("0x03")) continue;
    const auto vendor = first_line(entry.path() / "vendor");
    if (vendor != "0x10de" && vendor != "0x1002") continue;
    found.push_back({{"address", entry.path().filename().string()},
                     {"vendor", vendor == "0x10de" ? "NVIDIA" : "AMD"},
                     {"device", first_line(entry.path() / "device")}});
  }
  return found;
}

json cuda() {
  const auto file = device_plugin_file(DeviceKind::cuda);
  std::error_code status;
  json told = {{"name", "cuda"},
               {"file", fs::exists(file, status) ? json(file) : json()},
               {"available", false},
               {"devices", json::array()}};
  try {
    const auto& plugin = load_device_plugin(DeviceKind::cuda, file);
    told["version"] = plugin.versions();
    for (const auto& device : plugin.devices())
      told["devices"].push_back({{"index", told["devices"].size()},
                                 {"name", device.name},
                                 {"architecture", device.architecture},
                                 {"address", device.address},
                                 {"memory_bytes", device.memory_bytes},
                                 {"notes", device.notes}});
    told["available"] = true;
  } catch (const Error& error) {
    told["failure"] = error.what();
  }
  return told;
}

}  // namespace tutti::doctor
