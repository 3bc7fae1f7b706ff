#pragma once

#include <functional>
#include <memory>

#include "tutti/backends/store.h"

namespace tutti {

/// Returns a Store whose waits end when `look` throws. A thread that asks the store for a key calls
/// `look`, one thread at a time and at most ten times a second. Ranks use it while they meet, when
/// none has a connection yet on which it would see a peer's end. `look` must not use this store.
std::shared_ptr<Store> make_watched_store(std::shared_ptr<Store> store, std::function<void()> look);

}  // namespace tutti
