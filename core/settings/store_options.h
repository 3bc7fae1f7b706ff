#pragma once

#include <memory>

#include "tutti/core/settings/options.h"

namespace tutti {

/// One rank of `size`, each a process of its own, that meet in a store which the program made: the
/// settings of the environment, but for who this rank is and where it meets. Where the environment
/// holds no secret, the first rank to come leaves a random one in that store: it is then as secret
/// as the store is. Not to be called while another thread changes the environment.
Options options_in_store(int rank, int size, std::shared_ptr<Store> store);

}  // namespace tutti
