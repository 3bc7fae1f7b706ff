#pragma once

#include <nlohmann/json.hpp>

namespace tutti::doctor {

/// {"name", "addresses", "is_up", "megabits" (null if the system does not say)} of each network
/// interface.
nlohmann::json network_interfaces();
/// {"present", "usable"}: of the machine, and of this process.
nlohmann::json cores();
/// {"address", "vendor", "device"} of each PCI display or 3D controller that computes (NVIDIA,
/// AMD).
nlohmann::json gpus();
/// What CUDA makes of them: {"name", "file" (null: not there), "available", "version", "failure",
/// "devices": [{"index", "name", "architecture", "address", "memory_bytes", "notes"}]}. CUDA does
/// not survive a fork: to be called after the last one.
nlohmann::json cuda();

}  // namespace tutti::doctor
