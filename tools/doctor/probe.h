#pragma once

#include <nlohmann/json.hpp>

#include "tutti/backends/plugins.h"
#include "tutti/core/settings/options.h"

namespace tutti::doctor {

/// Connects two ranks on this machine by a backend, each in its own process (for `memory`: two
/// threads of one process). Returns what rank 0 found: {"route", "devices", "serves": {dtype:
/// [op...]}, "choices": {kind: [{"from", "to" (null: no end), "backend", "algorithm"}]},
/// "latency_us", "bandwidth_gb_s"}. The last two are medians of blocking allreduces of 4 bytes and
/// 16 MiB, measured only if `measures`. Returns {"failure"} if it does not succeed. Of the options
/// it uses only the scores (`algorithms`), the determinism, the plugins' folders, the backend's
/// library and the network interface. It must be called before this process starts a thread.
nlohmann::json probe(const std::string& backend, const Options& options, bool measures);

}  // namespace tutti::doctor
