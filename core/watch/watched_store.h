#pragma once

#include <functional>
#include <memory>

#include "tutti/backends/store.h"

namespace tutti {

/// Returns a Store whose waits end with an exception when `look` throws. A thread that waits for a
/// key calls `look`. Only one thread calls it at a time, at most ten times a second. Ranks use this
/// store while they connect, because no connection could show them a peer's end yet. `look` must
/// not use this store.
std::shared_ptr<Store> make_watched_store(std::shared_ptr<Store> store, std::function<void()> look);

}  // namespace tutti
