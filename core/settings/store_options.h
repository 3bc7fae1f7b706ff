#pragma once

#include <memory>

#include "tutti/core/settings/options.h"

namespace tutti {

/// One rank of `size`, each a process of its own, that meet in a store which the program made; the
/// rest of the settings is still to be completed, and so the environment's.
Options options_in_store(int rank, int size, std::shared_ptr<Store> store);

}  // namespace tutti
