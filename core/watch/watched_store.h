#pragma once

#include <functional>
#include <memory>

#include "tutti/backends/store.h"

namespace tutti {

/// A Store whose waits end when `look` throws: it is called, by one thread at a time, by whichever
/// thread asks the store for a key, ten times a second at most. Ranks use it while they meet, when
/// none has a connection yet on which it would see a peer's end. `look` does not use this store.
std::shared_ptr<Store> make_watched_store(std::shared_ptr<Store> store, std::function<void()> look);

}  // namespace tutti
