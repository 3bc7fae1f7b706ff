#pragma once

#include <functional>
#include <memory>

#include "tutti/backends/store.h"

namespace tutti {

/// A Store whose waits end when `look` throws: it is called, by one thread at a time, by whichever
/// thread asks the store for a key, ten times a second at most. What ranks use while they meet,
/// when nobody can see an end of file yet. `look` does not use this store.
std::shared_ptr<Store> make_watched_store(std::shared_ptr<Store> store, std::function<void()> look);

}  // namespace tutti
