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

/// A small key-value store that all ranks of a job reach. Ranks use it to find each other, to learn
/// which ranks a launcher saw die, and to agree on the survivors. Any thread of any process may use
/// it. Keys are at most 1 KiB and values at most 1 MiB of any bytes. Every function throws
/// Error(unavailable) if the store is gone.
class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, std::string_view value) = 0;  // replaces an old value
  /// Sets the key only if it does not exist. Returns the value that the key has afterwards.
  virtual std::string set_once(const std::string& key, std::string_view value) = 0;
  virtual std::optional<std::string> try_get(const std::string& key) = 0;  // never waits
  /// Waits until the key exists and returns its value. Throws Error(timeout), which names the key.
  virtual std::string get(const std::string& key, Deadline deadline) = 0;
  /// Adds `amount` to a counter and returns the new value. A counter is decimal text; an absent one
  /// is 0.
  virtual int64_t add(const std::string& key, int64_t amount) = 0;
  /// Raises a counter to `least` if it is lower. Returns the value that it has afterwards.
  virtual int64_t raise(const std::string& key, int64_t least) = 0;
  virtual void erase(const std::string& key) = 0;  // does nothing if the key does not exist
  /// Erases all keys that begin with `prefix`.
  virtual void erase_all(const std::string& prefix) = 0;
  /// Returns a view of this store whose calls all end by the deadline. If the store does not answer
  /// within half a second after the deadline, they throw Error(unavailable). Returns null if no
  /// other process serves the store, because its calls need no such limit.
  virtual std::shared_ptr<Store> until(Deadline) { return nullptr; }
  /// Returns the address from which this host reaches the store, "10.0.0.3". Empty if the store is
  /// not reached over the network.
  virtual std::string local_address() const { return {}; }
};

/// Makes a store in this process's memory. Ranks that are threads of this process share it.
std::shared_ptr<Store> make_memory_store();
/// Makes a store of files in a folder that all ranks reach. Creates the folder if it is missing
/// (mode 0700). Throws Error(authentication), which names folder, owner and mode, if another user
/// owns the folder or can write into it. That user could plant the job's secret or its addresses.
std::shared_ptr<Store> make_file_store(const std::string& folder);
/// Connects to a TcpStoreServer and proves that this process knows the secret. Waits for the server
/// until the deadline. Throws Error(authentication | unavailable | timeout), which names host and
/// port.
std::shared_ptr<Store> connect_tcp_store(const std::string& host, int port,
                                         const std::string& secret, Deadline deadline);
/// Makes a view of a store in which every key gets this prefix.
std::shared_ptr<Store> make_prefix_store(std::shared_ptr<Store> store, std::string prefix);
/// Returns store->until(deadline), or the store itself if that is null.
std::shared_ptr<Store> bounded(std::shared_ptr<Store> store, Deadline deadline);

/// Serves a store on a TCP port from a thread of its own. In a fork of its process the destructor
/// does nothing.
class TcpStoreServer {
 public:
  /// `port` 0 stands for any free port. The server's thread reports connections that did not prove
  /// themselves to `log`, at most one line every 10 s. Throws Error(io), which names address and
  /// port, if the port is taken.
  TcpStoreServer(const std::string& address, int port, std::string secret, LogSink log = nullptr);
  ~TcpStoreServer();
  TcpStoreServer(const TcpStoreServer&) = delete;
  int port() const;  // the port on which it serves
  /// Reports to `log` immediately all rejected connections that were not reported yet. Returns when
  /// that is done.
  void report_strangers();
  /// Returns a view of the store for this process, which needs no connection.
  std::shared_ptr<Store> local();

 private:
  class Implementation;
  OwnedWhereMade<Implementation> implementation_;
};

}  // namespace tutti
