#pragma once

#include <memory>

#include "tutti/core/settings/options.h"

namespace tutti {

/// Returns the options of one rank of `size`. Each rank is a separate process. The ranks meet in a
/// store that the program made. All other settings still come from the environment.
Options options_in_store(int rank, int size, std::shared_ptr<Store> store);

}  // namespace tutti
