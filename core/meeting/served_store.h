#pragma once

#include <memory>
#include <string>

#include "tutti/backends/store.h"
#include "tutti/core/settings/options.h"

namespace tutti {

/// A store that rank 0 serves itself.
struct ServedStore {
  std::shared_ptr<Store> store;
  std::shared_ptr<void> listener;  // while it lives, Options::log is told what the server sees
};

/// Serves the store at this address, or gives the one that this process serves there already: it
/// does so to its end, so that after a create() that failed, and when a communicator is gone, the
/// ranks meet in it again. Throws what TcpStoreServer does.
ServedStore serve_store(const Options& options, const std::string& host, int port);

}  // namespace tutti
