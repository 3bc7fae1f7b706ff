#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>

#include "tutti/backends/network/asio.h"
#include "tutti/backends/store/tcp_store_protocol.h"

namespace tutti {

/// The keys of a TcpStoreServer, and the requests that wait for keys. Only the io_context's thread
/// uses it.
class StoreTable {
 public:
  using Answer = std::function<void(StoreReply reply)>;

  explicit StoreTable(asio::io_context& io) : io_(io) {}
  /// Answers each request once. A `get` may be answered later, all others are answered immediately.
  /// After forget(client) its requests are not answered any more.
  void handle(const void* client, StoreRequest request, Answer answer);
  void forget(const void* client);

 private:
  struct Waiter {
    const void* client;
    uint64_t id;
    Answer answer;
    asio::steady_timer timer;
  };

  void store(const std::string& key, std::string value);
  void wait(const void* client, StoreRequest request, Answer answer);
  StoreReply count(const StoreRequest& request);

  asio::io_context& io_;
  std::map<std::string, std::string> values_;
  std::unordered_map<std::string, std::list<std::shared_ptr<Waiter>>> waiters_;
};

}  // namespace tutti
