#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "tutti/base/deadline.h"
#include "tutti/base/log.h"
#include "tutti/base/process/fork_guard.h"

namespace tutti {

/// A small key-value store that all ranks of a job reach: rendezvous, the deaths that a launcher
/// saw, agreement on survivors. Any thread, any process. Keys and values are bytes, at most 1 KiB
/// and 1 MiB. Every call throws Error(unavailable) if the store is gone.
class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, std::string_view value) = 0;  // replaces
  /// Sets only if the key is not there yet; returns the value that then stands.
  virtual std::string set_once(const std::string& key, std::string_view value) = 0;
  virtual std::optional<std::string> try_get(const std::string& key) = 0;  // at once
  /// Waits for the key; throws Error(timeout) that names the key.
  virtual std::string get(const std::string& key, Deadline deadline) = 0;
  /// Adds to a decimal counter that starts at 0; returns the new value.
  virtual int64_t add(const std::string& key, int64_t amount) = 0;
  /// Raises such a counter to `least` if it is lower; returns the value that then stands.
  virtual int64_t raise(const std::string& key, int64_t least) = 0;
  virtual void erase(const std::string& key) = 0;  // nothing if it is not there
  /// Erases all keys that begin with this.
  virtual void erase_all(const std::string& prefix) = 0;
  /// The same keys for calls that all end by the deadline, with Error(unavailable) if the store
  /// does not answer within half a second of it; null where no answer comes from another process.
  virtual std::shared_ptr<Store> until(Deadline) { return nullptr; }
  /// The own address on the way to the store, "10.0.0.3"; empty if it is not reached by network.
  virtual std::string local_address() const { return {}; }
};

/// Ranks as threads of one process share one of these.
std::shared_ptr<Store> make_memory_store();
/// Files in a folder that all ranks reach; created if missing (mode 0700). Throws
/// Error(authentication) that names folder, owner and mode if another user owns the folder or could
/// write into it: he could plant the job's secret, or its addresses.
std::shared_ptr<Store> make_file_store(const std::string& folder);
/// A client of a TcpStoreServer; proves that it knows the secret. Waits for the server until the
/// deadline. Throws Error(authentication | unavailable | timeout) naming host and port.
std::shared_ptr<Store> connect_tcp_store(const std::string& host, int port,
                                         const std::string& secret, Deadline deadline);
/// The same keys under a prefix.
std::shared_ptr<Store> make_prefix_store(std::shared_ptr<Store> store, std::string prefix);
/// Store::until(), or the store itself.
std::shared_ptr<Store> bounded(std::shared_ptr<Store> store, Deadline deadline);

/// Serves a store on a TCP port from a thread of its own. A fork of its process may destroy it, and
/// nothing happens.
class TcpStoreServer {
 public:
  /// port 0: any free one. `log` is told, from the server's thread, of connections that could not
  /// prove themselves: a line each 10 s at most. Throws Error(io) that names address and port if it
  /// is taken.
  TcpStoreServer(const std::string& address, int port, std::string secret, LogSink log = nullptr);
  ~TcpStoreServer();
  TcpStoreServer(const TcpStoreServer&) = delete;
  int port() const;  // that it serves on
  /// Tells `log` now of the connections that it was not told of yet, and returns when it has been.
  void report_strangers();
  /// The server's own view, without a connection.
  std::shared_ptr<Store> local();

 private:
  class Implementation;
  OwnedWhereMade<Implementation> implementation_;
};

}  // namespace tutti
