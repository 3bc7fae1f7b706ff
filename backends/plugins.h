#pragma once

#include <span>
#include <string>
#include <vector>

#include "tutti/backends/backend.h"
#include "tutti/base/plugin.h"
#include "tutti/collectives/chooser.h"

namespace tutti {

/// A backend that was found, or a file that looks like a plugin but cannot be used.
struct ListedBackend {
  std::string name;
  std::string file;                       // the plugin's file; empty: built in
  const BackendPlugin* plugin = nullptr;  // null if it cannot be used
  std::string failure;                    // if `plugin` is null: one line that says why
};

/// Returns the built-in backends, the backends that `name` stands for, and the backends that the
/// scores name. `name` is a backend, two levels such as "shm+ucx", or "auto", which adds none.
/// Throws like find_backend(). An error about a score names that score.
std::vector<const BackendPlugin*> load_backends(std::string_view name, const Chooser& scores,
                                                std::span<const std::string> folders);

/// Returns the built-in backends and then the plugins in `folders` and plugin_folder(). If several
/// plugins have the same name, lists only the one that find_backend() would use. Loads every
/// plugin. A plugin that cannot be loaded is listed with its `failure`; no error is thrown.
std::vector<ListedBackend> list_backends(std::span<const std::string> folders);

/// Loads one plugin file, which stays loaded. Throws Error(unavailable) if the file cannot be
/// loaded, Error(corrupt_data) if it is damaged or holds no backend of this name, and
/// Error(version) if it was built for another ABI.
const BackendPlugin& load_plugin(const std::string& name, const std::string& file);

}  // namespace tutti
