#pragma once

#include <span>
#include <string>
#include <vector>

#include "tutti/backends/backend.h"
#include "tutti/base/plugin.h"
#include "tutti/collectives/chooser.h"

namespace tutti {

/// A backend that there is, or a file that should have been one.
struct ListedBackend {
  std::string name;
  std::string file;                       // empty: built in
  const BackendPlugin* plugin = nullptr;  // null if it cannot be used
  std::string failure;                    // then: one line that says why
};

/// The built-in backends, and those that `name` (a backend, two levels such as "shm+ucx"; "auto":
/// none) and the scores name. Throws as find_backend(); for a score it says which.
std::vector<const BackendPlugin*> load_backends(std::string_view name, const Chooser& scores,
                                                std::span<const std::string> folders);

/// The built-in backends, then what is in the folders and plugin_folder(), each name once, as
/// find_backend() would find it. Loads every plugin; throws for none.
std::vector<ListedBackend> list_backends(std::span<const std::string> folders);

/// Loads one file for good. Throws Error(unavailable) if it cannot be loaded, Error(corrupt_data)
/// if it is damaged or no backend, Error(version) if it was built for another ABI.
const BackendPlugin& load_plugin(const std::string& name, const std::string& file);

}  // namespace tutti
