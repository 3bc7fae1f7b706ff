#pragma once

#include <nlohmann/json.hpp>

namespace tutti::doctor {

/// Returns {"name", "addresses", "is_up", "megabits"} of each network interface. "megabits" is null
/// if the system does not report it.
nlohmann::json network_interfaces();
/// Returns {"present", "usable"}: the machine's cores, and those that this process may use.
nlohmann::json cores();
/// Returns {"address", "vendor", "device"} of each display or 3D controller of NVIDIA or AMD on the
/// PCI bus.
nlohmann::json gpus();
/// Returns what CUDA reports: {"name", "file" (null: missing), "available", "version", "failure",
/// "devices": [{"index", "name", "architecture", "address", "memory_bytes", "notes"}]}. It must be
/// called after the last fork, because CUDA does not work in a child of a process that has used it.
nlohmann::json cuda();

}  // namespace tutti::doctor
