#pragma once

#include <memory>
#include <string>

#include "tutti/backends/store.h"
#include "tutti/core/settings/options.h"

namespace tutti {

/// A store that rank 0 itself serves.
struct ServedStore {
  std::shared_ptr<Store> store;
  std::shared_ptr<void> listener;  // while it exists, the server's log lines go to Options::log
};

/// Serves a store at this address. If this process already serves one at the address, returns that
/// store. The process serves the store until it exits. So the ranks can meet in it again after a
/// failed create() and after a communicator is gone. Throws the errors of TcpStoreServer.
ServedStore serve_store(const Options& options, const std::string& host, int port);

}  // namespace tutti
