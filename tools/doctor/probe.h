#pragma once

#include <nlohmann/json.hpp>

#include "tutti/backends/plugins.h"
#include "tutti/core/settings/options.h"

namespace tutti::doctor {

/// Connects two ranks of this machine by a backend, in processes of their own (threads of one for
/// `memory`), and lets them tell: {"route", "devices", "serves": {dtype: [op...]}, "choices":
/// {kind: [{"from", "to" (null: no end), "backend", "algorithm"}]}, "latency_us",
/// "bandwidth_gb_s"}; the last two are medians of blocking allreduces of 4 bytes and 16 MiB, and
/// only with `measures`. If it comes to nothing: {"failure"}. Of the options the scores
/// (`algorithms`), the folders of plugins and the interface count. To be called before this process
/// has started a thread.
nlohmann::json probe(const std::string& backend, const Options& options, bool measures);

}  // namespace tutti::doctor
